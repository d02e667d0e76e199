#include "accelerate/checkpoint/objects/checkpoint_objects.h"

#include "accelerate/modules/module_state_dict.h"
#include "accelerate/optim/optimizer_state_dict.h"

namespace accelerate::internal {

CheckpointedObject checkpointed(torch::nn::Module& module) {
  return {.state_dict = [&module] { return StateDict{.tensors = module_state_dict(module)}; },
          .load_state_dict =
              [&module](const StateDict& state) { load_module_state_dict(module, state.tensors); }};
}

CheckpointedObject checkpointed(torch::optim::Optimizer& optimizer) {
  return {
      .state_dict = [&optimizer] { return optimizer_state_dict(optimizer); },
      .load_state_dict =
          [&optimizer](const StateDict& state) { load_optimizer_state_dict(optimizer, state); }};
}

}  // namespace accelerate::internal
