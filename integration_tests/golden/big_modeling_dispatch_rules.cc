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

// All names of the tensor.
std::vector<std::string> names_of_tensor(const json& in, const std::string& name) {
  for (const json& group : field(in, "tied")) {
    if (std::find(group.begin(), group.end(), json(name)) != group.end()) {
      return group.get<std::vector<std::string>>();
    }
  }
  return {name};
}

// A tied tensor that is in memory under another name has nothing in files.
bool is_in_files(const json& in, const std::string& name) {
  if (in["function"] == "disk_offload") return true;
  const json& map = field(in, "device_map");
  const std::vector<std::string> names = names_of_tensor(in, name);
  return map.is_object() && std::all_of(names.begin(), names.end(), [&](const std::string& each) {
           return entry_of(map, each) == "disk";
         });
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

// Whether offloaded modules compute on the CPU.
bool computes_on_the_cpu(const json& in) {
  const json& options = field(in, "options");
  if (options.contains("main_device") && !options["main_device"].is_null()) {
    return options["main_device"] == "cpu";
  }
  const json& map = field(in, "device_map");
  if (map.is_object()) {
    return std::none_of(map.begin(), map.end(), [](const json& each) { return each.is_number(); });
  }
  if (!map.is_null()) return false;
  const json device = options.value("execution_device", json());
  return device.is_null() || device == "cpu";
}

json where_of(const json& in, const std::map<std::string, std::string>& places) {
  json where = json::object();
  for (const std::string& name : names_of(in)) {
    const auto found = places.find(name);
    if (found != places.end()) where[found->second].push_back(name);
  }
  return where;
}

// ---- Moving a placed model, which goes through LibTorch's `to`.

// A module's children come before its own tensors.
void collect_as_moved(const json& tree, const std::string& path, std::vector<std::string>& names) {
  for (const json& child : field(tree, "children")) {
    collect_as_moved(child.at(1), path + child.at(0).get<std::string>() + ".", names);
  }
  for (const char* kind : {"params", "buffers"}) {
    for (const json& tensor : field(tree, kind)) {
      names.push_back(path + tensor.at(0).get<std::string>());
    }
  }
}

// Whether all went to the CPU; those before the first one without values did in any case.
bool move_to_the_cpu(const json& in, std::map<std::string, std::string>& places) {
  std::vector<std::string> names;
  collect_as_moved(field(in, "model"), "", names);
  for (const std::string& name : names) {
    if (places.at(name) != "meta") {
      for (const std::string& each : names_of_tensor(in, name)) places[each] = "cpu";
    } else if (!computes_on_the_cpu(in)) {
      return false;
    }
  }
  return true;
}

// The places of tensors after each step of the handle. `moved`: whether each step succeeded.
std::vector<json> where_after_steps(const json& in, const json& out,
                                    std::vector<bool>* moved = nullptr) {
  std::map<std::string, std::string> places = places_in(out.at("where"));
  std::vector<json> after;
  for (size_t i = 0; i < steps_of_handle(in); ++i) {
    const bool is_done = in["steps"][i] != "move" || move_to_the_cpu(in, places);
    if (moved != nullptr) moved->push_back(is_done);
    after.push_back(where_of(in, places));
  }
  return after;
}

bool moves(const json& in) {
  if (!is_placed(in)) return false;
  const auto end = field(in, "steps").begin() + static_cast<int64_t>(steps_of_handle(in));
  return std::find(in["steps"].begin(), end, json("move")) != end;
}

void move_as_libtorch_does(const json& in, json& out) {
  if (!out.contains("steps")) return;
  std::vector<bool> moved;
  const std::vector<json> after = where_after_steps(in, out, &moved);
  bool has_moved = false;
  for (size_t i = 0; i < after.size(); ++i) {
    json& step = out["steps"].at(i);
    if (in["steps"][i] == "move") {
      has_moved = true;
      const bool failed = step.contains("error");
      if (moved[i] && failed) step = json::object();
      if (!moved[i] && !failed) {
        step = our_error({"Error", "ValueError"}, {"where its values are not in memory"});
      }
    } else if (has_moved && step.contains("output")) {
      step["where"] = after[i];
    }
  }
}

// ---- Forward passes.

bool failed_on_devices(const json& step) {
  return step.contains("error") && step["error"].value("type", "") == "torch";
}

// Ties across devices, and parts whose tensors are used without a call of their own.
void bring_what_operators_need(const json& in, json& out) {
  if (!out.contains("steps")) return;
  const std::vector<json> after = where_after_steps(in, out);
  for (size_t i = 0; i < after.size(); ++i) {
    json& step = out["steps"].at(i);
    if (in["steps"][i] == "forward" && failed_on_devices(step)) {
      step = plain_forward(in, after[i]);
    }
  }
}

bool has_ties(const json& in) { return is_placed(in) && !field(in, "tied").empty(); }

void keep_ties(const json& in, json& out) {
  if (!out.contains("steps")) return;
  const std::vector<json> after = where_after_steps(in, out);
  for (size_t i = 0; i < after.size(); ++i) {
    json& step = out["steps"].at(i);
    if (step.contains("output")) step["where"] = after[i];
  }
}

// ---- A folder that has files already.

bool finds_files(const json& in) { return is_placed(in) && in.contains("offload_before"); }

// The files are the model's own, in place of those that were there under their names.
void write_own_files(const json& in, json& out) {
  if (!out.contains("files") || !out["files"].is_object()) return;
  std::vector<std::string> parameters;
  collect(field(in, "model"), "params", "", parameters);
  const json tensors = plain_tensors(in);
  json index = out["files"].value("index.json", json::object()), files = out["files"];
  for (const std::string& name : parameters) {
    if (!is_in_files(in, name)) continue;
    const at::Tensor values = tensor_of(tensors.at(name)).contiguous();
    index[name] = {{"dtype", tensors[name]["dtype"]}, {"shape", tensors[name]["shape"]}};
    files[name + ".dat"] =
        absl::Base64Escape({static_cast<const char*>(values.const_data_ptr()), values.nbytes()});
  }
  files["index.json"] = std::move(index);
  out["files"] = std::move(files);
  const size_t removed = steps_of_handle(in);
  for (size_t i = 0; i < out["steps"].size(); ++i) {
    json& step = out["steps"][i];
    if (i < removed && in["steps"][i] == "forward") step = plain_forward(in, out.at("where"));
    if (step.contains("values_as_before")) step["values_as_before"] = true;
  }
}

// A model that is in files as a whole computes on the CPU. HF Accelerate fails where the map names
// the model itself, and where a checkpoint is read by such a map.
bool is_all_in_files(const json& in) {
  if (!is_placed(in) || !bool_field(in, "offload_dir")) return false;
  const json& map = field(in, "device_map");
  if (!map.is_object() || map.empty()) return false;
  return std::all_of(map.begin(), map.end(), [](const json& place) { return place == "disk"; }) &&
         (map.contains("") || in.contains("files")) &&
         !bool_field_or(in["options"], "offload_buffers", false);
}

void place_all_in_files(const json& in, json& out) {
  if (!out.contains("error")) return;
  const std::string type = out["error"].value("type", "");
  if (type != "FileNotFoundError" && type != "SafetensorError") return;
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
  const size_t removed = steps_of_handle(in);
  for (size_t i = 0; i < field(in, "steps").size(); ++i) {
    json step = json::object();
    if (i == removed) {
      step = {{"where", where},
              {"hooks", json::object()},
              {"values_as_before", true},
              {"shared", json::array()}};
    } else if (i > removed) {
      step = {{"error", {{"type", "torch"}, {"message", "devices mixed"}}}};
    }
    out["steps"].push_back(std::move(step));
  }
  write_own_files(in, out);
}

// ---- The end.

bool ends(const json& in) {
  return is_placed(in) && steps_of_handle(in) < field(in, "steps").size();
}

// Where HF Accelerate has an offloaded tensor afterwards: where the next entry around its own has
// put it, if that is on an accelerator, else where it was at first, which is "meta" for what a
// checkpoint had left in files.
std::string place_by_hf(const json& in, const std::string& name) {
  const json& map = field(in, "device_map");
  if (map.is_object()) {
    bool is_own = true;
    for (std::string at = name;;) {
      if (map.contains(at)) {
        if (!is_own && map[at].is_number()) return "acc:" + map[at].dump();
        if (!is_own) break;
        is_own = false;
      }
      if (at.empty()) break;
      const size_t dot = at.rfind('.');
      at = dot == std::string::npos ? "" : at.substr(0, dot);
    }
  }
  return in.contains("files") && is_in_files(in, name) ? "meta" : "cpu";
}

// Whether the places after the end are those of HF Accelerate's rule.
bool is_what_hf_does(const json& in, const json& out, const json& recorded) {
  if (!field(in, "tied").empty()) return true;  // the ties are gone, and with them the places
  const std::map<std::string, std::string> before = places_in(out.at("where"));
  for (const auto& [name, place] : places_in(recorded)) {
    const auto found = before.find(name);
    if (found == before.end()) return false;
    const bool stays = found->second != "meta" && place == found->second;
    if (!stays && place != place_by_hf(in, name) && place != "cpu") return false;
  }
  return true;
}

// Whether the map, or the function, offloads the module of a tensor.
bool is_offloaded(const json& in, const std::string& name) {
  const json& map = field(in, "device_map");
  if (!map.is_object()) return !map.is_string();
  return !computes_on_the_cpu(in) && entry_of(map, name).is_string();
}

void bring_no_more_than_memory(const json& in, json& out) {
  if (!out.contains("steps")) return;
  const size_t removed = steps_of_handle(in);
  json& end = out["steps"].at(removed);
  const json recorded = end.at("where");
  if (!is_what_hf_does(in, out, recorded)) return;
  const std::vector<json> after = where_after_steps(in, out);
  std::map<std::string, std::string> places =
      places_in(after.empty() ? out.at("where") : after.back());
  std::vector<std::string> buffers;
  collect(field(in, "model"), "buffers", "", buffers);
  for (auto& [name, place] : places) {
    const bool is_buffer = std::find(buffers.begin(), buffers.end(), name) != buffers.end();
    if (place == "meta") {
      place = is_in_files(in, name) ? "meta" : "cpu";
    } else if (is_buffer && is_offloaded(in, name)) {
      place = "cpu";
    }
  }
  const json where = where_of(in, places);
  end["where"] = where;
  end["shared"] = out.at("shared");
  if (where == recorded) return;  // and so are the passes
  const json& x_device = in.contains("x_device") ? in["x_device"] : json();
  const std::string inputs = x_device.is_number() ? "acc:" + x_device.dump() : "cpu";
  const bool is_ordinary = where.size() == 1 && where.contains(inputs);
  for (size_t i = removed + 1; i < out["steps"].size(); ++i) {
    if (in["steps"][i] != "forward") continue;
    if (is_ordinary) {
      out["steps"][i] = plain_forward(in, where);
    } else {
      out["steps"][i] = {{"error", {{"type", "torch"}, {"message", "devices mixed"}}}};
    }
  }
}

// ---- Host memory beside a CPU that computes.

bool offloads_to_where_it_computes(const json& in) {
  return is_placed(in) && in["function"] == "cpu_offload" && computes_on_the_cpu(in);
}

// What `where` has, with the CPU in the place of "meta".
json with_values(const json& in, const json& where) {
  std::map<std::string, std::string> places = places_in(where);
  for (auto& [name, place] : places) {
    if (place == "meta") place = "cpu";
  }
  return where_of(in, places);
}

void leave_all_on_the_cpu(const json& in, json& out) {
  if (!out.contains("where") || !out.contains("steps")) return;
  out["where"] = with_values(in, out["where"]);
  for (size_t i = 0; i < out["steps"].size(); ++i) {
    json& step = out["steps"][i];
    if (step.contains("where")) step["where"] = with_values(in, step["where"]);
    if (!step.contains("offloaded")) continue;
    // A module's own tensors come to another device.
    step["offloaded"] = false;
    step["after"] = out["where"];
    const json& device = in["steps"][i].at(2);
    const std::string path = in["steps"][i].at(1);
    const std::string prefix = path.empty() ? "" : path + ".";
    std::map<std::string, std::string> inside;
    for (const auto& [name, place] : places_in(out["where"])) {
      const bool is_own =
          name.starts_with(prefix) && name.find('.', prefix.size()) == std::string::npos;
      if (is_own && device == "meta") continue;
      inside[name] = is_own && device.is_number() ? "acc:" + device.dump() : place;
    }
    step["inside"] = where_of(in, inside);
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
      {"big_modeling", "host memory beside a CPU that computes",
       "HF Accelerate has parameters on \"meta\" between calls; here they are there already, and "
       "nothing is done",
       &offloads_to_where_it_computes, &leave_all_on_the_cpu},
      {"big_modeling", "models that move",
       "HF Accelerate refuses to move a model with offloaded modules before it begins; here "
       "LibTorch's `to` ends at the first tensor without values",
       &moves, &move_as_libtorch_does},
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
       "HF Accelerate reads what was in files into memory, and leaves modules inside of a placed "
       "one "
       "on its device; here files stay files, and such modules are where they were at first",
       &ends, &bring_no_more_than_memory},
      {"big_modeling", "offloading without an execution device",
       "HF Accelerate fails in the first pass; here the hook is refused", &offloads_to_nowhere,
       &refuse_to_offload},
  };
}

}  // namespace accelerate::golden
