/// A user's learning-rate scheduler after `Accelerator::prepare`.
///
/// The unit: one call of `step` per optimizer step, and per call the user's scheduler advances once
/// for each process, because a schedule written for one process counts that process's batches. With
/// `split_batches` the batches are the same ones, and it advances once. While gradients accumulate
/// it stands still, unless GradientAccumulationPlugin::adjust_scheduler says otherwise.
/// Mirrors: accelerate scheduler.py, AcceleratedScheduler.
#pragma once

#include <cstdint>
#include <memory>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "accelerate/state/gradient_state.h"

namespace torch::optim {
class LRScheduler;
}  // namespace torch::optim

namespace accelerate {

struct SchedulerPolicy {
  int num_processes = 1;
  bool split_batches = false;
  /// Off: every call is forwarded as it comes.
  bool step_with_optimizer = true;
};

class AcceleratedScheduler {
 public:
  /// Both references outlive the handle.
  AcceleratedScheduler(torch::optim::LRScheduler& scheduler, const GradientState& gradient_state,
                       SchedulerPolicy policy);

  void step();

  /// The user's scheduler.
  torch::optim::LRScheduler& operator*() const { return *shared_->scheduler; }
  torch::optim::LRScheduler* operator->() const { return shared_->scheduler; }

  /// Whether it was not reset.
  explicit operator bool() const { return shared_ != nullptr; }
  /// Lets go of the scheduler; the handle is of no use afterwards.
  void reset() { shared_.reset(); }

  /// For the library: lives as long as a handle does.
  struct Shared {
    torch::optim::LRScheduler* scheduler = nullptr;
    int64_t steps = 0;

    void step();
    /// Advances to as many steps as rank `source` has. Collective.
    void catch_up(const c10::intrusive_ptr<c10d::ProcessGroup>& group, int source);
  };
  const std::shared_ptr<Shared>& shared() const { return shared_; }

 private:
  std::shared_ptr<Shared> shared_;
  const GradientState* gradient_state_;
  SchedulerPolicy policy_;
};

}  // namespace accelerate
