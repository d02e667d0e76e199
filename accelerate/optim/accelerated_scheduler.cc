#include "accelerate/optim/accelerated_scheduler.h"

#include <torch/optim/schedulers/lr_scheduler.h>

namespace accelerate {

AcceleratedScheduler::AcceleratedScheduler(torch::optim::LRScheduler& scheduler,
                                           const GradientState& gradient_state,
                                           SchedulerPolicy policy)
    : scheduler_(&scheduler), gradient_state_(&gradient_state), policy_(policy) {}

void AcceleratedScheduler::step() {
  if (!policy_.step_with_optimizer) return scheduler_->step();
  if (!gradient_state_->sync_gradients()) return;
  const int steps = policy_.split_batches ? 1 : policy_.num_processes;
  for (int i = 0; i < steps; ++i) scheduler_->step();
}

}  // namespace accelerate
