/// The units of sharding: which of a model's parameters are gathered and reduced together.
///
/// Version 1: the modules that the policy picks, each after those inside it, and the model itself.
/// Version 2 besides: the input embedding, unless it is tied; and, as one unit whose parameters
/// stay from the forward pass to the backward pass, the final norm with the output embedding (and
/// the input embedding before it, if they are tied), because the backward pass begins with them.
/// ModelStructure tells which modules those are. The model's own unit stays as well.
///
/// Modules and parameters are named by their dotted paths; "" is the model.
/// Errors:  c10::ValueError for a class that the model does not have and for a pattern that is not
///          one.
/// Threads: pure functions.
/// Mirrors: accelerate utils/fsdp_utils.py, fsdp2_prepare_model; torch.distributed.fsdp.wrap.
#pragma once

#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include <c10/core/TensorImpl.h>

#include "accelerate/config/fsdp_plugin.h"
#include "accelerate/tensors/state_dict.h"

namespace accelerate {

/// A module of a model; "" is the model itself.
struct NamedModule {
  std::string name;
  const torch::nn::Module* module;
};

struct ShardUnit {
  /// What messages call it: the first module's name, "model" for "".
  std::string name;
  /// One, or those of the end.
  std::vector<std::string> modules;
  /// Whether its parameters are freed after the forward pass.
  bool reshard_after_forward = true;
  /// The parameters of these modules that no unit before has, in the order of a walk; a tied one
  /// under its first name. It may have none.
  std::vector<std::string> parameters;
};

/// Modules that are one unit.
struct ChosenUnit {
  std::vector<NamedModule> modules;
  bool reshard_after_forward = true;
};

/// The modules of a model, each after those inside it; one with several names under its first.
std::vector<NamedModule> modules_bottom_up(const torch::nn::Module& model);

/// These as units: each has the parameters that no unit before it has, but for the ignored ones.
std::vector<ShardUnit> units_of(const torch::nn::Module& model,
                                const std::vector<ChosenUnit>& chosen,
                                const std::unordered_set<const c10::TensorImpl*>& ignored);

/// The units, in their order; the last one is that of the model itself. Parameters of ignored
/// modules are in none. `plugin` is resolved.
std::vector<ShardUnit> fsdp_units(const torch::nn::Module& module,
                                  const FullyShardedDataParallelPlugin& plugin);

/// The modules that the plugin's policy picks, each after those inside it, without the model
/// itself. Mirrors: what fsdp2_prepare_auto_wrap_policy's function is asked.
std::vector<std::string> auto_wrapped_modules(const torch::nn::Module& module,
                                              const FullyShardedDataParallelPlugin& plugin);

/// Whether the policy of a plugin that has one, and that set_auto_wrap_policy has seen, picks the
/// module. Version 1's by size looks at all parameters of the module.
bool picks_unit(const FullyShardedDataParallelPlugin& plugin, const torch::nn::Module& module);

/// The model's final norm: the last child of the base model whose class has "Norm" in its name;
/// nothing if there is none.
std::optional<std::string> find_final_norm(const torch::nn::Module& module);

/// The modules that accelerate::block() computes again in the backward pass, where the plugin asks
/// for it: those that the policy picks; without one all, the model itself included. In the order of
/// a walk. Mirrors: fsdp2_apply_ac.
std::vector<NamedModule> recomputed_modules(const torch::nn::Module& module,
                                            const FullyShardedDataParallelPlugin& plugin);

/// The modules whose whole name the regular expression matches.
std::vector<std::string> modules_that_match(const torch::nn::Module& module,
                                            const std::string& pattern);

/// The modules that the plugin ignores; none for an empty pattern. Errors: also c10::ValueError for
/// one that is not in the model.
std::vector<std::string> ignored_modules(const torch::nn::Module& module,
                                         const FullyShardedDataParallelPlugin& plugin);

/// The parameters of these modules, each once, in the order of a walk.
/// Mirrors: get_parameters_from_modules.
std::vector<std::string> get_parameters_from_modules(const std::vector<std::string>& modules,
                                                     const torch::nn::Module& model);

/// The parameters that mixed precision widens to float32 before they are divided: those that are
/// trained and have another dtype.
std::vector<std::string> parameters_to_widen(const torch::nn::Module& module);
/// What users are told of them.
std::string widening_text(const std::vector<std::string>& parameters);

/// The names without what checkpointing and compiling wrap around modules. Where two are the
/// same then, the later parameter stays, in the place of the first.
/// Mirrors: fsdp2_canonicalize_names.
NamedTensors fsdp2_canonicalize_names(const NamedTensors& parameters);

}  // namespace accelerate
