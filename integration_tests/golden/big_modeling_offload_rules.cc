#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "integration_tests/golden/big_modeling_model.h"
#include "integration_tests/golden/device_map_model.h"
#include "integration_tests/golden/dtypes.h"
#include "integration_tests/golden/errors.h"
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

bool lacks_metadata(const json& file) {
  return file.is_object() && file.contains("metadata") && file["metadata"].is_null();
}

bool has_no_metadata(const json& in) {
  if (is_kind(in, "load_file")) return lacks_metadata(field(in, "file"));
  if (!is_kind(in, "load_checkpoint")) return false;
  const json& files = field(in, "files");
  return std::any_of(files.begin(), files.end(), &lacks_metadata);
}

// The warning has the format that is taken in quotes.
void say_nothing(const json& /*in*/, json& out) {
  if (!out.contains("log")) return;
  std::erase_if(out["log"].get_ref<json::array_t&>(),
                [](const json& name) { return name == "pt"; });
}

bool loads_by_a_map(const json& in) {
  return is_kind(in, "load_checkpoint") &&
         !field(in, "options").value("device_map", json()).is_null();
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

void collect_state(const json& tree, const std::string& prefix, std::vector<std::string>& names) {
  for (const json& tensor : field(tree, "params")) {
    names.push_back(prefix + tensor.at(0).get<std::string>());
  }
  for (const json& tensor : field(tree, "buffers")) {
    if (tensor.at(3).get<bool>()) names.push_back(prefix + tensor.at(0).get<std::string>());
  }
  for (const json& child : field(tree, "children")) {
    collect_state(child.at(1), prefix + child.at(0).get<std::string>() + ".", names);
  }
}

// Parameters and persistent buffers.
std::vector<std::string> names_in_state(const json& in) {
  std::vector<std::string> names;
  collect_state(field(in, "model"), "", names);
  return names;
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
  if (!loads_by_a_map(in) || !bool_field(in, "offload_folder")) return false;
  const json& map = in["options"]["device_map"];
  return map.is_object() && !map.empty() &&
         std::all_of(map.begin(), map.end(), [](const json& place) { return place == "disk"; });
}

// The bytes of a tensor; values of the cases are exact in every dtype.
std::string bytes_of(const json& tensor) {
  const at::Tensor values = tensor_of(tensor).contiguous();
  return {static_cast<const char*>(values.const_data_ptr()), values.nbytes()};
}

bool is_floating(const json& dtype) {
  const std::string name = dtype.get<std::string>();
  return name.starts_with("float") || name.starts_with("bfloat");
}

// A stored tensor as the options want it.
json loaded(const json& in, const std::string& name, json tensor) {
  const json& options = in["options"];
  if (options.value("dtype", json()).is_null() || !is_floating(tensor["dtype"])) return tensor;
  const std::string wanted = name_of(dtype_of(options["dtype"]));
  for (const json& each : options.value("keep_in_fp32_modules", json::array())) {
    const std::string kept = each;
    const bool is_kept = name == kept || absl::StrContains(name, kept + ".");
    if (is_kept && wanted == "float16") return tensor;
  }
  tensor["dtype"] = wanted;
  return tensor;
}

void put_all_on_the_disk(const json& in, json& out) {
  if (!out.contains("error") || out["error"].value("type", "") != "SafetensorError") return;
  std::vector<std::string> parameters, buffers;
  collect_names(field(in, "model"), "params", "", parameters);
  collect_names(in["model"], "buffers", "", buffers);
  const auto stored = stored_tensors(in);
  json tensors = json::object(), index = json::object(), offload = json::object();
  if (bool_field_or(in["options"], "offload_buffers", false)) {
    parameters.insert(parameters.end(), buffers.begin(), buffers.end());
    buffers.clear();
  }
  for (const std::string& name : parameters) {
    const json tensor = loaded(in, name, stored.at(name));
    tensors[name] = {{"dtype", tensor["dtype"]}, {"device", "meta"}};
    index[name] = {{"dtype", tensor["dtype"]}, {"shape", tensor["shape"]}};
    offload[name + ".dat"] = absl::Base64Escape(bytes_of(tensor));
  }
  for (const std::string& name : buffers) {
    // In memory a buffer keeps its dtype, where no other is asked for.
    const bool is_asked = !in["options"].value("dtype", json()).is_null();
    const json tensor = loaded(in, name, stored.at(name));
    tensors[name] = {{"dtype", is_asked ? tensor["dtype"] : json("float32")},
                     {"device", "cpu"},
                     {"data", tensor["data"]}};
  }
  offload["index.json"] = std::move(index);
  out = {{"tensors", std::move(tensors)},
         {"shared", json::array()},
         {"offload", std::move(offload)},
         {"log", json::array()}};
}

// ---- Other files, and what is asked of them.

bool loads(const json& in) { return is_kind(in, "load_checkpoint"); }

// The safetensors that a folder is read from where they come first: one file, or what an index of
// such files names; null without them.
json safe_tensors(const json& files) {
  if (files.contains("model.safetensors")) return field(files["model.safetensors"], "tensors");
  json tensors;
  for (const auto& [name, text] : files.items()) {
    if (!absl::EndsWith(name, ".safetensors.index.json") || !text.is_string()) continue;
    if (!tensors.is_null()) return json();  // several
    const json index = json::parse(text.get<std::string>(), nullptr, /*allow_exceptions=*/false);
    if (!index.is_object()) return json();
    const json shards = index.value("weight_map", index);
    tensors = json::object();
    for (const auto& [tensor, file] : shards.items()) {
      if (!file.is_string() || !files.contains(file.get<std::string>())) return json();
      const json& shard = field(files[file.get<std::string>()], "tensors");
      if (shard.contains(tensor)) tensors[tensor] = shard[tensor];
    }
  }
  return tensors;
}

// A folder with weights in both formats.
bool has_both_formats(const json& in) {
  if (!loads(in) || !string_field(in, "checkpoint").empty()) return false;
  const json& files = field(in, "files");
  return files.contains("pytorch_model.bin") && !safe_tensors(files).is_null();
}

// Where what was recorded is PyTorch's file, it becomes the other.
void prefer_safetensors(const json& in, json& out) {
  if (!out.value("tensors", json()).is_object()) return;
  const json& files = field(in, "files");
  const json& bin = field(files["pytorch_model.bin"], "tensors");
  const json safe = safe_tensors(files);
  for (auto& [name, tensor] : out["tensors"].items()) {
    const bool is_of_bin =
        bin.contains(name) && tensor.contains("data") && tensor["data"] == bin[name]["data"];
    if (is_of_bin && safe.contains(name)) tensor["data"] = safe[name]["data"];
  }
}

bool is_strict_about_missing_names(const json& in) {
  if (!loads(in) || !bool_field_or(field(in, "options"), "strict", false)) return false;
  const auto stored = stored_tensors(in);
  const json tied = in.value("tied", json::array());
  const std::vector<std::string> names = names_in_state(in);
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    const bool is_elsewhere = std::any_of(tied.begin(), tied.end(), [&](const json& group) {
      return std::find(group.begin(), group.end(), json(name)) != group.end() &&
             std::any_of(group.begin(), group.end(), [&](const json& other) {
               return stored.contains(other.get<std::string>());
             });
    });
    return !stored.contains(name) && !is_elsewhere;
  });
}

