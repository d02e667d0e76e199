/// An optimizer's state as a StateDict, with PyTorch's names, and back.
///
///   values   {"type": "Adam", "state": {"0": {"step": 3}, ...},
///             "param_groups": [{"lr": 0.001, "betas": [0.9, 0.999], ..., "params": [0, 1]}]}
///   tensors  state.0.exp_avg, state.0.exp_avg_sq, ...
///
/// Parameters are numbered over all groups; one without state (frozen, or never with a gradient) is
/// not in "state". Lists of tensors (LBFGS) are state.0.old_dirs.0, ..., their lengths are values.
/// Infinities and NaN are the strings "inf", "-inf", "nan". This library's fused optimizers have
/// the types of LibTorch's, whose states they share. An optimizer of any other class, also one
/// derived from a known one, is saved by its own `save` and `load`: its archive is the one tensor
/// "archive", and values are {"type": its class's name, "param_groups": [{"params": [0, 1]}]}.
/// Threads: the rank's thread. All is local.
/// Mirrors: torch.optim.Optimizer, state_dict and load_state_dict.
/// Differs: "type" is checked; step counters are integers.
#pragma once

#include <functional>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include "accelerate/tensors/state_dict.h"

namespace accelerate {

struct OptimizerStateDictOptions {
  /// The parameters by name. If each of the optimizer's is among them, groups also have
  /// "param_names"; and if a state that is loaded has such names, its parameters and groups are
  /// found by them, in whatever order they are.
  const NamedTensors& parameters = {};
  /// Whether moments that are loaded are float32 at least, whatever their parameters are, as before
  /// they are kept in few bits.
  bool wide_moments = false;
};

/// The tensors are the optimizer's own, detached: they change with its next step.
/// Errors: c10::ValueError for a tensor that is not strided, and for an optimizer of a class of its
///         own that saves nothing.
StateDict optimizer_state_dict(const torch::optim::Optimizer& optimizer,
                               const OptimizerStateDictOptions& options = {});

/// Replaces the optimizer's options and state. Tensors go to their parameter's device and take its
/// dtype; those on the CPU for parameters there that have the right dtype already, and
/// without other owners, are adopted as they are, so they must be writable memory. Any others are
/// copied.
/// Errors: c10::ValueError naming the group, parameter and field if the state is of another type of
///         optimizer, of other groups, parameters or shapes, lacks something, or has more. The
///         optimizer is unchanged then.
void load_optimizer_state_dict(torch::optim::Optimizer& optimizer, StateDict state,
                               const OptimizerStateDictOptions& options = {});

/// Whether it is one of the optimizers whose states are saved field by field.
bool knows_state_of(const torch::optim::Optimizer& optimizer);

/// Calls `visit` with each tensor that such an optimizer keeps for the parameter, and the name of
/// its field; lists of tensors (LBFGS) are left out. They are the optimizer's own.
void visit_state_tensors(
    const torch::optim::Optimizer& optimizer, const at::Tensor& parameter,
    const std::function<void(const char* field, const at::Tensor& tensor)>& visit);

}  // namespace accelerate
