/// The parts of FSDP 2's preparation that programs call by themselves, under HF Accelerate's names.
/// fsdp_utils.h has those that need an Accelerator.
///
/// Threads: the rank's thread.
/// Mirrors: accelerate utils/fsdp_utils.py; utils/modeling.py.
#pragma once

#include <functional>
#include <unordered_map>

#include <ATen/core/Tensor.h>

#include "accelerate/base/libtorch_fwd.h"
#include "accelerate/config/fsdp_plugin.h"
#include "accelerate/parallel/sharded/sharded.h"
#include "accelerate/tensors/state_dict.h"

namespace accelerate {

/// Whether a parameter of the module is divided among ranks, as those of a prepared model. Local.
bool model_has_dtensor(const torch::nn::Module& module);

/// The function by which the plugin picks units of the model; null where it has no policy. In
/// version 1 a size counts without what is in units inside, which fsdp_units() takes into account
/// and this function does not. `fsdp2_plugin` is resolved. Local.
/// Errors: those of set_auto_wrap_policy.
ModulePolicy fsdp2_prepare_auto_wrap_policy(const FullyShardedDataParallelPlugin& fsdp2_plugin,
                                            const torch::nn::Module& model);

/// What an optimizer trains from now on, by what it trained.
using ParameterMapping = std::unordered_map<const c10::TensorImpl*, at::Tensor>;

/// Puts other parameters into an optimizer's groups. `prepare` does that for its own. Local.
/// Errors: c10::ValueError, with the optimizer unchanged, if a parameter is not in the mapping: it
///         would be trained without an effect.
void fsdp2_switch_optimizer_parameters(torch::optim::Optimizer& optimizer,
                                       const ParameterMapping& mapping);

/// `param_init_fn`, which afterwards checks that each parameter that several modules of the model
/// have is still the same tensor: one that a function registers anew is tied no longer. Local.
/// Errors: the function throws c10::ValueError naming the module and the parameter.
/// Differs: HF Accelerate ties such parameters again; here C++ members of the module would keep the
///          new tensor.
std::function<void(torch::nn::Module&)> ensure_weights_retied(
    std::function<void(torch::nn::Module&)> param_init_fn, const torch::nn::Module& model);

namespace internal {
void load_full_state_dict(const ProcessGroupPtr& job, const ModelState& model,
                          const NamedTensors& full);
}  // namespace internal

}  // namespace accelerate
