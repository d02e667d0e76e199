#include "integration_tests/golden/module_trees.h"

#include <cstddef>
#include <cstdint>
#include <regex>

#include "integration_tests/golden/fields.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;

void fill(ModuleTree& tree, ModuleTree::Module number, const json& module) {
  for (const char* kind : {"params", "buffers"}) {
    const bool is_buffer = kind == std::string("buffers");
    for (const json& tensor : field(module, kind)) {
      double elements = 1;
      for (const json& dim : tensor.at(1)) elements *= dim.get<double>();
      tree.add_tensor(number, {.name = tensor.at(0),
                               .dtype = tensor.at(2),
                               .elements = elements,
                               .is_buffer = is_buffer,
                               .is_persistent = !is_buffer || tensor.at(3).get<bool>()});
    }
  }
  for (const json& child : field(module, "children")) {
    fill(tree, tree.add_module(number, child.at(0), string_field(child.at(1), "class")),
         child.at(1));
  }
}

std::string device_text(const json& device) {
  return device.is_string() ? device.get<std::string>() : device.dump();
}

}  // namespace

ModuleTree tree_of(const json& model, const json& tied) {
  ModuleTree tree(string_field(model, "class"));
  fill(tree, 0, model);
  for (const json& group : tied) {
    const ModuleTree::Tensor first = tree.find_tensor(group.at(0).get<std::string>());
    for (size_t i = 1; i < group.size(); ++i) {
      const ModuleTree::Tensor later = tree.find_tensor(group[i].get<std::string>());
      if (first < 0 || later < 0) throw CaseError("tied: unknown name in " + group.dump());
      tree.tie(first, later);
    }
  }
  return tree;
}

std::vector<std::string> classes_of(const json& no_split_module_classes) {
  if (no_split_module_classes.is_null()) return {};
  if (no_split_module_classes.is_string()) return {no_split_module_classes.get<std::string>()};
  return no_split_module_classes.get<std::vector<std::string>>();
}

SizeOptions size_options_of(const json& in) {
  SizeOptions options;
  if (in.contains("dtype") && in["dtype"].is_string()) options.dtype = in["dtype"];
  if (in.contains("special_dtypes") && in["special_dtypes"].is_object()) {
    for (const auto& [name, dtype] : in["special_dtypes"].items()) {
      options.special_dtypes[name] = dtype.get<std::string>();
    }
  }
  return options;
}

absl::StatusOr<MaxMemory> limits_of(const json& pairs) {
  if (pairs.is_object()) return parse_max_memory(pairs.dump());
  json object = json::object();
  for (const json& pair : pairs) object[device_text(pair.at(0))] = pair.at(1);
  return parse_max_memory(object.dump());
}

json to_json(const MaxMemory& limits) {
  json pairs = json::array();
  for (const auto& [device, bytes] : limits) pairs.push_back({to_json(device), bytes_json(bytes)});
  return pairs;
}

DeviceMap map_of(const json& map) {
  DeviceMap result;
  const auto set = [&](const std::string& name, const json& device) {
    const auto placement = DevicePlacement::parse(device_text(device));
    if (!placement.ok()) throw CaseError("device: " + device.dump());
    result.set(name, *placement);
  };
  if (map.is_object()) {
    for (const auto& [name, device] : map.items()) set(name, device);
  } else {
    for (const json& pair : map) set(pair.at(0).get<std::string>(), pair.at(1));
  }
  return result;
}

json to_json(const DevicePlacement& device) {
  return device.is_accelerator() ? json(device.index()) : json(device.text());
}

json quoted_names(const json& sentences) {
  static const std::regex kName("'([^']+)'");
  json names = json::array();
  for (const std::string sentence : sentences) {
    for (std::sregex_iterator found(sentence.begin(), sentence.end(), kName), end; found != end;
         ++found) {
      names.push_back((*found)[1].str());
    }
  }
  return names;
}

json bytes_json(double bytes) {
  if (bytes == static_cast<double>(static_cast<int64_t>(bytes))) return static_cast<int64_t>(bytes);
  return bytes;
}

json to_json(const LargestLayer& largest) {
  return json::array({bytes_json(largest.bytes), largest.names});
}

}  // namespace accelerate::golden
