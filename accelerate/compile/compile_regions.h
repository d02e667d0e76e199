/// Compiled forms of models, without an Accelerator, and questions about those that there are.
///
///     auto model = compile_regions(net, {.backend = DynamoBackend::kAotEager});
///     model(x);  // the blocks that net calls by accelerate::block() are regions
///
/// A module is never changed: its handle compiles. So there is one form of a module to give back,
/// whatever extract_model_from_parallel is to keep.
///
/// Local. Errors: c10::ValueError for a plug-in that cannot be followed.
/// Threads: the rank's thread.
/// Mirrors: accelerate utils/other.py, the functions of the same names.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/pimpl.h>

#include "accelerate/base/access.h"
#include "accelerate/compile/regions.h"
#include "accelerate/compile/technique.h"
#include "accelerate/config/dynamo_plugin.h"
#include "accelerate/forward/prepared_model.h"

namespace accelerate {

/// Whether the module is a ModuleList with modules of one class alone, and at least one.
bool is_repeated_blocks(const torch::nn::Module& module);

/// Whether the module, or one below it, is such a list.
bool has_repeated_blocks(const torch::nn::Module& module);

/// The names of the modules that become regions where a model calls them by accelerate::block():
/// the blocks of such lists, and what has none below it beside them; "" is the model itself. In the
/// order of the children.
std::vector<std::string> region_names(const torch::nn::Module& module);

namespace internal {

/// A new model that compiles its blocks, or the whole where it has no repeated ones.
std::shared_ptr<ModelState> compiled_state(std::shared_ptr<torch::nn::Module> module,
                                           TorchDynamoPlugin plugin);
/// Lets the model compile its blocks from now on, inside of all of its techniques.
void compile_in_place(ModelState& model, TorchDynamoPlugin plugin);

}  // namespace internal

/// The module's handle, which compiles: its blocks where it has lists of equal ones, else the
/// whole. Without a backend in the plug-in or ACCELERATE_DYNAMO_BACKEND it is INDUCTOR.
template <typename Module>
PreparedModel<Module> compile_regions(std::shared_ptr<Module> module,
                                      TorchDynamoPlugin plugin = {}) {
  auto state = internal::compiled_state(module, std::move(plugin));
  return {std::move(module), std::move(state)};
}
template <typename Module>
PreparedModel<Module> compile_regions(const torch::nn::ModuleHolder<Module>& module,
                                      TorchDynamoPlugin plugin = {}) {
  return compile_regions(module.ptr(), std::move(plugin));
}

/// Prepared models compile from now on, whether ranks divide them by ZeRO or FSDP.
template <typename Module>
void compile_regions_deepspeed(const PreparedModel<Module>& model, TorchDynamoPlugin plugin = {}) {
  internal::compile_in_place(*internal::Access::to(model), std::move(plugin));
}
template <typename Module>
PreparedModel<Module> compile_regions_fsdp2(const PreparedModel<Module>& model,
                                            TorchDynamoPlugin plugin = {}) {
  internal::compile_in_place(*internal::Access::to(model), std::move(plugin));
  return model;
}

/// Whether the model is one region as a whole.
template <typename Module>
bool is_compiled_module(const PreparedModel<Module>& model) {
  const auto* const technique = find_technique<CompileTechnique>(model);
  return technique != nullptr && !technique->is_regional();
}
/// Whether the model, or blocks of it, are regions.
template <typename Module>
bool has_compiled_regions(const PreparedModel<Module>& model) {
  return find_technique<CompileTechnique>(model) != nullptr;
}
/// A bare module runs as it is.
inline bool is_compiled_module(const torch::nn::Module& /*module*/) { return false; }
inline bool has_compiled_regions(const torch::nn::Module& /*module*/) { return false; }

/// The names of the modules that become regions; see region_names.
template <typename Module>
std::vector<std::string> compiled_region_names(const PreparedModel<Module>& model) {
  if (!has_compiled_regions(model)) return {};
  return is_compiled_module(model) ? std::vector<std::string>{""} : region_names(*model);
}

/// What became of the model's regions by now; absent for a model that does not compile.
template <typename Module>
std::optional<CompileReport> compile_report(const PreparedModel<Module>& model) {
  const auto* const technique = find_technique<CompileTechnique>(model);
  return technique == nullptr ? std::nullopt : std::optional(technique->report());
}

}  // namespace accelerate
