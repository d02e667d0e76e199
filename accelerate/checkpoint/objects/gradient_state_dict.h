/// The gradients that a model has gathered in the middle of an accumulation window: a rank's own,
/// and part of what it needs to go on exactly.
///
/// A dense gradient has the name of its parameter, as in module_state_dict; a tied parameter the
/// first of its names. A sparse one is `name`.indices and `name`.values, and
/// {"sparse": {name: {"is_coalesced": false}}} is in the values. A parameter without gradient is
/// not there.
/// Threads: the rank's thread. All is local.
/// Mirrors: nothing in the peer, which loses them.
#pragma once

#include "accelerate/tensors/state_dict.h"

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace accelerate {

/// The gradients themselves, detached: a backward pass changes them.
/// Errors: c10::ValueError naming a gradient that is neither dense nor a sparse COO tensor.
StateDict gradient_state_dict(const torch::nn::Module& module);

/// Gives the parameters these gradients, and takes those of the others away. Also under DDP, where
/// the next synchronising backward pass averages them with what it adds. They go to their
/// parameter's device and take its dtype; tensors that nobody else holds are adopted.
/// Errors: c10::ValueError naming what is no parameter of the module, or of another shape; nothing
///         has changed then.
void load_gradient_state_dict(torch::nn::Module& module, StateDict state);

}  // namespace accelerate
