#include "accelerate/compile/compile_regions.h"

#include <algorithm>

#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "absl/strings/str_cat.h"
#include "accelerate/compile/backends.h"
#include "accelerate/platform/environment.h"
#include "accelerate/runtime/runtime.h"
#include "accelerate/values/module_class.h"

namespace accelerate {
namespace {

void append_names(const torch::nn::Module& module, const std::string& name,
                  std::vector<std::string>& names) {
  const bool is_list = is_repeated_blocks(module);
  if (!is_list && !has_repeated_blocks(module)) {
    names.push_back(name);
    return;
  }
  for (const auto& child : module.named_children()) {
    const std::string child_name =
        name.empty() ? child.key() : absl::StrCat(name, ".", child.key());
    if (is_list) {
      names.push_back(child_name);
    } else {
      append_names(*child.value(), child_name, names);
    }
  }
}

}  // namespace

bool is_repeated_blocks(const torch::nn::Module& module) {
  if (module_class_name(module) != "ModuleList") return false;
  const auto blocks = module.children();
  return !blocks.empty() && std::ranges::all_of(blocks, [&blocks](const auto& block) {
    return module_class_name(*block) == module_class_name(*blocks.front());
  });
}

bool has_repeated_blocks(const torch::nn::Module& module) {
  return is_repeated_blocks(module) ||
         std::ranges::any_of(module.children(),
                             [](const auto& child) { return has_repeated_blocks(*child); });
}

std::vector<std::string> region_names(const torch::nn::Module& module) {
  std::vector<std::string> names;
  append_names(module, "", names);
  return names;
}

namespace internal {
namespace {

TorchDynamoPlugin resolved(TorchDynamoPlugin plugin) {
  const Runtime* runtime = Runtime::find_current();
  plugin = resolve(std::move(plugin), runtime != nullptr ? runtime->environment() : Environment());
  if (!compiles(plugin) && !plugin.disable) plugin.backend = DynamoBackend::kInductor;
  check(plugin);
  return plugin;
}

}  // namespace

std::shared_ptr<ModelState> compiled_state(std::shared_ptr<torch::nn::Module> module,
                                           TorchDynamoPlugin plugin) {
  TORCH_CHECK_VALUE(module != nullptr, "compile_regions: the module is null");
  plugin = resolved(std::move(plugin));
  plugin.use_regional_compilation = has_repeated_blocks(*module);
  auto state = std::make_shared<ModelState>(module);
  if (!compiles(plugin)) return state;
  Techniques techniques;
  techniques.push_back(std::make_unique<CompileTechnique>(module, plugin));
  state->set_techniques(std::move(techniques));
  return state;
}

void compile_in_place(ModelState& model, TorchDynamoPlugin plugin) {
  plugin = resolved(std::move(plugin));
  plugin.use_regional_compilation =
      has_repeated_blocks(*model.module()) || model.trains_other_tensors();
  if (!compiles(plugin) || model.find_technique<CompileTechnique>() != nullptr) return;
  model.insert_technique(model.techniques().size(),
                         std::make_unique<CompileTechnique>(model.module(), plugin));
}

}  // namespace internal
}  // namespace accelerate
