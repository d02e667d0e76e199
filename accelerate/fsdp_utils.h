/// What programs do with sharded models besides training them: the pieces of FSDP 2's preparation,
/// and models and optimizers that are saved by themselves. See also parallel/sharded/calls.h and
/// parallel/sharded/fsdp2.h.
///
/// Collective. Errors: those of checkpoint/folder/fsdp_objects.h, which has the files' names.
/// Threads: the rank's thread.
/// Mirrors: accelerate utils/fsdp_utils.py.
/// Differs: safetensors in place of PyTorch's formats; `adapter_only` chooses tensors by name,
///          because modules have no adapters here.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include <c10/util/Exception.h>

#include "accelerate/accelerator.h"
#include "accelerate/base/access.h"
#include "accelerate/checkpoint/folder/fsdp_objects.h"
#include "accelerate/config/fsdp_plugin.h"
#include "accelerate/forward/prepared_model.h"
#include "accelerate/optim/accelerated_optimizer.h"
#include "accelerate/parallel/sharded/fsdp2.h"
#include "accelerate/parallel/sharded/sharded.h"
#include "accelerate/tensors/state_dict.h"

namespace accelerate {

struct FsdpModelOptions {
  int64_t model_index = 0;
  /// Those of the model's tensors that are saved or loaded; the others keep what they have. A
  /// rank's own part is loaded as it is. Null: all.
  std::function<bool(const std::string& name)> adapter_only = nullptr;
  /// SHARDED_STATE_DICT: a format that can be loaded under any layout of ranks.
  bool use_dcp = true;
};

struct FsdpOptimizerOptions {
  int64_t optimizer_index = 0;
  bool use_dcp = true;
};

namespace internal {

struct SaverAccess {
  static StateSaver& to(Accelerator& accelerator);
};

FsdpObjectOptions object_options(const FullyShardedDataParallelPlugin& plugin,
                                 Accelerator& accelerator, const FsdpModelOptions& options);
FsdpObjectOptions object_options(const FullyShardedDataParallelPlugin& plugin,
                                 Accelerator& accelerator, const FsdpOptimizerOptions& options);
void apply_ac(Accelerator& accelerator, ModelState& model);

}  // namespace internal

/// Saves the weights of a prepared model in the form that the plugin's state_dict_type names.
template <typename Module>
void save_fsdp_model(const FullyShardedDataParallelPlugin& fsdp_plugin, Accelerator& accelerator,
                     const PreparedModel<Module>& model, const std::string& output_dir,
                     const FsdpModelOptions& options = {}) {
  internal::save_fsdp_model(internal::SaverAccess::to(accelerator), internal::Access::to(model),
                            output_dir,
                            internal::object_options(fsdp_plugin, accelerator, options));
}

/// Loads them, whatever form they were saved in, and under another layout than saved them unless
/// they are ranks' own parts. A folder of save_state serves as well.
template <typename Module>
void load_fsdp_model(const FullyShardedDataParallelPlugin& fsdp_plugin, Accelerator& accelerator,
                     const PreparedModel<Module>& model, const std::string& input_dir,
                     const FsdpModelOptions& options = {}) {
  internal::load_fsdp_model(internal::SaverAccess::to(accelerator), internal::Access::to(model),
                            input_dir, internal::object_options(fsdp_plugin, accelerator, options));
}

/// The same for the state of the prepared optimizer that trains the model.
template <typename Module>
void save_fsdp_optimizer(const FullyShardedDataParallelPlugin& fsdp_plugin,
                         Accelerator& accelerator, const AcceleratedOptimizer& optimizer,
                         const PreparedModel<Module>& model, const std::string& output_dir,
                         const FsdpOptimizerOptions& options = {}) {
  internal::save_fsdp_optimizer(internal::SaverAccess::to(accelerator),
                                *internal::Access::to(optimizer), internal::Access::to(model),
                                output_dir,
                                internal::object_options(fsdp_plugin, accelerator, options));
}
template <typename Module>
void load_fsdp_optimizer(const FullyShardedDataParallelPlugin& fsdp_plugin,
                         Accelerator& accelerator, const AcceleratedOptimizer& optimizer,
                         const PreparedModel<Module>& model, const std::string& input_dir,
                         const FsdpOptimizerOptions& options = {}) {
  internal::load_fsdp_optimizer(internal::SaverAccess::to(accelerator),
                                *internal::Access::to(optimizer), internal::Access::to(model),
                                input_dir,
                                internal::object_options(fsdp_plugin, accelerator, options));
}

/// prepare_model, of a job in FSDP 2. Errors: c10::ValueError in any other job.
template <internal::IsModel Model>
auto fsdp2_prepare_model(Accelerator& accelerator, const Model& model) {
  TORCH_CHECK_VALUE(accelerator.is_fsdp2(),
                    "fsdp2_prepare_model needs an Accelerator whose fsdp_plugin has fsdp_version 2 "
                    "and several ranks");
  return accelerator.prepare_model(model);
}

/// The parts of the prepared model that the plugin's auto_wrap_policy picks, and that the model
/// calls by accelerate::block(), are computed again in backward passes from now on, whether the
/// plugin asks for it or not. Local. Errors: the first pass's, as activation_checkpointing has
/// them; c10::ValueError in a job without a plugin.
template <typename Module>
PreparedModel<Module> fsdp2_apply_ac(Accelerator& accelerator, const PreparedModel<Module>& model) {
  internal::apply_ac(accelerator, *internal::Access::to(model));
  return model;
}

/// Gives a prepared model the values of rank 0's `full_sd`, by name; other ranks' may be empty.
/// They travel in buckets, and a rank keeps its part of each, so no rank but 0 needs memory for
/// them all. Errors: c10::ValueError, on all ranks, naming a parameter or buffer that rank 0's dict
/// does not have, or has with other sizes.
/// Differs: shards on the host, which HF Accelerate needs a flag for, stay there.
template <typename Module>
void fsdp2_load_full_state_dict(Accelerator& accelerator, const PreparedModel<Module>& model,
                                const NamedTensors& full_sd) {
  internal::load_full_state_dict(accelerator.state().group(), *internal::Access::to(model),
                                 full_sd);
}

}  // namespace accelerate
