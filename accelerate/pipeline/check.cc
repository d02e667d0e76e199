#include "accelerate/pipeline/check.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "accelerate/base/status.h"

namespace accelerate::pipeline {
namespace {

using enum Pass;

struct PlacedAction {
  Action action;
  size_t rank = 0;
};

absl::Status refused(const auto&... parts) { return invalid("the pipeline schedule: ", parts...); }

absl::Status check_ranges(const Schedule& schedule) {
  if (schedule.stages < 1 || schedule.micro_batches < 1 || schedule.ranks.empty()) {
    return refused(schedule.ranks.size(), " ranks, ", schedule.stages, " stages and ",
                   schedule.micro_batches, " micro-batches; each must be at least 1");
  }
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    if (schedule.ranks[rank].empty()) return refused("rank ", rank, " has no actions");
    for (const Action& action : schedule.ranks[rank]) {
      if (action.stage < 0 || action.stage >= schedule.stages) {
        return refused("rank ", rank, " has ", action_text(action), ", but stages are 0 to ",
                       schedule.stages - 1);
      }
      if (action.micro_batch < 0 || action.micro_batch >= schedule.micro_batches) {
        return refused("rank ", rank, " has ", action_text(action), ", but micro-batches are 0 to ",
                       schedule.micro_batches - 1);
      }
    }
  }
  return absl::OkStatus();
}

// By stage and micro-batch.
std::vector<PlacedAction> sorted_actions(const Schedule& schedule) {
  std::vector<PlacedAction> sorted;
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    for (const Action& action : schedule.ranks[rank]) sorted.push_back({action, rank});
  }
  std::ranges::sort(sorted, {}, [](const PlacedAction& each) {
    return std::tuple(each.action.stage, each.action.micro_batch, each.action.pass, each.rank);
  });
  return sorted;
}

absl::Status check_once(const std::vector<PlacedAction>& sorted) {
  for (size_t i = 1; i < sorted.size(); ++i) {
    const auto& [action, rank] = sorted[i];
    const auto& [before, rank_before] = sorted[i - 1];
    if (action == before && rank == rank_before) {
      return refused("rank ", rank, " has ", action_text(action), " twice");
    }
    if (action.stage == before.stage && rank != rank_before) {
      return refused("stage ", action.stage, " is on rank ", rank_before, ", which has ",
                     action_text(before), ", and on rank ", rank, ", which has ",
                     action_text(action));
    }
  }
  return absl::OkStatus();
}

// The passes of a stage with a micro-batch.
absl::Status check_passes(const std::array<bool, 4>& has, bool has_backward, int stage,
                          int micro_batch) {
  const auto missing = [&](Pass pass) {
    return refused(action_text({pass, stage, micro_batch}), " is missing");
  };
  const auto given = [&](Pass pass) { return has[static_cast<size_t>(pass)]; };
  if (!given(kForward)) return missing(kForward);
  if (!has_backward) return absl::OkStatus();
  const bool has_half = given(kInputGradient) || given(kWeightGradient);
  if (given(kBackward) && has_half) {
    return refused("there is ", action_text({kBackward, stage, micro_batch}), ", and a half of it");
  }
  if (!given(kBackward) && !has_half) return missing(kBackward);
  if (has_half && !given(kInputGradient)) return missing(kInputGradient);
  if (has_half && !given(kWeightGradient)) return missing(kWeightGradient);
  return absl::OkStatus();
}

absl::Status check_complete(const Schedule& schedule) {
  ACCELERATE_RETURN_IF_ERROR(check_ranges(schedule));
  const std::vector<PlacedAction> sorted = sorted_actions(schedule);
  ACCELERATE_RETURN_IF_ERROR(check_once(sorted));
  const bool has_backward = has_backward_passes(schedule);
  auto next = sorted.begin();
  // Ends at the first one that is missing, however many a table says that there are.
  for (int stage = 0; stage < schedule.stages; ++stage) {
    for (int micro_batch = 0; micro_batch < schedule.micro_batches; ++micro_batch) {
      std::array<bool, 4> has = {};
      for (; next != sorted.end() && next->action.stage == stage &&
             next->action.micro_batch == micro_batch;
           ++next) {
        has[static_cast<size_t>(next->action.pass)] = true;
      }
      ACCELERATE_RETURN_IF_ERROR(check_passes(has, has_backward, stage, micro_batch));
    }
  }
  return absl::OkStatus();
}

