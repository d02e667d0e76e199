#include "accelerate/parallel/sharded/units.h"

#include <algorithm>
#include <regex>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "accelerate/config/model_structure.h"
#include "accelerate/values/module_class.h"

namespace accelerate {
namespace {

using torch::nn::Module;
using Plugin = FullyShardedDataParallelPlugin;
using Modules = std::unordered_set<const Module*>;

using Named = NamedModule;

std::string joined(const std::string& path, const std::string& name) {
  return path.empty() ? name : absl::StrCat(path, ".", name);
}

// A module with several names comes under its first.
std::vector<Named> walk(const Module& model, bool bottom_up) {
  Modules seen = {&model};
  std::vector<Named> found;
  const auto visit = [&](const auto& self, const Named& root) -> void {
    if (!bottom_up) found.push_back(root);
    for (const auto& child : root.module->named_children()) {
      const Module* module = child.value().get();
      if (seen.insert(module).second) self(self, Named{joined(root.name, child.key()), module});
    }
    if (bottom_up) found.push_back(root);
  };
  visit(visit, Named{"", &model});
  return found;
}

// Each module before those below it.
std::vector<Named> top_down(const Module& model) { return walk(model, /*bottom_up=*/false); }

// Each once.
NamedTensors parameters_of(const Module& module) {
  NamedTensors parameters;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& item : module.named_parameters()) {
    if (item.value().defined() && seen.insert(item.value().unsafeGetTensorImpl()).second) {
      parameters.emplace_back(item.key(), item.value());
    }
  }
  return parameters;
}

int64_t numel_of(const Module& module, const std::unordered_set<const c10::TensorImpl*>& ignored) {
  int64_t numel = 0;
  for (const auto& [name, parameter] : parameters_of(module)) {
    if (!ignored.contains(parameter.unsafeGetTensorImpl())) numel += parameter.numel();
  }
  return numel;
}

bool has_class(const Module& module, const std::vector<std::string>& classes) {
  return std::ranges::count(classes, module_class_name(module)) > 0;
}

// What the plugin leaves alone, with all that is inside.
struct Ignored {
  Modules modules;
  std::unordered_set<const c10::TensorImpl*> parameters;
};

Ignored ignored_of(const Module& model, const Plugin& plugin) {
  Ignored ignored;
  const std::vector<std::string> names = ignored_modules(model, plugin);
  TORCH_CHECK_VALUE(std::ranges::count(names, "") == 0,
                    "ignored_modules has the model itself, so that nothing would be divided");
  for (const Named& each : modules_bottom_up(model)) {
    if (std::ranges::count(names, each.name) == 0) continue;
    for (const Named& inner : modules_bottom_up(*each.module)) ignored.modules.insert(inner.module);
    for (const auto& [name, parameter] : parameters_of(*each.module)) {
      ignored.parameters.insert(parameter.unsafeGetTensorImpl());
    }
  }
  return ignored;
}

bool is_policy(const Plugin& plugin, AutoWrapPolicy policy) {
  const auto* kind = std::get_if<AutoWrapPolicy>(&*plugin.auto_wrap_policy);
  return kind != nullptr && *kind == policy;
}

// The modules that a policy picks, each after those below it.
std::vector<Named> auto_wrapped(const Module& model, const Plugin& plugin, const Ignored& ignored) {
  std::vector<Named> picked;
  if (!plugin.auto_wrap_policy) return picked;
  if (!is_policy(plugin, AutoWrapPolicy::kSizeBasedWrap) || plugin.version() != 1) {
    picked = modules_bottom_up(model);
    std::erase_if(picked, [&](const Named& each) {
      return each.module == &model || ignored.modules.contains(each.module) ||
             !picks_unit(plugin, *each.module);
    });
    return picked;
  }
  // Picks modules that have enough parameters outside of those picked in them. Returns how many
  // parameters are in picked modules.
  Modules seen = {&model};
  const auto wrap_remainders = [&](const auto& self, const Named& root) -> int64_t {
    const int64_t numel = numel_of(*root.module, ignored.parameters);
    const int64_t least = *plugin.min_num_params;
    if (numel < least || has_class(*root.module, {"MultiheadAttention"})) return 0;
    int64_t wrapped = 0;
    for (const auto& child : root.module->named_children()) {
      const Module* module = child.value().get();
      if (ignored.modules.contains(module) || !seen.insert(module).second) continue;
      wrapped += self(self, Named{joined(root.name, child.key()), module});
    }
    if (root.module == &model || numel - wrapped < least ||
        has_class(*root.module, {"ModuleList", "ModuleDict"})) {
      return wrapped;
    }
    picked.push_back(root);
    return numel;
  };
  wrap_remainders(wrap_remainders, Named{"", &model});
  return picked;
}

// With the model's classes looked up.
Plugin for_model(Plugin plugin, const Module& model) {
  plugin.set_auto_wrap_policy(model);
  return plugin;
}

// The two ends of the model, as far as it tells of them.
struct Ends {
  const Module* input = nullptr;
  const Module* output = nullptr;
  bool tied = false;
};

const Module* find(const std::vector<Named>& modules, const std::optional<std::string>& name) {
  if (!name) return nullptr;
  const auto found = std::ranges::find(modules, *name, &Named::name);
  TORCH_CHECK_VALUE(found != modules.end(), "ModelStructure names a module \"", *name,
                    "\", which the model does not have");
  return found->module;
}

at::Tensor weight_of(const Module* module) {
  if (module == nullptr) return {};
  const auto own = module->named_parameters(/*recurse=*/false);
  const at::Tensor* weight = own.find("weight");
  return weight == nullptr ? at::Tensor() : *weight;
}

Ends ends_of(const Module& model, const std::vector<Named>& modules) {
  const auto* structure = dynamic_cast<const ModelStructure*>(&model);
  if (structure == nullptr) return {};
  Ends ends = {.input = find(modules, structure->input_embeddings()),
               .output = find(modules, structure->output_embeddings())};
  const at::Tensor input = weight_of(ends.input), output = weight_of(ends.output);
  ends.tied = input.defined() && input.is_same(output);
  return ends;
}

}  // namespace

