#include "integration_tests/golden/quantization_by_hand.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "integration_tests/golden/device_map_model.h"
#include "integration_tests/golden/fields.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;
using Names = std::vector<std::string>;

bool contains(const Names& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool is_any_in(const Names& texts, const std::string& name) {
  return std::any_of(texts.begin(), texts.end(),
                     [&](const std::string& text) { return absl::StrContains(name, text); });
}

bool is_kind(const json& in, const char* kind) { return string_field(in, "kind") == kind; }

const json& config_of(const json& in) { return field(in, "config"); }

bool flag(const json& in, const char* name) { return config_of(in).value(name, false); }

Names list(const json& in, const char* name) {
  const json given = config_of(in).value(name, json());
  return given.is_null() ? Names() : given.get<Names>();
}

std::string dtype_of_option(const json& value) {
  if (value.is_object()) return value.at("$dtype");
  static const std::map<std::string, std::string> kNames = {
      {"fp32", "float32"}, {"fp16", "float16"}, {"bf16", "bfloat16"}};
  const auto found = kNames.find(value.get<std::string>());
  return found == kNames.end() ? value.get<std::string>() : found->second;
}

// ---- Names in a tree.

using Visit = std::function<void(const std::string& path, const std::string& name, const json&)>;

// Modules below the root, each before what is in it.
void for_each_module(const json& tree, const std::string& path, const Visit& visit) {
  for (const json& child : field(tree, "children")) {
    const std::string name = child.at(0);
    const std::string below = path.empty() ? name : absl::StrCat(path, ".", name);
    visit(below, name, child.at(1));
    for_each_module(child.at(1), below, visit);
  }
}

struct TensorName {
  std::string name;
  std::string dtype;
  bool is_buffer = false;
  bool is_persistent = true;
};

std::vector<TensorName> tensors_of(const json& in) {
  std::vector<TensorName> tensors;
  const auto add = [&](const std::string& path, const json& module) {
    for (const char* kind : {"params", "buffers"}) {
      for (const json& tensor : field(module, kind)) {
        const std::string name = tensor.at(0);
        tensors.push_back(
            {.name = path.empty() ? name : absl::StrCat(path, ".", name),
             .dtype = tensor.at(2),
             .is_buffer = kind == std::string("buffers"),
             .is_persistent = kind == std::string("params") || tensor.at(3).get<bool>()});
      }
    }
  };
  add("", field(in, "model"));
  for_each_module(
      field(in, "model"), "",
      [&](const std::string& path, const std::string&, const json& module) { add(path, module); });
  return tensors;
}

bool is_floating(const std::string& dtype) {
  return absl::StartsWith(dtype, "float") || absl::StartsWith(dtype, "bfloat");
}

// Each tensor of a group by the group's first name.
std::map<std::string, std::string> ties_of(const json& in) {
  std::map<std::string, std::string> firsts;
  for (const json& group : in.value("tied", json::array())) {
    for (const std::string name : group) firsts[name] = group.at(0);
  }
  return firsts;
}

// ---- Which layers.

bool is_base_model(const json& in) {
  const json special = in.value("special", json::object());
  if (!special.contains("base_model_prefix")) return false;
  const json& model = field(in, "model");
  for (const char* kind : {"children", "params", "buffers"}) {
    for (const json& each : field(model, kind)) {
      if (each.at(0) == special["base_model_prefix"]) return false;
    }
  }
  return true;
}

Names keys_to_not_convert(const json& in) {
  Names keys;
  for (const json& group : in.value("tied", json::array())) {
    for (const std::string name : group) keys.push_back(name);
  }
  if (keys.empty() && is_base_model(in)) return {};
  const json& children = field(field(in, "model"), "children");
  if (!children.empty() && !contains(keys, children.back().at(0))) {
    keys.push_back(children.back().at(0));
  }
  for (std::string& key : keys) absl::StrReplaceAll({{".weight", ""}, {".bias", ""}}, &key);
  return keys;
}

// Where there is an accelerator, modules on the CPU are not quantised in 4 bits.
Names offloaded_modules(const json& in) {
  const json& map = field(in, "device_map");
  Names modules;
  if (!map.is_object() || map.size() < 2) return modules;
  const bool has_accelerator = in.value("accelerator", false);
  for (const auto& [name, device] : map.items()) {
    if (device == "disk" || (device == "cpu" && has_accelerator)) modules.push_back(name);
  }
  return modules;
}

Names skip_modules(const json& in) {
  Names skipped = config_of(in).value("skip_modules", json()).is_null() ? keys_to_not_convert(in)
                                                                        : list(in, "skip_modules");
  if (flag(in, "load_in_4bit")) {
    const Names offloaded = offloaded_modules(in);
    skipped.insert(skipped.end(), offloaded.begin(), offloaded.end());
  }
  const Names in_fp32 = list(in, "keep_in_fp32_modules");
  skipped.insert(skipped.end(), in_fp32.begin(), in_fp32.end());
  return skipped;
}

Names layers(const json& in) {
  const Names skipped = skip_modules(in);
  Names replaced;
  for_each_module(field(in, "model"), "",
                  [&](const std::string& path, const std::string& name, const json& module) {
                    if (string_field(module, "class") != "Linear" || contains(skipped, name)) {
                      return;
                    }
                    for (const std::string& each : skipped) {
                      if (path == each || absl::StrContains(path, each + ".")) return;
                    }
                    replaced.push_back(path);
                  });
  return replaced;
}

// ---- Dtypes.

bool stays_in_fp32(const json& in, const std::string& name) {
  const Names in_fp32 = list(in, "keep_in_fp32_modules");
  if (is_kind(in, "quantize")) return is_any_in(in_fp32, name);
  if (remaining_dtype(in) != "float16") return false;
  return std::any_of(in_fp32.begin(), in_fp32.end(), [&](const std::string& each) {
    return name == each || absl::StrContains(name, each + ".");
  });
}

json dtypes_of(const json& in) {
  const std::map<std::string, std::string> ties = ties_of(in);
  const Names quantized = quantized_weights(in);
  std::map<std::string, std::string> by_first;
  const auto first_of = [&](const std::string& name) {
    const auto found = ties.find(name);
    return found == ties.end() ? name : found->second;
  };
  const std::vector<TensorName> tensors = tensors_of(in);
  // Any of its names keeps a tensor in fp32.
  std::set<std::string> in_fp32;
  for (const TensorName& tensor : tensors) {
    if (stays_in_fp32(in, tensor.name)) in_fp32.insert(first_of(tensor.name));
  }
  for (const TensorName& tensor : tensors) {
    std::string& dtype = by_first[first_of(tensor.name)];
    // A model that is loaded keeps its buffers.
    const bool stays = !is_floating(tensor.dtype) || (tensor.is_buffer && is_kind(in, "quantize"));
    dtype = stays                                     ? tensor.dtype
            : in_fp32.contains(first_of(tensor.name)) ? "float32"
            : contains(quantized, tensor.name)
                ? (flag(in, "load_in_4bit") ? compute_dtype(in) : remaining_dtype(in))
                : remaining_dtype(in);
  }
  json dtypes = json::object();
  for (const TensorName& tensor : tensors) {
    if (is_kind(in, "load") && !tensor.is_persistent) continue;
    dtypes[tensor.name] = by_first.at(first_of(tensor.name));
  }
  return dtypes;
}

}  // namespace