void refuse_missing_names(const json& /*in*/, json& out) {
  if (out.contains("error")) return;
  out = our_error({"ValueError", "CheckpointError", "Error"}, {"issing"});
  out["tensors"] = nullptr;
  out["shared"] = json::array();
  out["offload"] = nullptr;
  out["log"] = json::array();
}

bool converts_without_a_map(const json& in) {
  return loads(in) && !loads_by_a_map(in) && !field(in, "options").value("dtype", json()).is_null();
}

void convert(const json& in, json& out) {
  if (!out.value("tensors", json()).is_object()) return;
  const auto stored = stored_tensors(in);
  for (auto& [name, tensor] : out["tensors"].items()) {
    const auto found = stored.find(name);
    if (found != stored.end() && tensor.contains("data") && is_floating(tensor["dtype"])) {
      tensor["dtype"] = loaded(in, name, found->second)["dtype"];
    }
  }
}

// Safetensors that say nothing of a format, or name one that HF Accelerate does not know.
bool is_of_another_format(const json& file) {
  if (!file.is_object() || !file.contains("metadata") || !file["metadata"].is_object())
    return false;
  const std::string format = file["metadata"].value("format", "");
  return format != "pt" && format != "tf" && format != "flax" && format != "mlx";
}

bool has_another_format(const json& in) {
  if (is_kind(in, "load_file")) return is_of_another_format(field(in, "file"));
  if (!loads(in)) return false;
  const json& files = field(in, "files");
  return std::any_of(files.begin(), files.end(), &is_of_another_format);
}

std::string device_at(const json& place) {
  if (place.is_number()) return "acc:" + place.dump();
  return place == "disk" ? "cpu" : place.get<std::string>();
}

// The longest entry around a name, as it stands in the map; null: none.
json entry_around(const json& map, std::string name) {
  while (!map.contains(name) && !name.empty()) {
    const size_t dot = name.rfind('.');
    name = dot == std::string::npos ? "" : name.substr(0, dot);
  }
  return map.value(name, json());
}

