#include "integration_tests/golden/big_modeling_modules.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include "accelerate/big_model/empty_model.h"
#include "accelerate/big_model/infer_device_map.h"
#include "accelerate/modules/module_tensors.h"
#include "accelerate/modules/tied_parameters.h"
#include "accelerate/runtime/runtime.h"
#include "integration_tests/golden/answers.h"
#include "integration_tests/golden/big_modeling_model.h"
#include "integration_tests/golden/dtypes.h"
#include "integration_tests/golden/fields.h"
#include "integration_tests/golden/module_trees.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;
using torch::nn::Module;

// ---- Names.

json names_of(const NamedTensors& tensors) {
  json names = json::array();
  for (const auto& [name, tensor] : tensors) names.push_back(name);
  return names;
}

// "plain", or what is switched on.
std::string key_of(std::initializer_list<std::pair<bool, const char*>> switches) {
  std::string key;
  for (const auto& [is_on, name] : switches) {
    if (is_on) key += (key.empty() ? "" : " ") + std::string(name);
  }
  return key.empty() ? "plain" : key;
}

json names(const json& in) {
  expect_fields(in, {"kind", "model", "tied", "note"});
  return with_accelerators([&] {
    const std::shared_ptr<Module> model = model_of(in);
    json named = json::object();
    json non_persistent = json::object();
    for (const bool recurse : {true, false}) {
      for (const bool buffers : {true, false}) {
        for (const bool persistent : {true, false}) {
          named[key_of({{buffers, "buffers"}, {recurse, "recurse"}, {persistent, "persistent"}})] =
              names_of(named_module_tensors(*model, {.include_buffers = buffers,
                                                     .recurse = recurse,
                                                     .remove_non_persistent = persistent}));
        }
      }
      for (const bool full : {true, false}) {
        non_persistent[key_of({{recurse, "recurse"}, {full, "full"}})] =
            get_non_persistent_buffers(*model, recurse, full);
      }
    }
    json bottom_up = json::array();
    for (const auto& [name, module] : get_module_children_bottom_up(*model)) {
      bottom_up.push_back(name);
    }
    return json{{"named", std::move(named)},
                {"non_persistent", std::move(non_persistent)},
                {"leaves", get_module_leaves(compute_module_sizes(*model))},
                {"bottom_up", std::move(bottom_up)},
                {"total_buffer_size", bytes_json(compute_module_total_buffer_size(*model))}};
  });
}

json extract(const json& in) {
  expect_fields(in, {"kind", "state_dict", "submodules", "note"});
  NamedTensors state_dict;
  for (const json& name : field(in, "state_dict")) state_dict.emplace_back(name, at::ones({1}));
  return {{"keys", names_of(extract_submodules_state_dict(
                       state_dict, field(in, "submodules").get<std::vector<std::string>>()))}};
}

// ---- Ties.

at::Tensor parameter_of(const Module& model, const std::string& name) {
  for (const auto& item : model.named_parameters()) {
    if (item.key() == name) return item.value();
  }
  throw CaseError("no parameter " + name);
}

// The file has no order of groups.
TiedParameters sorted(TiedParameters groups) {
  std::sort(groups.begin(), groups.end());
  return groups;
}

json tied(const json& in) {
  expect_fields(in, {"kind", "model", "tied", "note"});
  return with_accelerators([&] {
    const std::shared_ptr<Module> model = model_of(in);
    const TiedParameters groups = find_tied_parameters(*model);
    // The same parameters, each with memory of its own.
    json apart = in;
    apart["tied"] = json::array();
    const std::shared_ptr<Module> copy = model_of(apart);
    retie_parameters(*copy, groups);
    return json{{"tied", sorted(groups)}, {"retied", sorted(find_tied_parameters(*copy))}};
  });
}

// ---- One tensor.

c10::Device device_of(const json& device) {
  if (device.is_string()) return c10::Device(device.get<std::string>());
  return {Runtime::current().device().type(), device.get<c10::DeviceIndex>()};
}

