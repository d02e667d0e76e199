/// An optimizer's state on its way to other ranks.
///
/// Mirrors: nothing in the peer, where ranks that joined early keep a state that is behind.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace torch::optim {
class Optimizer;
}  // namespace torch::optim

namespace accelerate {

/// Gives every rank's optimizer the state and options (moments, step counts, learning rates) of
/// rank `source`'s, with tensors on `device`. The parameters are not touched. Collective.
/// Errors: c10::Error if the optimizers are for different parameters.
void broadcast_optimizer_state(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                               torch::optim::Optimizer& optimizer, int source, c10::Device device);

/// Moves the state that the optimizer has (loaded before the model went to its device, say).
/// Without any nothing happens. Local.
void move_optimizer_state(torch::optim::Optimizer& optimizer, c10::Device device);

}  // namespace accelerate