std::vector<Named> modules_bottom_up(const Module& model) {
  return walk(model, /*bottom_up=*/true);
}

std::vector<ShardUnit> units_of(const Module& model, const std::vector<ChosenUnit>& chosen,
                                const std::unordered_set<const c10::TensorImpl*>& ignored) {
  std::unordered_map<const c10::TensorImpl*, std::string> first_names;
  for (const auto& [name, parameter] : parameters_of(model)) {
    first_names.emplace(parameter.unsafeGetTensorImpl(), name);
  }
  std::unordered_set<const c10::TensorImpl*> divided = ignored;
  std::vector<ShardUnit> units;
  for (const ChosenUnit& each : chosen) {
    ShardUnit& unit = units.emplace_back();
    const std::string& name = each.modules.front().name;
    unit.name = name.empty() ? "model" : name;
    unit.reshard_after_forward = each.reshard_after_forward;
    for (const Named& member : each.modules) {
      unit.modules.push_back(member.name);
      for (const auto& [own_name, parameter] : parameters_of(*member.module)) {
        if (divided.insert(parameter.unsafeGetTensorImpl()).second) {
          unit.parameters.push_back(first_names.at(parameter.unsafeGetTensorImpl()));
        }
      }
    }
  }
  return units;
}

std::vector<ShardUnit> fsdp_units(const Module& module, const Plugin& given) {
  const Plugin plugin = for_model(given, module);
  const Ignored ignored = ignored_of(module, plugin);
  const std::vector<Named> modules = modules_bottom_up(module);
  std::vector<ChosenUnit> chosen;
  Modules taken;
  const auto add = [&](std::vector<Named> members, bool reshards) {
    for (const Named& member : members) taken.insert(member.module);
    chosen.push_back({std::move(members), reshards});
  };
  const bool reshards = plugin.reshards_after_forward();
  for (const Named& each : auto_wrapped(module, plugin, ignored)) add({each}, reshards);
  if (plugin.version() == 2) {
    const auto is_free = [&](const Module* each) {
      return each != nullptr && each != &module && !taken.contains(each) &&
             !ignored.modules.contains(each);
    };
    const auto named = [&](const Module* each) {
      return *std::ranges::find(modules, each, &Named::module);
    };
    const Ends ends = ends_of(module, modules);
    if (!ends.tied && is_free(ends.input)) add({named(ends.input)}, reshards);
    std::vector<Named> tail;
    const std::optional<std::string> norm = find_final_norm(module);
    const Module* last_norm = norm ? find(modules, norm) : nullptr;
    if (is_free(last_norm)) tail.push_back(named(last_norm));
    const auto add_to_tail = [&](const Module* end) {
      const bool is_there = std::ranges::count(tail, end, &Named::module) > 0;
      if (is_free(end) && !is_there) tail.push_back(named(end));
    };
    if (ends.tied) add_to_tail(ends.input);
    add_to_tail(ends.output);
    if (!tail.empty()) add(tail, /*reshards=*/false);
  }
  add({{"", &module}}, /*reshards=*/false);
  return units_of(module, chosen, ignored.parameters);
}

bool picks_unit(const Plugin& plugin, const Module& module) {
  if (const auto* policy = std::get_if<ModulePolicy>(&*plugin.auto_wrap_policy)) {
    return (*policy)(module);
  }
  if (is_policy(plugin, AutoWrapPolicy::kTransformerBasedWrap)) {
    return has_class(module, *plugin.transformer_cls_names_to_wrap);
  }
  const int64_t numel = numel_of(module, /*ignored=*/{});
  return plugin.version() == 1 ? numel >= *plugin.min_num_params : numel > *plugin.min_num_params;
}

