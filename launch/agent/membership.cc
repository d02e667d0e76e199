#include "launch/agent/membership.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "launch/process/event_source.h"

namespace accelerate::launcher::agent {
namespace {

// When people begin to wonder why nothing starts.
constexpr absl::Duration kPatience = absl::Seconds(5);

std::string machines(int count) {
  return absl::StrCat(count, count == 1 ? " machine" : " machines");
}

}  // namespace

Membership::Membership(const MembershipRules& rules, TimePoint now)
    : rules_(rules), forming_since_(now) {}

absl::Status Membership::admit(MemberId member, Member machine) {
  if (phase_ == Phase::kOver) return absl::FailedPreconditionError("the run is over");
  if (rules_.fixed_ranks) {
    const int rank = machine.node_rank.value_or(-1);
    if (rank < 0 || rank >= rules_.max_nodes) {
      return absl::FailedPreconditionError(absl::StrCat("its rank ", rank, " is not between 0 and ",
                                                        rules_.max_nodes - 1, " (machine_rank)"));
    }
    for (const auto& [other, seat] : seats_) {
      if (seat.machine.node_rank != rank) continue;
      return absl::FailedPreconditionError(
          absl::StrCat("its rank ", rank, " (machine_rank) is ", seat.machine.host, "'s already"));
    }
  }
  seats_[member] = {.machine = std::move(machine), .order = arrivals_++};
  return absl::OkStatus();
}

void Membership::ready(MemberId member, uint16_t store_port) {
  const auto found = seats_.find(member);
  // A machine does not get ready in the middle of a round that it takes part in.
  if (found == seats_.end() || (phase_ == Phase::kRunning && found->second.takes_part)) return;
  found->second.is_ready = true;
  found->second.store_port = store_port;
}

void Membership::failed(MemberId member, const Failure& failure) {
  const auto found = seats_.find(member);
  if (found == seats_.end() || !found->second.takes_part) return;
  if (phase_ == Phase::kStopping) {
    // Ranks fail because others are gone; a machine that was lost is the cause, not the failure.
    if (!failure_ && !membership_changed_) failure_ = failure;
    return;
  }
  if (phase_ != Phase::kRunning) return;
  const bool may_be_a_loss = !rules_.fixed_ranks && rules_.max_nodes > 1;
  if (restarts_ >= rules_.max_restarts && !may_be_a_loss) {
    end_failed(failure);
    return;
  }
  failure_ = failure;
  stop_round(failure.text);
}

void Membership::done(MemberId member) {
  const auto found = seats_.find(member);
  if (found == seats_.end() || phase_ != Phase::kRunning) return;
  found->second.is_done = found->second.takes_part;
  const bool all = std::ranges::all_of(
      seats_, [](const auto& entry) { return entry.second.is_done || !entry.second.takes_part; });
  if (all) end(0, "");
}

void Membership::lost(MemberId member, const Failure& failure) {
  const auto found = seats_.find(member);
  if (found == seats_.end() || phase_ == Phase::kOver) return;
  const bool took_part = found->second.takes_part;
  seats_.erase(found);
  if (rules_.fixed_ranks || rules_.max_nodes == 1) {
    end(failure.exit_code, failure.text);
    return;
  }
  if (!took_part) return;
  membership_changed_ = true;
  if (phase_ == Phase::kRunning) stop_round(failure.text);
}

void Membership::end_run(const Failure& failure) {
  if (phase_ != Phase::kOver) end(failure.exit_code, failure.text);
}

std::vector<std::pair<Membership::MemberId, Order>> Membership::advance(TimePoint now) {
  if (phase_ == Phase::kStopping) advance_stopping(now);
  if (phase_ == Phase::kForming) advance_forming(now);
  if (phase_ == Phase::kRunning) advance_running(now);
  return std::exchange(orders_, {});
}

std::optional<Membership::TimePoint> Membership::deadline() const {
  const auto after = [](TimePoint time, absl::Duration duration) {
    return std::optional(time + absl::ToChronoNanoseconds(duration));
  };
  if (phase_ == Phase::kRunning) {
    return arrival_at_ ? after(*arrival_at_, rules_.gather_time) : std::nullopt;
  }
  if (phase_ != Phase::kForming) return std::nullopt;
  std::optional<TimePoint> first = after(forming_since_, rules_.join_timeout);
  if (enough_since_)
    first = process::earlier(first, after(*enough_since_, rules_.last_call_timeout));
  if (!announced_waiting_) first = process::earlier(first, after(forming_since_, kPatience));
  return first;
}

void Membership::advance_forming(TimePoint now) {
  const int count = ready_count();
  if (count < rules_.min_nodes) {
    enough_since_.reset();
    if (now - forming_since_ >= absl::ToChronoNanoseconds(rules_.join_timeout)) {
      end(1, absl::StrCat("not enough machines within ", absl::FormatDuration(rules_.join_timeout),
                          ": ", arrived_text(), "; ", missing_text()));
    } else if (!announced_waiting_ &&
               now - forming_since_ >= absl::ToChronoNanoseconds(kPatience)) {
      announced_waiting_ = true;
      for (const auto& [member, seat] : seats_) {
        orders_.push_back({member,
                           {.kind = Order::Kind::kNotice,
                            .text = absl::StrCat("waiting for machines: ", arrived_text(), "; ",
                                                 missing_text())}});
      }
    }
    return;
  }
  if (!enough_since_) enough_since_ = now;
  // Machines that are back from a round need not be waited for, and everybody knows of it.
  const bool last_call_is_over =
      now - *enough_since_ >= absl::ToChronoNanoseconds(rules_.last_call_timeout);
  if (count >= rules_.max_nodes || rounds_ > 0 || last_call_is_over) start_round();
}

void Membership::advance_running(TimePoint now) {
  std::vector<std::string> newcomers;
  int taking_part = 0;
  bool any_done = false;
  for (const auto& [member, seat] : seats_) {
    taking_part += seat.takes_part;
    any_done = any_done || seat.is_done;
    if (!seat.takes_part && seat.is_ready) newcomers.push_back(seat.machine.host);
  }
  // A run that is ending is not restarted for a late machine.
  if (newcomers.empty() || any_done || taking_part >= rules_.max_nodes) {
    arrival_at_.reset();
    return;
  }
  if (!arrival_at_) arrival_at_ = now;
  if (now - *arrival_at_ < absl::ToChronoNanoseconds(rules_.gather_time)) return;
  membership_changed_ = true;
  stop_round(absl::StrCat(absl::StrJoin(newcomers, ", "), " joined"));
}

void Membership::advance_stopping(TimePoint now) {
  const bool all_back = std::ranges::all_of(
      seats_, [](const auto& entry) { return entry.second.is_ready || !entry.second.takes_part; });
  if (!all_back) return;
  if (failure_ && !membership_changed_) {
    if (restarts_ >= rules_.max_restarts) {
      end_failed(*failure_);
      return;
    }
    ++restarts_;
  }
  phase_ = Phase::kForming;
  for (auto& [member, seat] : seats_) seat.takes_part = false;
  forming_since_ = now;
  enough_since_.reset();
  announced_waiting_ = false;
  failure_.reset();
  membership_changed_ = false;
}

int Membership::ready_count() const {
  return static_cast<int>(
      std::ranges::count_if(seats_, [](const auto& entry) { return entry.second.is_ready; }));
}

std::vector<Membership::MemberId> Membership::candidates() const {
  std::vector<MemberId> members;
  for (const auto& [member, seat] : seats_) {
    if (seat.is_ready) members.push_back(member);
  }
  std::ranges::sort(members, [this](MemberId a, MemberId b) {
    const Seat& first = seats_.at(a);
    const Seat& second = seats_.at(b);
    if (rules_.fixed_ranks) return *first.machine.node_rank < *second.machine.node_rank;
    return first.order < second.order;
  });
  if (std::ssize(members) > rules_.max_nodes) members.resize(rules_.max_nodes);
  return members;
}

void Membership::start_round() {
  const std::vector<MemberId> members = candidates();
  const Seat& master = seats_.at(members[0]);
  Round round = {.number = rounds_++,
                 .group_count = static_cast<int>(members.size()),
                 .world_size = 0,
                 .master_addr = master.machine.address,
                 .master_port = master.store_port,
                 .restarts = restarts_,
                 .run_token = rules_.run_token};
  for (MemberId member : members) round.world_size += seats_.at(member).machine.processes;
  for (MemberId member : members) {
    Seat& seat = seats_.at(member);
    seat.takes_part = true;
    seat.is_ready = false;
    seat.is_done = false;
    orders_.push_back({member, {.kind = Order::Kind::kStart, .round = round}});
    ++round.group_rank;
    round.first_rank += seat.machine.processes;
  }
  arrival_at_.reset();
  phase_ = Phase::kRunning;
}

void Membership::stop_round(const std::string& why) {
  phase_ = Phase::kStopping;
  for (const auto& [member, seat] : seats_) {
    if (seat.takes_part) orders_.push_back({member, {.kind = Order::Kind::kStop, .text = why}});
  }
}

void Membership::end(int exit_code, const std::string& text) {
  phase_ = Phase::kOver;
  for (const auto& [member, seat] : seats_) {
    orders_.push_back({member, {.kind = Order::Kind::kEnd, .exit_code = exit_code, .text = text}});
  }
}

void Membership::end_failed(const Failure& failure) {
  const bool had_restarts = rules_.max_restarts > 0;
  end(failure.exit_code,
      had_restarts ? absl::StrCat(failure.text, "; no restart of ", rules_.max_restarts, " is left")
                   : failure.text);
}

std::string Membership::arrived_text() const {
  std::vector<std::string> hosts;
  for (const auto& [member, seat] : seats_) {
    if (!seat.is_ready) continue;
    hosts.push_back(rules_.fixed_ranks ? absl::StrCat(seat.machine.host, " (machine_rank ",
                                                      *seat.machine.node_rank, ")")
                                       : seat.machine.host);
  }
  return absl::StrCat(hosts.size(), " of ", machines(rules_.min_nodes),
                      " came: ", hosts.empty() ? "none" : absl::StrJoin(hosts, ", "));
}

std::string Membership::missing_text() const {
  if (!rules_.fixed_ranks) return absl::StrCat(rules_.min_nodes - ready_count(), " missing");
  std::vector<int> missing;
  for (int rank = 0; rank < rules_.max_nodes; ++rank) {
    const bool here = std::ranges::any_of(seats_, [rank](const auto& entry) {
      return entry.second.machine.node_rank == rank && entry.second.is_ready;
    });
    if (!here) missing.push_back(rank);
  }
  return absl::StrCat("missing: machine_rank ", absl::StrJoin(missing, ", "));
}

}  // namespace accelerate::launcher::agent