// The walk through a schedule that has each action once.
class Walk {
 public:
  explicit Walk(const Schedule& schedule)
      : schedule_(schedule), index_(schedule), next_(schedule.ranks.size()) {}

  absl::StatusOr<std::vector<ActionPlace>> run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t rank = 0; rank < next_.size(); ++rank) {
        for (; !is_done(rank) && !missing_need(rank); ++next_[rank]) {
          order_.push_back({rank, next_[rank]});
          moved = true;
        }
      }
    }
    for (size_t rank = 0; rank < next_.size(); ++rank) {
      if (!is_done(rank)) return waiting_in_a_circle(rank);
    }
    return std::move(order_);
  }

 private:
  bool is_done(size_t rank) const { return next_[rank] == schedule_.ranks[rank].size(); }
  const Action& next_action(size_t rank) const { return schedule_.ranks[rank][next_[rank]]; }

  // What the rank's next action still needs.
  std::optional<ActionPlace> missing_need(size_t rank) const {
    for (const ActionPlace& need : index_.needs(next_action(rank))) {
      if (need.index >= next_[need.rank]) return need;
    }
    return std::nullopt;
  }

  // From a rank that waits to the rank that it waits for, until one comes again.
  absl::Status waiting_in_a_circle(size_t rank) const {
    std::vector<size_t> path;
    while (std::ranges::find(path, rank) == path.end()) {
      path.push_back(rank);
      rank = missing_need(rank)->rank;
    }
    path.erase(path.begin(), std::ranges::find(path, rank));
    std::string text;
    for (const size_t each : path) {
      const ActionPlace need = *missing_need(each);
      absl::StrAppend(
          &text, text.empty() ? "" : "; ", "rank ", each, " waits before ",
          action_text(next_action(each)), " for ", action_text(action_at(schedule_, need)),
          need.rank == each ? ", which it has later" : absl::StrCat(" of rank ", need.rank));
    }
    return path.size() == 1 ? refused(text) : refused("ranks wait for each other: ", text);
  }

  const Schedule& schedule_;
  const ActionIndex index_;
  std::vector<size_t> next_;
  std::vector<ActionPlace> order_;
};

// What a rank keeps behind each of its actions.
std::vector<int64_t> kept(const std::vector<Action>& actions,
                          absl::Span<const int64_t> stage_sizes) {
  std::vector<int64_t> kept;
  int64_t now = 0;
  for (const auto& [pass, stage, micro_batch] : actions) {
    const int64_t size = stage_sizes.empty() ? 1 : stage_sizes[static_cast<size_t>(stage)];
    if (pass == kForward) now += size;
    if (pass == kBackward || pass == kWeightGradient) now -= size;
    kept.push_back(now);
  }
  return kept;
}

}  // namespace

bool has_backward_passes(const Schedule& schedule) {
  return std::ranges::any_of(schedule.ranks, [](const auto& actions) {
    return std::ranges::any_of(actions, [](const Action& each) { return each.pass != kForward; });
  });
}

absl::Status check_schedule(const Schedule& schedule) { return causal_order(schedule).status(); }

absl::StatusOr<std::vector<ActionPlace>> causal_order(const Schedule& schedule) {
  ACCELERATE_RETURN_IF_ERROR(check_complete(schedule));
  return Walk(schedule).run();
}

std::vector<int64_t> most_in_flight(const Schedule& schedule,
                                    absl::Span<const int64_t> stage_sizes) {
  std::vector<int64_t> most(schedule.ranks.size());
  if (!has_backward_passes(schedule)) return most;
  for (size_t rank = 0; rank < most.size(); ++rank) {
    most[rank] = std::ranges::max(kept(schedule.ranks[rank], stage_sizes));
  }
  return most;
}

absl::Status check_in_flight(const Schedule& schedule, int64_t limit,
                             absl::Span<const int64_t> stage_sizes) {
  ACCELERATE_RETURN_IF_ERROR(check_schedule(schedule));
  if (!has_backward_passes(schedule)) return absl::OkStatus();
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    const std::vector<int64_t> each = kept(schedule.ranks[rank], stage_sizes);
    const auto beyond = std::ranges::find_if(each, [&](int64_t now) { return now > limit; });
    if (beyond == each.end()) continue;
    const Action& action = schedule.ranks[rank][static_cast<size_t>(beyond - each.begin())];
    return refused("rank ", rank, " keeps ", *beyond, " for backward passes from ",
                   action_text(action), " on, more than ", limit);
  }
  return absl::OkStatus();
}

}  // namespace accelerate::pipeline