std::string compute_dtype(const json& in) {
  return dtype_of_option(config_of(in).value("bnb_4bit_compute_dtype", json("fp16")));
}

std::string remaining_dtype(const json& in) {
  const json given = config_of(in).value("torch_dtype", json());
  if (!given.is_null()) return dtype_of_option(given);
  return flag(in, "load_in_4bit") ? compute_dtype(in) : "float16";
}

json quantized_layers(const json& in) { return layers(in); }

Names quantized_weights(const json& in) {
  Names weights = layers(in);
  for (std::string& each : weights) each += ".weight";
  return weights;
}

json quantize_by_hand(const json& in) {
  const Names replaced = layers(in);
  json out = {{"replaced", replaced}, {"dtypes", dtypes_of(in)}, {"log", json::array()}};
  if (is_kind(in, "quantize")) {
    Names skipped = skip_modules(in);
    std::sort(skipped.begin(), skipped.end());
    out["skip_modules"] = skipped;
    out["keep_in_fp32_modules"] = list(in, "keep_in_fp32_modules");
    for (const char* bits : {"4bit", "8bit"}) {
      out["flags"][absl::StrCat("is_loaded_in_", bits)] =
          flag(in, absl::StrCat("load_in_", bits).c_str());
    }
    out["log"].push_back("a loaded model");
    if (replaced.empty()) out["log"].push_back("no layers");
    if (bool_field(in, "accelerator")) out["log"].push_back("moves from cpu");
    return out;
  }
  const json& map = field(in, "device_map");
  out["devices"] = {"cpu"};
  out["hf_device_map"] = map.is_null() ? json{{"", "cpu"}} : map;
  out["hook_on_root"] = false;
  if (map.is_null()) out["log"].push_back("one device");
  if (replaced.empty()) out["log"].push_back("no layers");
  return out;
}

bool offloads(const json& in, const json& device_map, const std::string& device) {
  const Names skipped = list(in, "skip_modules");
  const Names in_fp32 = list(in, "keep_in_fp32_modules");
  for (const auto& [name, placement] : device_map.items()) {
    if (placement == device && !contains(skipped, name) && !contains(in_fp32, name)) return true;
  }
  return false;
}

json infer_by_hand(const json& in, int first_fault) {
  json special = json::object();
  for (const TensorName& tensor : tensors_of(in)) {
    if (is_any_in(list(in, "skip_modules"), tensor.name)) {
      special[tensor.name] = remaining_dtype(in);
    }
    if (is_any_in(list(in, "keep_in_fp32_modules"), tensor.name)) special[tensor.name] = "float32";
  }
  const json model = {{"model", field(in, "model")}, {"tied", in.value("tied", json::array())}};
  const std::string kind = field(in, "device_map");
  json options = {{"max_memory", field(in, "max_memory")},
                  {"no_split_module_classes", field(in, "no_split_module_classes")},
                  {"dtype", flag(in, "load_in_4bit") ? "int4" : "int8"},
                  {"special_dtypes", std::move(special)},
                  {"low_zero", kind == "balanced_low_0"},
                  {"clean_result", true},
                  {"offload_buffers", false},
                  {"fallback_allocation", false}};
  if (kind != "sequential") {
    options["max_memory"] = balance_by_hand(model, options);
    if (options["max_memory"].is_null()) return nullptr;
  }
  const json placed = place_by_hand(model, options, first_fault);
  if (placed.is_null() || placed.contains("error")) return placed;
  json map = json::object();
  for (const json& entry : placed.at("map")) map[entry.at(0)] = entry.at(1);
  json out = {{"device_map", map}, {"log", json::array()}};
  if (!offloads(in, map, "cpu") && !offloads(in, map, "disk")) return out;
  if (!flag(in, "load_in_4bit")) {
    out["log"].push_back("offloads");
    return out;
  }
  return {{"error",
           {{"type", "ValueError"},
            {"message", "Some modules are dispatched on the CPU or the disk."}}},
          {"log", json::array()}};
}

}  // namespace accelerate::golden