std::vector<std::string> auto_wrapped_modules(const Module& module, const Plugin& given) {
  const Plugin plugin = for_model(given, module);
  const Ignored ignored = ignored_of(module, plugin);
  std::vector<std::string> names;
  for (Named& each : auto_wrapped(module, plugin, ignored)) names.push_back(std::move(each.name));
  return names;
}

std::optional<std::string> find_final_norm(const Module& module) {
  const auto* structure = dynamic_cast<const ModelStructure*>(&module);
  const std::string prefix = structure == nullptr ? "" : structure->base_model_prefix();
  const Module* base = &module;
  const auto children = module.named_children();
  if (!prefix.empty()) {
    const auto* child = children.find(prefix);
    if (child == nullptr) return std::nullopt;
    base = child->get();
  }
  std::optional<std::string> norm;
  for (const auto& child : base->named_children()) {
    if (absl::StrContains(module_class_name(*child.value()), "Norm")) {
      norm = joined(prefix, child.key());
    }
  }
  return norm;
}

std::vector<NamedModule> recomputed_modules(const Module& module, const Plugin& given) {
  const Plugin plugin = for_model(given, module);
  if (!plugin.auto_wrap_policy) return top_down(module);
  Modules picked;
  const Ignored none;
  for (const Named& each : auto_wrapped(module, plugin, none)) picked.insert(each.module);
  std::vector<NamedModule> modules = top_down(module);
  std::erase_if(modules, [&](const Named& each) { return !picked.contains(each.module); });
  return modules;
}

std::vector<std::string> modules_that_match(const Module& module, const std::string& pattern) {
  std::vector<std::string> names;
  try {
    const std::regex expression(pattern);
    for (const Named& each : top_down(module)) {
      if (std::regex_match(each.name, expression)) names.push_back(each.name);
    }
  } catch (const std::regex_error& error) {
    TORCH_CHECK_VALUE(false, "ignored_modules: \"", pattern,
                      "\" is not a regular expression: ", error.what());
  }
  return names;
}

std::vector<std::string> ignored_modules(const Module& module, const Plugin& plugin) {
  std::vector<std::string> names;
  if (!plugin.ignored_modules) return names;
  const std::vector<Named> all = modules_bottom_up(module);
  if (const auto* list =
          std::get_if<std::vector<std::shared_ptr<Module>>>(&*plugin.ignored_modules)) {
    for (const std::shared_ptr<Module>& each : *list) {
      const auto found = std::ranges::find(all, each.get(), &Named::module);
      TORCH_CHECK_VALUE(found != all.end(), "ignored_modules: ",
                        each ? absl::StrCat("a ", module_class_name(*each), " is") : "null is",
                        " not a module of the model");
      names.push_back(found->name);
    }
    return names;
  }
  const std::string& pattern = std::get<std::string>(*plugin.ignored_modules);
  if (!pattern.empty()) names = modules_that_match(module, pattern);
  return names;
}

std::vector<std::string> get_parameters_from_modules(const std::vector<std::string>& modules,
                                                     const Module& model) {
  std::unordered_set<const c10::TensorImpl*> chosen;
  for (const Named& each : modules_bottom_up(model)) {
    if (std::ranges::count(modules, each.name) == 0) continue;
    for (const auto& [name, parameter] : parameters_of(*each.module)) {
      chosen.insert(parameter.unsafeGetTensorImpl());
    }
  }
  std::vector<std::string> names;
  for (const auto& [name, parameter] : parameters_of(model)) {
    if (chosen.contains(parameter.unsafeGetTensorImpl())) names.push_back(name);
  }
  return names;
}

std::vector<std::string> parameters_to_widen(const Module& module) {
  std::vector<std::string> names;
  for (const auto& [name, parameter] : parameters_of(module)) {
    if (parameter.requires_grad() && parameter.scalar_type() != at::kFloat) names.push_back(name);
  }
  return names;
}

std::string widening_text(const std::vector<std::string>& parameters) {
  return absl::StrCat(
      "FSDP upcast of low precision parameters to fp32 (since mixed_precision != 'no') may affect "
      "the precision of model checkpoints. This effects ",
      parameters.size(), " parameters: ['", absl::StrJoin(parameters, "', '"), "']...");
}

NamedTensors fsdp2_canonicalize_names(const NamedTensors& parameters) {
  NamedTensors canonical;
  for (const auto& [given, parameter] : parameters) {
    std::string name = absl::StrReplaceAll(given, {{"._checkpoint_wrapped_module", ""}});
    if (name.starts_with("_orig_mod.")) name = absl::StrReplaceAll(name, {{"_orig_mod.", ""}});
    name = absl::StrReplaceAll(name, {{"._orig_mod", ""}});
    const auto same =
        std::ranges::find(canonical, name, &std::pair<std::string, at::Tensor>::first);
    if (same == canonical.end()) {
      canonical.emplace_back(std::move(name), parameter);
    } else {
      same->second = parameter;
    }
  }
  return canonical;
}

}  // namespace accelerate
