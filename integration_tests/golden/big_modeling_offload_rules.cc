#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "integration_tests/golden/fields.h"
#include "integration_tests/golden/rules.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;

bool is_kind(const json& in, const char* kind) { return string_field(in, "kind") == kind; }

bool has_prefix(const json& in) {
  return is_kind(in, "weights_loader") && !field(in, "prefix").is_null();
}

void count_own_keys(const json& /*in*/, json& out) {
  if (out.contains("keys")) out["length"] = out["keys"].size();
}

bool has_no_metadata(const json& in) {
  return is_kind(in, "load_file") && field(in, "file").contains("metadata") &&
         in["file"]["metadata"].is_null();
}

void say_nothing(const json& /*in*/, json& out) { out["log"] = json::array(); }

bool loads_by_a_map(const json& in) {
  return is_kind(in, "load_checkpoint") && field(in, "options").contains("device_map");
}

// The longest entry that is the name or a module around it.
std::string place_of(const json& map, std::string name) {
  while (!map.contains(name) && !name.empty()) {
    const size_t dot = name.rfind('.');
    name = dot == std::string::npos ? "" : name.substr(0, dot);
  }
  return map.contains(name) && map[name].is_string() ? map[name].get<std::string>() : "";
}

void collect_names(const json& tree, const char* kind, const std::string& prefix,
                   std::vector<std::string>& names) {
  for (const json& tensor : field(tree, kind)) {
    names.push_back(prefix + tensor.at(0).get<std::string>());
  }
  for (const json& child : field(tree, "children")) {
    collect_names(child.at(1), kind, prefix + child.at(0).get<std::string>() + ".", names);
  }
}

// All tensors in the files of the case.
std::map<std::string, json> stored_tensors(const json& in) {
  std::map<std::string, json> stored;
  for (const auto& [name, file] : field(in, "files").items()) {
    if (!file.is_object()) continue;
    for (const auto& [tensor, value] : field(file, "tensors").items()) stored[tensor] = value;
  }
  return stored;
}

bool puts_buffers_on_the_disk(const json& in) {
  if (!loads_by_a_map(in) || bool_field_or(in["options"], "offload_buffers", false)) return false;
  std::vector<std::string> buffers;
  collect_names(field(in, "model"), "buffers", "", buffers);
  for (const std::string& name : buffers) {
    if (place_of(in["options"]["device_map"], name) == "disk") return true;
  }
  return false;
}

void load_buffers(const json& in, json& out) {
  if (out.contains("error")) return;
  std::vector<std::string> buffers;
  collect_names(field(in, "model"), "buffers", "", buffers);
  const auto stored = stored_tensors(in);
  for (const std::string& name : buffers) {
    const auto found = stored.find(name);
    if (found == stored.end() || place_of(in["options"]["device_map"], name) != "disk") continue;
    out["tensors"][name]["data"] = found->second["data"];
  }
}

bool puts_all_on_the_disk(const json& in) {
  return loads_by_a_map(in) && in["options"]["device_map"] == json{{"", "disk"}} &&
         bool_field(in, "offload_folder") && !in["options"].contains("dtype");
}

// The bytes of a list of floats in bfloat16 or float32; values of the cases are exact in both.
std::string bytes_of(const json& tensor) {
  const std::string dtype = string_field(tensor, "dtype");
  if (dtype != "bfloat16" && dtype != "float32") throw CaseError("no bytes of " + dtype);
  std::string bytes;
  for (const json& value : field(tensor, "data")) {
    const float number = value.get<float>();
    char four[4];
    std::memcpy(four, &number, 4);
    bytes.append(dtype == "float32" ? four : four + 2, dtype == "float32" ? 4 : 2);
  }
  return bytes;
}

void put_all_on_the_disk(const json& in, json& out) {
  if (!out.contains("error")) return;
  std::vector<std::string> parameters, buffers;
  collect_names(field(in, "model"), "params", "", parameters);
  collect_names(in["model"], "buffers", "", buffers);
  const auto stored = stored_tensors(in);
  json tensors = json::object(), index = json::object(), offload = json::object();
  for (const std::string& name : parameters) {
    const json& tensor = stored.at(name);
    tensors[name] = {{"dtype", tensor["dtype"]}, {"device", "meta"}};
    index[name] = {{"dtype", tensor["dtype"]}, {"shape", tensor["shape"]}};
    offload[name + ".dat"] = absl::Base64Escape(bytes_of(tensor));
  }
  for (const std::string& name : buffers) {
    tensors[name] = {{"dtype", "float32"}, {"device", "cpu"}, {"data", stored.at(name)["data"]}};
  }
  offload["index.json"] = std::move(index);
  out = {{"tensors", std::move(tensors)},
         {"shared", json::array()},
         {"offload", std::move(offload)},
         {"log", json::array()}};
}

}  // namespace

std::vector<Decision> big_modeling_offload_rules() {
  return {
      {"big_modeling", "length of a prefixed map",
       "HF Accelerate gives the length of the whole map; ours is that of the keys", &has_prefix,
       &count_own_keys},
      {"big_modeling", "files without metadata", "HF Accelerate warns and goes on; ours goes on",
       &has_no_metadata, &say_nothing},
      {"big_modeling", "buffers of modules on the disk",
       "HF Accelerate passes over them unless offload_buffers is set, so that they keep what they "
       "were built with; ours loads them into memory",
       &puts_buffers_on_the_disk, &load_buffers},
      {"big_modeling", "everything on the disk",
       "HF Accelerate asks the file's reader for a device \"disk\" and fails; ours loads as by any "
       "other map",
       &puts_all_on_the_disk, &put_all_on_the_disk},
  };
}

}  // namespace accelerate::golden
