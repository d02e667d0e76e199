// Decisions about models that are placed and called: hooks of modules there, operators that follow
// parameters here.
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "absl/strings/escaping.h"
#include "integration_tests/golden/big_modeling_model.h"
#include "integration_tests/golden/big_modeling_nets.h"
#include "integration_tests/golden/errors.h"
#include "integration_tests/golden/fields.h"
#include "integration_tests/golden/rules.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;

bool is_dispatch(const json& in) { return string_field(in, "kind") == "dispatch"; }

bool is_by_hooks(const json& in) { return field(in, "function") == "attach_align_device_hook"; }

bool is_placed(const json& in) { return is_dispatch(in) && !is_by_hooks(in); }

void leave_modules_alone(const json& /*in*/, json& out) {
  out.erase("hooks");
  if (!out.contains("steps")) return;
  for (json& step : out["steps"]) step.erase("calls");
}

// ---- Tensors by name, parameters before buffers.

void collect(const json& tree, const char* kind, const std::string& path,
             std::vector<std::string>& names) {
  for (const json& tensor : field(tree, kind))
    names.push_back(path + tensor.at(0).get<std::string>());
  for (const json& child : field(tree, "children")) {
    collect(child.at(1), kind, path + child.at(0).get<std::string>() + ".", names);
  }
}

std::vector<std::string> names_of(const json& in) {
  std::vector<std::string> names;
  collect(field(in, "model"), "params", "", names);
  collect(in["model"], "buffers", "", names);
  return names;
}

// By name, where the lists of an answer have it.
std::map<std::string, std::string> places_in(const json& where) {
  std::map<std::string, std::string> places;
  for (const auto& [place, names] : where.items()) {
    for (const std::string name : names) places[name] = place;
  }
  return places;
}

// The longest entry of the map that is the name or a module around it.
json entry_of(const json& map, std::string name) {
  while (!map.contains(name) && !name.empty()) {
    const size_t dot = name.rfind('.');
    name = dot == std::string::npos ? "" : name.substr(0, dot);
  }
  return map.value(name, json());
}

bool is_in_files(const json& in, const std::string& name) {
  if (in["function"] == "disk_offload") return true;
  const json& map = field(in, "device_map");
  return map.is_object() && entry_of(map, name) == "disk";
}

json plain_forward(const json& in, const json& where) {
  const json& device = in.contains("x_device") ? in["x_device"] : json();
  return {{"output", plain_output(in)},
          {"output_device", device.is_number() ? "acc:" + device.dump() : "cpu"},
          {"as_before", true},
          {"where", where}};
}

// The number of steps before the model is an ordinary one again.
size_t steps_of_handle(const json& in) {
  const json& steps = field(in, "steps");
  const auto removed = std::find(steps.begin(), steps.end(), json("remove"));
  return static_cast<size_t>(removed - steps.begin());
}

// ---- Forward passes.

bool failed_on_devices(const json& step) {
  return step.contains("error") && step["error"].value("type", "") == "torch";
}

// Ties across devices, and parts whose tensors are used without a call of their own.
void bring_what_operators_need(const json& in, json& out) {
  if (!out.contains("steps")) return;
  for (size_t i = 0; i < steps_of_handle(in); ++i) {
    json& step = out["steps"].at(i);
    if (in["steps"][i] == "forward" && failed_on_devices(step)) {
      step = plain_forward(in, out.at("where"));
    }
  }
}

bool has_ties(const json& in) { return is_placed(in) && !field(in, "tied").empty(); }

void keep_ties(const json& in, json& out) {
  if (!out.contains("steps")) return;
  for (size_t i = 0; i < steps_of_handle(in); ++i) {
    json& step = out["steps"].at(i);
    if (step.contains("output")) step["where"] = out.at("where");
  }
}

// ---- A folder that has files already.

bool finds_files(const json& in) { return is_placed(in) && in.contains("offload_before"); }

// The files are the model's own, in place of those that were there.
void write_own_files(const json& in, json& out) {
  if (!out.contains("files") || !out["files"].is_object()) return;
  std::vector<std::string> parameters;
  collect(field(in, "model"), "params", "", parameters);
  const json tensors = plain_tensors(in);
  json index = json::object(), files = json::object();
  for (const std::string& name : parameters) {
    if (!is_in_files(in, name)) continue;
    const at::Tensor values = tensor_of(tensors.at(name)).contiguous();
    index[name] = {{"dtype", tensors[name]["dtype"]}, {"shape", tensors[name]["shape"]}};
    files[name + ".dat"] =
        absl::Base64Escape({static_cast<const char*>(values.const_data_ptr()), values.nbytes()});
  }
  files["index.json"] = std::move(index);
  out["files"] = std::move(files);
  for (size_t i = 0; i < steps_of_handle(in); ++i) {
    if (in["steps"][i] == "forward") out["steps"].at(i) = plain_forward(in, out.at("where"));
  }
}

