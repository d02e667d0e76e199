#include "accelerate/comm/watch/operation_log.h"

#include <algorithm>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "accelerate/base/message_text.h"

namespace accelerate {
namespace {

// How many of a group's last calls the report shows.
constexpr uint64_t kShownCalls = 5;
// What a ring has room for at first.
constexpr size_t kFewestEntries = 16;

const char* state_text(OperationState state) {
  switch (state) {
    case OperationState::kIssued: return "under way";
    case OperationState::kWaiting: return "waits";
    case OperationState::kDone: return "done";
    case OperationState::kFailed: return "failed";
    case OperationState::kRefused: return "refused";
  }
  return "";
}

// One rank's view of one group.
struct View {
  int rank = 0;
  const OperationHistory* history = nullptr;  // null: it did not answer
  const GroupRecord* group = nullptr;         // null: it never began to make the group
  int group_index = -1;
  const OperationRecord* last = nullptr;  // its last collective in the group

  uint64_t collectives() const { return group == nullptr ? 0 : group->collectives; }
};

// Whether the record is of a collective of the view's group that was carried out.
bool is_call(const View& view, const OperationRecord& record) {
  return record.group == view.group_index && record.state != OperationState::kRefused &&
         !c10d::isP2POp(record.fingerprint.op);
}

View view_of(int rank, const OperationFailure& failure, const OperationHistory* history) {
  View view{.rank = rank, .history = history};
  if (history == nullptr) return view;
  for (size_t i = 0; i < view.history->groups.size(); ++i) {
    if (view.history->groups[i].name != failure.group) continue;
    view.group = &view.history->groups[i];
    view.group_index = static_cast<int>(i);
  }
  for (const OperationRecord& record : view.history->operations) {
    if (is_call(view, record)) view.last = &record;
  }
  return view;
}

std::vector<View> views_of(const OperationFailure& failure,
                           const std::vector<OperationHistory>& histories) {
  std::unordered_map<int, const OperationHistory*> history_of;
  for (const OperationHistory& history : histories) history_of[history.rank] = &history;
  std::vector<View> views;
  for (int rank : failure.ranks) {
    const auto found = history_of.find(rank);
    views.push_back(view_of(rank, failure, found == history_of.end() ? nullptr : found->second));
  }
  return views;
}

std::string operations(uint64_t count) {
  return absl::StrCat(count, count == 1 ? " operation" : " operations");
}

// Where the rank is when it is not in an operation of the group.
std::string elsewhere(const View& view) {
  for (const GroupRecord& group : view.history->groups) {
    if (!group.made) return absl::StrCat("; it is making group \"", group.name, "\"");
  }
  if (view.history->operations.empty()) return "";
  const OperationRecord& latest = view.history->operations.back();
  if (latest.group == view.group_index && !c10d::isP2POp(latest.fingerprint.op)) return "";
  if (latest.state != OperationState::kWaiting && latest.state != OperationState::kFailed) {
    return "";
  }
  return absl::StrCat("; it is in ", latest.fingerprint.to_string(), " of group \"",
                      view.history->groups[latest.group].name, "\"");
}

std::string line_of(const View& view, uint64_t most) {
  if (view.history == nullptr) return "did not answer (gone or unreachable)";
  std::string text;
  if (!view.history->ending.empty()) text = view.history->ending;
  auto add = [&text](const std::string& part) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", part);
  };
  if (view.group == nullptr) {
    add("never made this group");
    return text + elsewhere(view);
  }
  if (!view.group->made) {
    add("is making this group");
    return text;
  }
  const uint64_t behind = most - view.collectives();
  if (behind > 0) add(absl::StrCat(operations(behind), " behind"));
  if (view.last == nullptr) {
    add(view.collectives() == 0 ? "entered no operation"
                                : absl::StrCat("entered ", operations(view.collectives())));
  } else if (behind == 0 && view.history->ending.empty() &&
             view.last->state == OperationState::kWaiting) {
    add(absl::StrCat("waits in ", view.last->fingerprint.to_string()));
  } else {
    add(absl::StrCat("its last was ", view.last->fingerprint.to_string(), ", ",
                     state_text(view.last->state)));
  }
  return view.history->ending.empty() ? text + elsewhere(view) : text;
}

const OperationRecord* call_number(const View& view, uint64_t sequence) {
  if (view.history == nullptr) return nullptr;
  const OperationRecord* found = nullptr;
  for (const OperationRecord& record : view.history->operations) {
    if (is_call(view, record) && record.fingerprint.sequence == sequence) found = &record;
  }
  return found;
}

uint64_t most_collectives(const std::vector<View>& views) {
  uint64_t most = 0;
  for (const View& view : views) most = std::max(most, view.collectives());
  return most;
}

std::string lines_of(const std::vector<View>& views) {
  const uint64_t most = most_collectives(views);
  std::vector<std::pair<int, std::string>> lines;
  for (const View& view : views) lines.emplace_back(view.rank, line_of(view, most));
  return lines_by_rank(lines);
}

// The first call that members made differently, among those that are still remembered.
std::string first_difference(const OperationFailure& failure, const std::vector<View>& views,
                             bool only_open = false) {
  std::map<uint64_t, std::vector<std::pair<int, const OperationRecord*>>> by_sequence;
  for (const View& view : views) {
    if (view.history == nullptr) continue;
    for (const OperationRecord& record : view.history->operations) {
      if (!is_call(view, record)) continue;
      auto& records = by_sequence[record.fingerprint.sequence];
      // A dump of another program may have several records of one call; the last one counts.
      if (!records.empty() && records.back().first == view.rank) records.pop_back();
      records.emplace_back(view.rank, &record);
    }
  }
  for (const auto& [sequence, records] : by_sequence) {
    const auto has_ended = [](const auto& record) {
      return record.second->state == OperationState::kDone;
    };
    if (only_open && std::ranges::all_of(records, has_ended)) continue;
    std::vector<std::pair<int, CollectiveFingerprint>> calls;
    for (const auto& [rank, record] : records) calls.emplace_back(rank, record->fingerprint);
    std::string difference = describe_mismatch(failure.group, calls);
    if (!difference.empty()) return difference;
  }
  return "";
}

// Lines by rank, one behind the other.
std::string in_one_line(absl::string_view lines) {
  return absl::StrReplaceAll(lines, {{"\n  ", "; "}});
}

// The collective in which the rank waits; null if it waits in none.
const OperationRecord* waits_in(const OperationHistory& history) {
  if (!history.ending.empty() || history.operations.empty()) return nullptr;
  const OperationRecord& latest = history.operations.back();
  const bool waits =
      latest.state == OperationState::kWaiting && !c10d::isP2POp(latest.fingerprint.op);
  return waits ? &latest : nullptr;
}

// Whether the rank has made the group of another rank's call, and has not come to the call.
bool is_awaited(const OperationHistory& rank, const OperationHistory& other,
                const OperationRecord& call) {
  const std::string& name = other.groups[static_cast<size_t>(call.group)].name;
  return std::ranges::any_of(rank.groups, [&](const GroupRecord& group) {
    return group.name == name && group.made && group.collectives <= call.fingerprint.sequence;
  });
}

std::string last_calls(const std::vector<View>& views) {
  const uint64_t most = most_collectives(views);
  std::string text;
  for (uint64_t sequence = most - std::min(most, kShownCalls); sequence < most; ++sequence) {
    std::vector<std::pair<int, std::string>> calls;
    for (const View& view : views) {
      const OperationRecord* call = call_number(view, sequence);
      if (call == nullptr) continue;
      calls.emplace_back(
          view.rank, absl::StrCat(call->fingerprint.to_string(), ", ", state_text(call->state)));
    }
    if (!calls.empty()) absl::StrAppend(&text, "\n", lines_by_rank(calls));
  }
  return text;
}

}  // namespace

