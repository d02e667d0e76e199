/// Groups for a c10d::Reducer whose all-reduces are to be surrounded by something, and the names of
/// backward passes, by which ranks tell them apart.
///
/// The Reducer has no other extension point there: a communication hook could not be removed again.
/// Threads: as the Reducer.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "absl/strings/str_cat.h"
#include "accelerate/comm/process_group.h"
#include "accelerate/comm/watch/collective_call.h"

namespace accelerate::internal {

class ReducerGroup final : public c10d::ProcessGroup {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using AllReduce =
      std::function<WorkPtr(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions&)>;

  /// `all_reduce` makes the all-reduces, on `group` or on another one.
  ReducerGroup(ProcessGroupPtr group, AllReduce all_reduce)
      : c10d::ProcessGroup(group->getRank(), group->getSize()),
        group_(std::move(group)),
        all_reduce_(std::move(all_reduce)) {}

  WorkPtr allreduce(std::vector<at::Tensor>& tensors,
                    const c10d::AllreduceOptions& options) override {
    return all_reduce_(tensors, options);
  }
  /// Used when buckets are rebuilt.
  WorkPtr broadcast(std::vector<at::Tensor>& tensors,
                    const c10d::BroadcastOptions& options) override {
    return group_->broadcast(tensors, options);
  }

 private:
  const ProcessGroupPtr group_;
  const AllReduce all_reduce_;
};

/// Counts the backward passes that are reduced between two steps of the job's prepared optimizers.
/// All-reduces of a second one have a CollectivePurpose, so that their calls differ from those of
/// the next step. If some ranks alone make such a pass, that difference says so, where otherwise
/// gradients of one step would be added to those of another, until one rank waits for the others
/// for ever.
class NamedPasses {
 public:
  /// From here on passes have no names, so that a program that steps without prepared optimizers
  /// makes none.
  static constexpr int64_t kMost = 32;

  /// A pass is prepared behind so many steps. `reduced`: whether the pass that was prepared before
  /// this one, if any, has reduced its gradients. Returns whether the purpose has changed.
  bool prepare(int64_t steps, bool reduced) {
    pass_ = steps_ != steps ? 1 : pass_ + (reduced ? 1 : 0);
    steps_ = steps;
    std::string purpose;
    if (pass_ > 1 && pass_ < kMost) {
      purpose = absl::StrCat("gradients of backward pass ", pass_, " since the last step");
    }
    if (purpose == purpose_) return false;
    purpose_ = std::move(purpose);
    return true;
  }
  /// The prepared pass's; empty if it is the first one since the last step.
  const std::string& purpose() const { return purpose_; }
  /// The group for the prepared pass's all-reduces on `group`, which is itself without a purpose.
  ProcessGroupPtr named(const ProcessGroupPtr& group) const {
    if (purpose_.empty()) return group;
    return c10::make_intrusive<ReducerGroup>(
        group, [group, purpose = purpose_](std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) {
          const CollectivePurpose scope(purpose);
          return group->allreduce(tensors, options);
        });
  }

 private:
  int64_t pass_ = 0;              // since the last step
  std::optional<int64_t> steps_;  // when a pass was last prepared
  std::string purpose_;
};

}  // namespace accelerate::internal