json read_file_by_hand(const json& in) {
  json tensors = field(in["file"], "tensors");
  const json& map = field(in, "device_map");
  for (auto& [name, tensor] : tensors.items()) {
    // A map with one device is that of all.
    std::set<json> places;
    if (map.is_object()) places.insert(map.begin(), map.end());
    const json place = places.size() == 1 ? *places.begin()
                       : map.is_object()  ? entry_around(map, name)
                                          : json();
    tensor["device"] = place.is_null() ? "cpu" : device_at(place);
  }
  return {{"tensors", std::move(tensors)}, {"log", json::array()}};
}

// The dtypes of a model's tensors by name.
void collect_dtypes(const json& tree, const std::string& prefix, json& dtypes) {
  for (const char* kind : {"params", "buffers"}) {
    for (const json& tensor : field(tree, kind)) {
      dtypes[prefix + tensor.at(0).get<std::string>()] = tensor.at(2);
    }
  }
  for (const json& child : field(tree, "children")) {
    collect_dtypes(child.at(1), prefix + child.at(0).get<std::string>() + ".", dtypes);
  }
}

// A checkpoint that has all of the model, in memory.
void load_by_hand(const json& in, json& out) {
  const json map = in["options"].value("device_map", json());
  const auto stored = stored_tensors(in);
  const std::vector<std::string> names = names_in_state(in);
  json dtypes = json::object(), tensors = json::object();
  collect_dtypes(field(in, "model"), "", dtypes);
  for (const std::string& name : names) {
    const auto found = stored.find(name);
    const json place = map.is_object() ? entry_around(map, name) : json("cpu");
    if (found == stored.end() || place.is_null() || place == "disk") return;
    json tensor = found->second;
    if (is_floating(dtypes[name])) {
      tensor["dtype"] = in["options"].value("dtype", json()).is_null()
                            ? dtypes[name]
                            : loaded(in, name, tensor)["dtype"];
    }
    tensors[name] = {
        {"dtype", tensor["dtype"]}, {"device", device_at(place)}, {"data", tensor["data"]}};
  }
  json others = json::array();
  for (const auto& [name, tensor] : stored) {
    if (!dtypes.contains(name)) others.push_back(name);
  }
  out = {{"tensors", std::move(tensors)},
         {"shared", json::array()},
         {"offload", nullptr},
         {"log", std::move(others)}};
}

void read_it(const json& in, json& out) {
  if (!out.contains("error") || out["error"].value("type", "") != "OSError") return;
  if (is_kind(in, "load_file")) {
    out = read_file_by_hand(in);
  } else if (in.value("tied", json::array()).empty() && !bool_field(in, "offload_folder")) {
    load_by_hand(in, out);
  }
}

// What a file has of a model whose dtype is asked for.
bool converts_what_is_on_the_disk(const json& in) {
  return loads_by_a_map(in) && !in["options"].value("dtype", json()).is_null();
}

void convert_in_files(const json& in, json& out) {
  if (!out.value("offload", json()).is_object() || !out["offload"].contains("index.json")) return;
  const auto stored = stored_tensors(in);
  for (auto& [name, entry] : out["offload"]["index.json"].items()) {
    const auto found = stored.find(name);
    if (found == stored.end() || entry.at("dtype") != found->second.at("dtype")) continue;
    const json tensor = loaded(in, name, found->second);
    if (tensor["dtype"] == entry["dtype"]) continue;
    entry["dtype"] = tensor["dtype"];
    const std::string bytes = bytes_of(tensor);
    // An empty tensor is one byte.
    out["offload"][name + ".dat"] = absl::Base64Escape(bytes.empty() ? std::string(1, 0) : bytes);
  }
}

// A file that is read onto the disk.
bool reads_onto_the_disk(const json& in) {
  if (!is_kind(in, "load_file") || !field(in, "device_map").is_object()) return false;
  const json& map = in["device_map"];
  return !map.empty() &&
         std::all_of(map.begin(), map.end(), [](const json& place) { return place == "disk"; });
}

void read_it_into_memory(const json& in, json& out) {
  if (out.contains("error") && out["error"].value("type", "") == "SafetensorError") {
    out = read_file_by_hand(in);
  }
}

// More bytes than the entry has elements.
bool is_too_long(const json& in) {
  if (!is_kind(in, "load_offloaded")) return false;
  const json& info = field(in, "info");
  std::string bytes;
  if (!info.contains("shape") || !info.contains("dtype") ||
      !absl::Base64Unescape(string_field(in, "file"), &bytes)) {
    return false;
  }
  size_t elements = 1;
  for (const json& dim : info["shape"]) elements *= dim.get<size_t>();
  const std::string name = info["dtype"];
  const std::string bits = name.substr(name.find_first_of("0123456789") == std::string::npos
                                           ? name.size()
                                           : name.find_first_of("0123456789"));
  const size_t width = bits.empty() ? 1 : std::max<size_t>(1, std::stoul(bits) / 8);
  return elements > 0 && bytes.size() > elements * width;
}

