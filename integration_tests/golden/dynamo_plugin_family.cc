// The options of torch.compile, the names of compilers, and which modules of a model become
// regions.
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/module.h>

#include "accelerate/accelerate.h"
#include "accelerate/compile/technique.h"
#include "accelerate/values/module_class.h"
#include "accelerate/values/texts.h"
#include "integration_tests/golden/answers.h"
#include "integration_tests/golden/family.h"
#include "integration_tests/golden/fields.h"
#include "integration_tests/golden/torch_trees.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;
using torch::nn::Module;
using Handle = PreparedModel<Module>;

// ---- The plugin and its names.

TorchDynamoPlugin plugin_of(const json& kwargs) {
  TorchDynamoPlugin plugin;
  for (const auto& [name, value] : kwargs.items()) {
    if (name == "backend") {
      plugin.backend = value.get<std::string>();
    } else if (name == "mode") {
      plugin.mode = value.get<std::string>();
    } else if (name == "fullgraph") {
      plugin.fullgraph = value.get<bool>();
    } else if (name == "dynamic") {
      plugin.dynamic = value.get<bool>();
    } else if (name == "options") {
      plugin.options = nlohmann::ordered_json(value);
    } else if (name == "disable") {
      plugin.disable = value.get<bool>();
    } else if (name == "use_regional_compilation") {
      plugin.use_regional_compilation = value.get<bool>();
    } else {
      throw CaseError("kwargs: unknown " + name);
    }
  }
  return plugin;
}

json fields_of(const TorchDynamoPlugin& plugin) {
  json fields(to_dict(plugin));
  fields["backend"] = {{"$enum", std::string("DynamoBackend.") + to_string(backend_of(plugin))}};
  return fields;
}

json run_plugin(const json& in) {
  expect_fields(in, {"kind", "env", "kwargs"});
  const TorchDynamoPlugin plugin = resolve(plugin_of(field(in, "kwargs")), environment_of(in));
  return {{"fields", fields_of(plugin)},
          {"to_dict", json(to_dict(plugin))},
          {"to_kwargs", json(to_kwargs(plugin))}};
}

json run_backend(const json& in) {
  expect_fields(in, {"kind", "name"});
  const std::string name = string_field(in, "name");
  json out = part([&]() -> json {
    const std::string text = to_string(from_string<DynamoBackend>(name));
    return {{"value", text}, {"text", text}};
  });
  out["contained"] = contains<DynamoBackend>(name);
  return out;
}

json run_backends(const json& in) {
  expect_fields(in, {"kind"});
  json names = json::array();
  for (const DynamoBackend backend : values<DynamoBackend>()) names.push_back(to_string(backend));
  return {{"names", std::move(names)}};
}

// The answer of one rank with the case's variables.
json ask_rank(const json& in, const std::function<json()>& make) {
  return ask_ranks(1,
                   [&](int /*rank*/) {
                     for (const auto& [name, value] : field(in, "env").items()) {
                       Runtime::current().environment().set(name, value.get<std::string>());
                     }
                     return make();
                   })
      .front();
}

json run_accelerator(const json& in) {
  expect_fields(in, {"kind", "env", "dynamo_backend", "dynamo_plugin"});
  return ask_rank(in, [&]() -> json {
    AcceleratorOptions options;
    if (const json& backend = field(in, "dynamo_backend"); !backend.is_null()) {
      options.dynamo_backend = backend.get<std::string>();
    }
    if (const json& plugin = field(in, "dynamo_plugin"); !plugin.is_null()) {
      options.dynamo_plugin = plugin_of(plugin);
    }
    const Accelerator accelerator(std::move(options));
    return {{"fields", fields_of(AcceleratorState::get().dynamo_plugin())}};
  });
}

// ---- Models.

// A module that holds the model.
json held(const json& model) {
  return {{"class", "DataParallel"},
          {"params", json::array()},
          {"buffers", json::array()},
          {"children", json::array({json::array({"module", model})})}};
}

// Only handles are compiled, so that none can be a part of a module.
void check_compiles(const json& in, bool is_wrapped) {
  for (const json& path : field(in, "compile")) {
    if (path != "" || is_wrapped) throw DoesNotCompile();
  }
}

const TorchDynamoPlugin& eager() {
  static const TorchDynamoPlugin plugin = {.backend = DynamoBackend::kEager};
  return plugin;
}

// The module as one region.
Handle compiled_whole(const std::shared_ptr<Module>& module) {
  auto state = std::make_shared<ModelState>(module);
  Techniques techniques;
  techniques.push_back(std::make_unique<CompileTechnique>(module, eager()));
  state->set_techniques(std::move(techniques));
  return {module, std::move(state)};
}

json names_of(const Module& module) {
  json names = json::array();
  for (const auto& item : module.named_parameters()) names.push_back(item.key());
  return names;
}

json run_inspect(const json& in) {
  expect_fields(in, {"kind", "model", "compile", "wrap"});
  const json& wrap = field(in, "wrap");
  check_compiles(in, !wrap.empty());
  json tree = field(in, "model");
  std::optional<Handle> handle;
  std::shared_ptr<Module> module;
  for (const json& each : wrap) {
    if (each == "DataParallel") tree = held(tree);
  }
  module = torch_module_of(tree, nullptr, nullptr);
  for (const json& each : wrap) {
    if (each == "compile") {
      handle = compiled_whole(module);
    } else if (each == "compile_regions") {
      handle = compile_regions(module, eager());
    } else if (each != "DataParallel") {
      throw CaseError("wrap: unknown " + each.dump());
    }
  }
  if (!field(in, "compile").empty()) handle = compiled_whole(module);
  return {
      {"is_compiled_module", handle ? is_compiled_module(*handle) : is_compiled_module(*module)},
      {"has_compiled_regions",
       handle ? has_compiled_regions(*handle) : has_compiled_regions(*module)},
      {"is_repeated_blocks", is_repeated_blocks(*module)},
      {"has_repeated_blocks", has_repeated_blocks(*module)}};
}

