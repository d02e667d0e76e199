/// Whether the replicas of a model, which are equal between steps, are equal.
///
/// Threads: the rank's thread.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "accelerate/comm/process_group.h"
#include "accelerate/parallel/equal_along.h"

namespace accelerate {

struct ModelPlan;

class ReplicaCheck {
 public:
  /// Compares the ranks of a group.
  explicit ReplicaCheck(ProcessGroupPtr group);

  /// Lets ranks compare by themselves where the Runtime does not, as in debug mode. `plan`: of the
  /// model, with the group as that of tokens.
  void compare_by_gathering(const ModelPlan& plan);

  /// Compares the trainable parameters of the ranks, but for ranks of these numbers in the group,
  /// whose data has ended (`ended`). `is_collective`: whether all ranks of the group call this at
  /// the same place among their collectives, so that they may compare by themselves.
  /// Errors: those of Runtime::check_replicas and of compare_by_gathering.
  void check(const std::vector<std::pair<std::string, at::Tensor>>& parameters,
             const std::vector<int>& ended, bool is_collective) const;

 private:
  const ProcessGroupPtr group_;
  const std::string name_;
  std::optional<RanksAlong> gathering_;
};

}  // namespace accelerate
