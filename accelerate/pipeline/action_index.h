/// Where in a schedule an action is, and which other actions it needs.
///
/// Threads: values; constant functions may run at the same time.
#pragma once

#include <cstddef>
#include <vector>

#include "accelerate/pipeline/schedule.h"

namespace accelerate::pipeline {

struct ActionPlace {
  size_t rank = 0;
  size_t index = 0;

  bool operator==(const ActionPlace&) const = default;
};

inline const Action& action_at(const Schedule& schedule, const ActionPlace& place) {
  return schedule.ranks[place.rank][place.index];
}

/// The places in a schedule that has each action once, which check_schedule (check.h) finds out.
class ActionIndex {
 public:
  explicit ActionIndex(const Schedule& schedule);

  /// The places of the actions that this one needs: of a forward pass that of the stage before; of
  /// a backward pass, or its first half, that of the stage behind and the stage's forward pass; of
  /// the second half the first one.
  std::vector<ActionPlace> needs(const Action& action) const;

  /// The place of the forward pass.
  const ActionPlace& forward(int stage, int micro_batch) const {
    return forward_[cell(stage, micro_batch)];
  }
  /// The place of the backward pass or of its first half, in a schedule with backward passes.
  const ActionPlace& gradient(int stage, int micro_batch) const {
    return gradients_[cell(stage, micro_batch)];
  }

 private:
  size_t cell(int stage, int micro_batch) const {
    return static_cast<size_t>(stage) * micro_batches_ + static_cast<size_t>(micro_batch);
  }

  const int stages_;
  const size_t micro_batches_;
  std::vector<ActionPlace> forward_;
  std::vector<ActionPlace> gradients_;
};

}  // namespace accelerate::pipeline