int OperationLog::add_group(std::string name, std::vector<int> ranks) {
  const std::lock_guard lock(mutex_);
  groups_.push_back({.name = std::move(name)});
  members_.push_back(std::move(ranks));
  return static_cast<int>(groups_.size()) - 1;
}

void OperationLog::group_is_made(int group) {
  const std::lock_guard lock(mutex_);
  groups_[group].made = true;
}

OperationLog::Ticket OperationLog::enter(int group, CollectiveFingerprint& fingerprint) {
  const std::lock_guard lock(mutex_);
  if (!c10d::isP2POp(fingerprint.op)) fingerprint.sequence = groups_[group].collectives++;
  const CallTable::Index call = calls_.add(fingerprint);
  if (next_ == ring_.size() && next_ < kCapacity) {
    ring_.resize(std::clamp(2 * ring_.size(), kFewestEntries, kCapacity));
  }
  Entry& entry = entry_of(next_);
  if (next_ >= kCapacity) calls_.release(entry.call);
  entry = {.sequence = fingerprint.sequence, .group = group, .call = call};
  return next_++;
}

void OperationLog::set_state(Ticket ticket, OperationState state) {
  const std::lock_guard lock(mutex_);
  if (remembers(ticket)) entry_of(ticket).state = state;
}

std::string OperationLog::describe(Ticket ticket) const {
  const std::lock_guard lock(mutex_);
  if (!remembers(ticket)) return "an operation long ago";
  return call_of(entry_of(ticket)).to_string();
}

void OperationLog::refuse(Ticket ticket) {
  const std::lock_guard lock(mutex_);
  if (!remembers(ticket)) return;
  Entry& entry = entry_of(ticket);
  entry.state = OperationState::kRefused;
  if (!c10d::isP2POp(call_of(entry).op)) --groups_[entry.group].collectives;
}

void OperationLog::end(std::string ending) {
  const std::lock_guard lock(mutex_);
  ending_ = std::move(ending);
}

OperationHistory OperationLog::snapshot(size_t most) const {
  const std::lock_guard lock(mutex_);
  OperationHistory history{.rank = rank_, .ending = ending_, .groups = groups_};
  const Ticket first = next_ - std::min<Ticket>(next_, std::min(most, kCapacity));
  history.operations.reserve(next_ - first);
  for (Ticket ticket = first; ticket < next_; ++ticket) {
    const Entry& entry = entry_of(ticket);
    history.operations.push_back(
        {.group = entry.group, .state = entry.state, .fingerprint = call_of(entry)});
  }
  return history;
}