json run_compile_regions(const json& in) {
  expect_fields(in, {"kind", "model", "function", "compile"});
  check_compiles(in, true);
  const auto module = torch_module_of(field(in, "model"), nullptr, nullptr);
  const std::vector<at::Tensor> before = module->parameters();
  const json names = names_of(*module);
  const std::string function = string_field(in, "function");
  if (function == "compile_regions") {
    const Handle handle = compile_regions(module, eager());
    const std::vector<at::Tensor> after = handle->parameters();
    bool is_same = before.size() == after.size();
    for (size_t i = 0; is_same && i < before.size(); ++i) is_same = before[i].is_same(after[i]);
    return {{"compiled", compiled_region_names(handle)},
            {"root", module_class_name(*handle)},
            {"keeps_original", handle.module() == module},
            {"same_tensors", is_same},
            {"original_untouched", !has_compiled_regions(*module)},
            {"state_dict", names_of(*handle)}};
  }
  const Handle handle(module, std::make_shared<ModelState>(module));
  bool returns_the_model = false;
  if (function == "compile_regions_fsdp2") {
    returns_the_model = compile_regions_fsdp2(handle, eager()).module() == module;
  } else if (function == "compile_regions_deepspeed") {
    compile_regions_deepspeed(handle, eager());
  } else {
    throw CaseError("function: unknown " + function);
  }
  return {{"compiled_in_place", compiled_region_names(handle)},
          {"returns_the_model", returns_the_model},
          {"state_dict_unchanged", names_of(*module) == names}};
}

// ---- What is given back.

json run_unwrap(const json& in) {
  expect_fields(in, {"kind", "model", "compile", "wrap", "arguments"});
  const json& wrap = field(in, "wrap");
  for (const json& path : field(in, "compile")) {
    if (path != "") throw DoesNotCompile();
  }
  const auto module = torch_module_of(field(in, "model"), nullptr, nullptr);
  Handle handle(module, std::make_shared<ModelState>(module));
  bool is_bare = wrap.empty();
  for (const json& each : wrap) {
    if (each == "compile") {
      handle = compiled_whole(module);
    } else if (each == "compile_regions") {
      handle = compile_regions(module, eager());
    } else if (each != "DataParallel") {
      throw CaseError("wrap: unknown " + each.dump());
    }
  }
  if (!field(in, "compile").empty()) {
    handle = compiled_whole(module);
    is_bare = false;
  }
  ExtractModelOptions options;
  for (const auto& [name, value] : field(in, "arguments").items()) {
    if (name == "keep_torch_compile") {
      options.keep_torch_compile = value.get<bool>();
    } else if (name == "keep_fp32_wrapper") {
      options.keep_fp32_wrapper = value.get<bool>();
    } else if (name == "recursive") {
      options.recursive = value.get<bool>();
    } else {
      throw CaseError("arguments: unknown " + name);
    }
  }
  const std::shared_ptr<Module> back = is_bare ? extract_model_from_parallel(module, options)
                                               : extract_model_from_parallel(handle, options);
  return {{"class", module_class_name(*back)},
          {"compiled", json::array()},
          {"state_dict", names_of(*back)},
          {"is_original", back == module}};
}

json run_prepare(const json& in) {
  expect_fields(in, {"kind", "env", "model", "unwrap"});
  return ask_rank(in, [&]() -> json {
    const auto module = torch_module_of(field(in, "model"), nullptr, nullptr);
    Accelerator accelerator;
    const Handle model = accelerator.prepare_model(module);
    const Handle again = accelerator.prepare_model(module);
    const std::shared_ptr<Module> back = accelerator.unwrap_model(model);
    return {{"class", module_class_name(*model)},
            {"compiled", compiled_region_names(model)},
            {"state_dict", names_of(*model)},
            {"is_original", model.module() == module},
            {"again_is_same",
             find_technique<CompileTechnique>(again) == find_technique<CompileTechnique>(model)},
            {"unwrapped",
             {{"class", module_class_name(*back)},
              {"compiled", json::array()},
              {"is_original", back == module}}}};
  });
}

json run_case(const json& in) {
  static constexpr std::pair<const char*, json (*)(const json&)> kKinds[] = {
      {"plugin", &run_plugin},     {"backend", &run_backend},
      {"backends", &run_backends}, {"accelerator", &run_accelerator},
      {"inspect", &run_inspect},   {"compile_regions", &run_compile_regions},
      {"unwrap", &run_unwrap},     {"prepare", &run_prepare},
  };
  const std::string kind = string_field(in, "kind");
  for (const auto& [known, run] : kKinds) {
    if (kind == known) return run(in);
  }
  // Methods are bound to no object in C++.
  if (kind == "bound_methods") throw DoesNotCompile();
  throw CaseError("unknown kind \"" + kind + "\"");
}

const FamilyRegistration kRegistration("dynamo_plugin", &run_case);

}  // namespace
}  // namespace accelerate::golden