void refuse_the_length(const json& /*in*/, json& out) {
  if (!out.contains("error")) out = our_error({"CheckpointError"});
}

// Ties between accelerators and the CPU.
bool ties_across_devices(const json& in) {
  return loads_by_a_map(in) && in.contains("tied") && !in["tied"].empty();
}

// One tensor, on the device of the first name.
void keep_them_tied(const json& in, json& out) {
  if (!out.value("tensors", json()).is_object()) return;
  json& tensors = out["tensors"];
  for (const json& group : in["tied"]) {
    const std::string first = group.at(0);
    std::set<std::string> names, devices;
    for (const std::string name : group) {
      names.insert(name);
      devices.insert(tensors.at(name).at("device").get<std::string>());
    }
    if (devices.size() < 2 || devices.contains("meta")) continue;
    for (const std::string& name : names) tensors[name] = json(tensors[first]);
    const json tie = names;
    if (std::find(out["shared"].begin(), out["shared"].end(), tie) == out["shared"].end()) {
      out["shared"].push_back(tie);
      std::sort(out["shared"].begin(), out["shared"].end());
    }
  }
}

// ---- Balanced memory.

bool balances_a_disk(const json& in) {
  if (!is_kind(in, "balanced") || !field(in, "max_memory").is_array()) return false;
  return std::any_of(in["max_memory"].begin(), in["max_memory"].end(),
                     [](const json& limit) { return limit.at(0) == "disk"; });
}

void leave_the_disk_alone(const json& in, json& out) {
  if (!out.contains("error")) return;
  const json& arguments = field(in, "arguments");
  const json options = {
      {"max_memory", in["max_memory"]},
      {"no_split_module_classes", arguments.value("no_split_module_classes", json())},
      {"dtype", arguments.value("dtype", json())},
      {"special_dtypes", arguments.value("special_dtypes", json())},
      {"low_zero", arguments.value("low_zero", false)}};
  const json model = {{"model", field(in, "model")}, {"tied", in.value("tied", json::array())}};
  out = {{"max_memory", balance_by_hand(model, options)}, {"log", json::array()}};
}

// A machine with Apple's device and others.
bool has_two_kinds_of_devices(const json& in) {
  if (!is_kind(in, "get_max_memory") || !bool_field_or(in, "mps", false)) return false;
  return field(in, "max_memory").is_null() &&
         std::any_of(field(in, "gpus").begin(), in["gpus"].end(),
                     [](const json& free) { return !free.is_null(); });
}

void list_those_of_the_rank(const json& /*in*/, json& out) {
  if (!out.contains("max_memory")) return;
  std::erase_if(out["max_memory"].get_ref<json::array_t&>(),
                [](const json& limit) { return limit.at(0).is_number(); });
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
      {"big_modeling", "folders with both formats",
       "HF Accelerate reads PyTorch's file of a folder that has safetensors as well; ours reads "
       "safetensors first",
       &has_both_formats, &prefer_safetensors},
      {"big_modeling", "names that are missing",
       "HF Accelerate's strict does not find names that the files lack; ours refuses them",
       &is_strict_about_missing_names, &refuse_missing_names},
      {"big_modeling", "dtype without a map", "HF Accelerate ignores it; ours converts",
       &converts_without_a_map, &convert},
      {"big_modeling", "dtype of tensors on the disk",
       "HF Accelerate writes them as the checkpoint has them; ours converts them first",
       &converts_what_is_on_the_disk, &convert_in_files},
      {"big_modeling", "a file onto the disk",
       "HF Accelerate asks the file's reader for a device \"disk\" and fails; ours reads it into "
       "memory",
       &reads_onto_the_disk, &read_it_into_memory},
      {"big_modeling", "safetensors of another format",
       "HF Accelerate refuses files of a format that it does not know; ours reads them, whose "
       "tensors are the same",
       &has_another_format, &read_it},
      {"big_modeling", "files that are longer than their entry",
       "HF Accelerate reads the first elements; ours takes it for damage", &is_too_long,
       &refuse_the_length},
      {"big_modeling", "ties across devices",
       "HF Accelerate loads each name of a tied tensor onto its own device, and the tie is gone; "
       "ours is one tensor, on the first one's",
       &ties_across_devices, &keep_them_tied},
      {"big_modeling", "devices of two kinds",
       "HF Accelerate lists Apple's device beside others; a rank computes on one kind here",
       &has_two_kinds_of_devices, &list_those_of_the_rank},
      {"big_modeling", "balanced memory and disk",
       "HF Accelerate fails where a limit of the disk is given; the disk keeps its limit here",
       &balances_a_disk, &leave_the_disk_alone},
  };
}

}  // namespace accelerate::golden
