#include "accelerate/optim/accelerated_scheduler.h"

#include <string>

#include <c10/util/Exception.h>
#include <torch/optim/schedulers/lr_scheduler.h>

#include "accelerate/comm/objects.h"

namespace accelerate {

AcceleratedScheduler::AcceleratedScheduler(torch::optim::LRScheduler& scheduler,
                                           const GradientState& gradient_state,
                                           SchedulerPolicy policy)
    : shared_(std::make_shared<Shared>(Shared{.scheduler = &scheduler})),
      gradient_state_(&gradient_state),
      policy_(policy) {}

void AcceleratedScheduler::step() {
  TORCH_CHECK(shared_ != nullptr, "this prepared scheduler was freed");
  if (!policy_.step_with_optimizer) return shared_->step();
  if (!gradient_state_->sync_gradients() && !gradient_state_->adjust_scheduler()) return;
  const int steps = policy_.split_batches ? 1 : policy_.num_processes;
  for (int i = 0; i < steps; ++i) shared_->step();
}

void AcceleratedScheduler::Shared::step() {
  scheduler->step();
  ++steps;
}

void AcceleratedScheduler::Shared::catch_up(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                            int source) {
  const int64_t target = std::stoll(broadcast_bytes(group, std::to_string(steps), source));
  while (steps < target) step();
}

}  // namespace accelerate