// A model that is in files as a whole computes on the CPU.
bool is_all_in_files(const json& in) {
  return is_placed(in) && field(in, "device_map") == json{{"", "disk"}} && !in.contains("files") &&
         bool_field(in, "offload_dir");
}

void place_all_in_files(const json& in, json& out) {
  if (!out.contains("error")) return;
  json where = json::object();
  std::vector<std::string> parameters;
  collect(field(in, "model"), "params", "", parameters);
  for (const std::string& name : names_of(in)) {
    const bool is_parameter =
        std::find(parameters.begin(), parameters.end(), name) != parameters.end();
    where[is_parameter ? "meta" : "cpu"].push_back(name);
  }
  out.erase("error");
  out["where"] = where;
  out["shared"] = json::array();
  out["hf_device_map"] = in["device_map"];
  out["files"] = json::object();
  out["steps"] = json::array();
  for (size_t i = 0; i < steps_of_handle(in); ++i) out["steps"].push_back(json::object());
  write_own_files(in, out);
}

// ---- The end.

bool ends(const json& in) {
  return is_placed(in) && steps_of_handle(in) < field(in, "steps").size();
}

void bring_no_more_than_memory(const json& in, json& out) {
  if (!out.contains("steps")) return;
  const std::map<std::string, std::string> places = places_in(out.at("where"));
  json where = json::object();
  for (const std::string& name : names_of(in)) {
    const auto found = places.find(name);
    if (found == places.end()) continue;  // a later name of a tie
    const bool is_offloaded = found->second == "meta";
    where[!is_offloaded ? found->second : is_in_files(in, name) ? "meta" : "cpu"].push_back(name);
  }
  const size_t removed = steps_of_handle(in);
  out["steps"].at(removed)["where"] = where;
  out["steps"][removed]["shared"] = out.at("shared");
  const bool is_ordinary = where.size() == 1 && where.contains("cpu");
  for (size_t i = removed + 1; i < out["steps"].size(); ++i) {
    if (in["steps"][i] != "forward") continue;
    if (is_ordinary) {
      out["steps"][i] = plain_forward(in, where);
    } else {
      out["steps"][i] = {{"error", {{"type", "torch"}, {"message", "devices mixed"}}}};
    }
  }
}

// ---- Hooks without a place to compute.

bool offloads_to_nowhere(const json& in) {
  return is_dispatch(in) && is_by_hooks(in) &&
         bool_field_or(field(in, "options"), "offload", false) &&
         in["options"].value("execution_device", json()).is_null();
}

void refuse_to_offload(const json& /*in*/, json& out) {
  if (out.contains("error")) return;
  out = our_error({"ValueError"}, {"execution device", "execution_device"});
  out["log"] = json::array();
  out["warnings"] = json::array();
}

}  // namespace

std::vector<Decision> big_modeling_dispatch_rules() {
  return {
      {"big_modeling", "operators follow parameters",
       "HF Accelerate attaches hooks to modules; here modules are not changed, and operators "
       "follow "
       "their parameters",
       &is_placed, &leave_modules_alone},
      {"big_modeling", "parts that no hook serves",
       "HF Accelerate's operators fail on tensors that are tied across devices or used without a "
       "call of their module; here they are brought",
       &is_placed, &bring_what_operators_need},
      {"big_modeling", "ties of offloaded tensors",
       "HF Accelerate unties a tensor when the first pass ends; here it stays where it was",
       &has_ties, &keep_ties},
      {"big_modeling", "models in files as a whole",
       "HF Accelerate finds no tensors below the name \"\", and no index; here the whole model is "
       "written",
       &is_all_in_files, &place_all_in_files},
      {"big_modeling", "folders that have files already",
       "HF Accelerate trusts an index that is there, whichever model it is of; here values in "
       "memory take the place of its files",
       &finds_files, &write_own_files},
      {"big_modeling", "the end of a placement",
       "HF Accelerate brings all tensors back to where they were; here what was in files is on "
       "\"meta\", and what was on an accelerator stays there",
       &ends, &bring_no_more_than_memory},
      {"big_modeling", "offloading without an execution device",
       "HF Accelerate fails in the first pass; here the hook is refused", &offloads_to_nowhere,
       &refuse_to_offload},
  };
}

}  // namespace accelerate::golden