CollectiveFingerprint OperationLog::call_of(const Entry& entry) const {
  CollectiveFingerprint call = calls_[entry.call];
  call.sequence = entry.sequence;
  return call;
}

std::vector<std::vector<int>> OperationLog::members() const {
  const std::lock_guard lock(mutex_);
  return members_;
}

std::optional<PendingOperation> OperationLog::pending() const {
  const std::lock_guard lock(mutex_);
  if (next_ == 0 || !ending_.empty()) return std::nullopt;
  const Entry& latest = entry_of(next_ - 1);
  if (latest.state != OperationState::kIssued && latest.state != OperationState::kWaiting) {
    return std::nullopt;
  }
  return PendingOperation{.ticket = next_ - 1,
                          .text = call_of(latest).to_string(),
                          .group = groups_[latest.group].name,
                          .ranks = members_[latest.group]};
}

std::string describe_mismatch(const std::string& group,
                              const std::vector<std::pair<int, CollectiveFingerprint>>& calls) {
  for (const auto& [rank, call] : calls) {
    const std::optional<std::string> difference = calls[0].second.difference(call);
    if (!difference) continue;
    std::vector<std::pair<int, std::string>> texts;
    for (const auto& [member, fingerprint] : calls) {
      texts.emplace_back(member, fingerprint.to_string());
    }
    return absl::StrCat("collective mismatch in call #", calls[0].second.sequence, " of group \"",
                        group, "\": ", *difference, "\n", lines_by_rank(texts));
  }
  return "";
}

std::string group_lines(const OperationFailure& failure,
                        const std::vector<OperationHistory>& histories) {
  return lines_of(views_of(failure, histories));
}

std::string ranks_behind(const OperationFailure& failure,
                         const std::vector<OperationHistory>& histories, int asking) {
  const std::vector<View> views = views_of(failure, histories);
  const uint64_t most = most_collectives(views);
  std::vector<std::pair<int, std::string>> lines;
  for (const View& view : views) {
    const bool is_behind = view.history == nullptr || view.collectives() < most;
    if (is_behind && view.rank == asking) return "";
    lines.emplace_back(view.rank, is_behind ? line_of(view, most) : "");
  }
  return in_one_line(absl::StripPrefix(lines_by_rank(lines), "  "));
}

std::string differing_calls(const OperationFailure& failure,
                            const std::vector<OperationHistory>& histories) {
  return in_one_line(first_difference(failure, views_of(failure, histories), /*only_open=*/true));
}

std::string crossed_groups(const std::vector<OperationHistory>& histories) {
  std::vector<const OperationHistory*> ranks;
  for (const OperationHistory& history : histories) {
    if (waits_in(history) != nullptr) ranks.push_back(&history);
  }
  std::ranges::sort(ranks, {}, &OperationHistory::rank);
  const auto place = [](const OperationHistory& rank) {
    const OperationRecord& call = *waits_in(rank);
    return absl::StrCat(call.fingerprint.to_string(), " of group \"",
                        rank.groups[static_cast<size_t>(call.group)].name, "\"");
  };
  for (size_t i = 0; i < ranks.size(); ++i) {
    for (size_t j = i + 1; j < ranks.size(); ++j) {
      const OperationHistory &one = *ranks[i], &other = *ranks[j];
      if (!is_awaited(one, other, *waits_in(other)) || !is_awaited(other, one, *waits_in(one))) {
        continue;
      }
      return absl::StrCat("ranks ", one.rank, " and ", other.rank,
                          " entered groups in different orders: rank ", one.rank, " waits in ",
                          place(one), ", and rank ", other.rank, " in ", place(other));
    }
  }
  return "";
}

std::string last_call(const OperationHistory& history) {
  if (history.operations.empty()) return "";
  const OperationRecord& last = history.operations.back();
  return absl::StrCat(last.fingerprint.to_string(), " of group \"", history.groups[last.group].name,
                      "\", ", state_text(last.state));
}

std::string operation_report(const OperationFailure& failure,
                             const std::vector<OperationHistory>& histories) {
  const std::vector<View> views = views_of(failure, histories);
  const std::string difference = first_difference(failure, views);
  if (failure.reason.empty() && !difference.empty()) return difference;
  std::string text = failure.reason.empty()
                         ? absl::StrCat("calls of group \"", failure.group, "\" differ")
                         : failure.reason;
  if (views.empty()) return text;
  absl::StrAppend(&text, "\n", failure.group.empty() ? "" : "group \"", failure.group,
                  failure.group.empty() ? "ranks:\n" : "\", by rank:\n", lines_of(views));
  const std::string crossed = crossed_groups(histories);
  if (!crossed.empty() && crossed != failure.reason) absl::StrAppend(&text, "\n", crossed);
  if (!difference.empty()) absl::StrAppend(&text, "\n", difference);
  const std::string calls = last_calls(views);
  if (!calls.empty()) absl::StrAppend(&text, "\nlast calls:", calls);
  return text;
}

}  // namespace accelerate
