#include "accelerate/optim/accelerated_optimizer_state.h"

#include <utility>

#include "accelerate/optim/shared_objects.h"

namespace accelerate::internal {

StateDict accelerated_optimizer_state_dict(SharedOptimizer& optimizer,
                                           const OptimizerStateDictOptions& options) {
  if (!optimizer.moments) return optimizer_state_dict(*optimizer.optimizer, options);
  optimizer.moments->unpack();
  StateDict state = optimizer_state_dict(*optimizer.optimizer, options);
  optimizer.moments->pack();
  return state;
}

void load_accelerated_optimizer_state_dict(SharedOptimizer& optimizer, StateDict state,
                                           const OptimizerStateDictOptions& options) {
  load_optimizer_state(*optimizer.optimizer, std::move(state), options,
                       optimizer.moments != nullptr);
  if (optimizer.moments) optimizer.moments->pack();
  if (optimizer.on_disk) optimizer.on_disk->store();
}

}  // namespace accelerate::internal