json look_at(const Module& model, const std::string& name) {
  const NamedTensors all =
      named_module_tensors(model, {.recurse = true, .remove_duplicate = false});
  json found;
  for (const auto& [each, tensor] : all) {
    if (each != name) continue;
    found = {{"dtype", name_of(tensor.scalar_type())},
             {"shape", tensor.sizes().vec()},
             {"device", device_text(tensor)},
             {"requires_grad", tensor.requires_grad()}};
    if (!tensor.is_meta()) found["data"] = data_of(tensor);
  }
  found["parameter"] = model.named_parameters().contains(name);
  return found;
}

json set_tensor(const json& in) {
  expect_fields(in, {"kind", "model", "tied", "steps", "tied_params_map", "note"});
  return with_accelerators([&] {
    const std::shared_ptr<Module> model = model_of(in);
    const bool has_ties = in.contains("tied") && !in["tied"].empty();
    TiedParamsMap map;
    for (const json& group : in.value("tied", json::array())) {
      map.add(parameter_of(*model, group.at(0)));
    }
    json steps = json::array();
    for (const json& step : field(in, "steps")) {
      expect_fields(step, {"name", "device", "dtype", "value"});
      const std::string name = string_field(step, "name");
      SetModuleTensorOptions options;
      if (bool_field_or(in, "tied_params_map", false)) options.tied_params_map = &map;
      if (step.contains("dtype") && !step["dtype"].is_null())
        options.dtype = dtype_of(step["dtype"]);
      if (step.contains("value") && !step["value"].is_null())
        options.value = tensor_of(step["value"]);
      steps.push_back(part([&] {
        set_module_tensor_to_device(*model, name, device_of(field(step, "device")), options);
        json found = look_at(*model, name);
        if (has_ties) found["shared"] = shared_of(*model);
        return found;
      }));
    }
    return json{{"steps", std::move(steps)}};
  });
}

// ---- Models without memory.

EmptyInit scope_of(const json& in) {
  std::optional<bool> include_buffers;
  if (!field(in, "include_buffers").is_null()) include_buffers = in["include_buffers"];
  const std::string function = string_field(in, "function");
  if (function == "init_empty_weights") return init_empty_weights(include_buffers);
  if (function == "init_on_device") {
    return init_on_device(device_of(field(in, "device")), include_buffers);
  }
  throw CaseError("unknown function " + function);
}

json on_meta(const Module& model) {
  json names = json::array();
  for (const auto& [name, tensor] : named_module_tensors(model, {.recurse = true})) {
    if (tensor.is_meta()) names.push_back(name);
  }
  return names;
}

bool keeps_dtypes(const Module& model, const json& tree, const std::string& prefix = "") {
  for (const char* kind : {"params", "buffers"}) {
    for (const json& tensor : field(tree, kind)) {
      const json found = look_at(model, prefix + tensor.at(0).get<std::string>());
      if (found.at("dtype") != tensor.at(2)) return false;
    }
  }
  for (const json& child : field(tree, "children")) {
    if (!keeps_dtypes(model, child.at(1), prefix + child.at(0).get<std::string>() + ".")) {
      return false;
    }
  }
  return true;
}

json init(const json& in) {
  expect_fields(in,
                {"kind", "model", "tied", "function", "include_buffers", "env", "device", "note"});
  Environment environment;
  for (const auto& [name, value] : field(in, "env").items()) {
    environment.set(name, value.get<std::string>());
  }
  const auto make = [&] {
    std::shared_ptr<Module> model;
    {
      const EmptyInit empty = scope_of(in);
      model = model_of(in, /*is_filled=*/false);
    }
    return json{{"meta", on_meta(*model)},
                {"dtypes_kept", keeps_dtypes(*model, field(in, "model"))},
                {"after", on_meta(*model_of(in, /*is_filled=*/false))}};
  };
  return with_accelerators(make, environment);
}

}  // namespace

std::optional<json> run_big_modeling_modules(const json& in) {
  const std::string kind = string_field(in, "kind");
  if (kind == "names") return names(in);
  if (kind == "extract") return extract(in);
  if (kind == "tied") return tied(in);
  if (kind == "set_tensor") return set_tensor(in);
  if (kind == "init") return init(in);
  return std::nullopt;
}

}  // namespace accelerate::golden
