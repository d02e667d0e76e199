#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "integration_tests/golden/big_modeling_turns.h"
#include "integration_tests/golden/errors.h"
#include "integration_tests/golden/fields.h"
#include "integration_tests/golden/rules.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;

bool is_kind(const json& in, const char* kind) { return string_field(in, "kind") == kind; }

// ---- Non-persistent buffers.

void collect_non_persistent(const json& tree, const std::string& prefix,
                            std::set<std::string>& names) {
  for (const json& buffer : field(tree, "buffers")) {
    if (!buffer.at(3).get<bool>()) names.insert(prefix + buffer.at(0).get<std::string>());
  }
  for (const json& child : field(tree, "children")) {
    collect_non_persistent(child.at(1), prefix + child.at(0).get<std::string>() + ".", names);
  }
}

std::set<std::string> non_persistent_buffers(const json& in) {
  std::set<std::string> names;
  collect_non_persistent(field(in, "model"), "", names);
  return names;
}

bool has_non_persistent_buffers(const json& in) {
  return is_kind(in, "names") && !non_persistent_buffers(in).empty();
}

void name_them_fully(const json& in, json& out) {
  const std::set<std::string> names = non_persistent_buffers(in);
  out.at("non_persistent")["recurse full"] = names;
  for (const std::string reach : {"buffers", "buffers recurse"}) {
    json kept = json::array();
    for (const json& name : out.at("named").at(reach)) {
      if (!names.contains(name.get<std::string>())) kept.push_back(name);
    }
    out["named"][reach + " persistent"] = std::move(kept);
  }
}

// ---- Tied tensors that are moved.

bool moves_tied_tensors(const json& in) {
  return is_kind(in, "set_tensor") && in.contains("tied") && !in["tied"].empty();
}

// All names of a tied tensor see what was done to it under one of them.
void move_all_names(const json& in, json& out) {
  std::map<std::string, std::string> first_of;  // by the other names
  json shared = json::array();
  for (const json& group : in.at("tied")) {
    for (const json& name : group) first_of[name] = group.at(0);
    shared.push_back(group.get<std::set<std::string>>());
  }
  std::sort(shared.begin(), shared.end());
  std::map<std::string, json> seen;  // by the first name, the tensor after a step
  const json& steps = field(in, "steps");
  for (size_t i = 0; i < out.at("steps").size(); ++i) {
    json& outcome = out["steps"][i];
    if (outcome.contains("shared")) outcome["shared"] = shared;
    const std::string name = string_field(steps[i], "name");
    if (!first_of.contains(name)) continue;
    json& before = seen[first_of[name]];
    const json& device = field(steps[i], "device");
    const bool has_value = steps[i].contains("value") && !steps[i]["value"].is_null();
    if (!has_value && !before.is_null() && before.at("device") == "meta" && device != "meta") {
      outcome = our_error({"ValueError"}, {"needs a value"});
    }
    if (outcome.contains("error")) continue;
    if (!has_value && !before.is_null()) {
      before["device"] = outcome.at("device");
      if (device == "meta") before.erase("data");
      outcome = before;
    }
    before = outcome;
  }
}

// ---- Models without memory.

bool leaves_buffers(const json& in) {
  if (!is_kind(in, "init")) return false;
  if (!field(in, "include_buffers").is_null()) return !in["include_buffers"].get<bool>();
  return !field(in, "env").contains("ACCELERATE_INIT_INCLUDE_BUFFERS");
}

void collect_integers(const json& tree, const std::string& prefix, std::set<std::string>& names) {
  for (const json& parameter : field(tree, "params")) {
    const std::string dtype = parameter.at(2);
    if (!dtype.starts_with("float") && !dtype.starts_with("bfloat")) {
      names.insert(prefix + parameter.at(0).get<std::string>());
    }
  }
  for (const json& child : field(tree, "children")) {
    collect_integers(child.at(1), prefix + child.at(0).get<std::string>() + ".", names);
  }
}

void leave_integers(const json& in, json& out) {
  std::set<std::string> names;
  collect_integers(field(in, "model"), "", names);
  json kept = json::array();
  for (const json& name : out.at("meta")) {
    if (!names.contains(name.get<std::string>())) kept.push_back(name);
  }
  out["meta"] = std::move(kept);
}

// ---- Devices.

bool compares_devices(const json& in) { return is_kind(in, "same_device"); }

bool is_the_cpu(const json& device) {
  if (!device.is_string()) return false;
  const std::string text = device;
  return text == "cpu" || text.starts_with("cpu:");
}

void have_one_cpu(const json& in, json& out) {
  if (!out.contains("same")) return;
  const json pairs = device_pairs(in);
  for (size_t i = 0; i < pairs.size(); ++i) {
    const bool is_one = is_the_cpu(pairs[i].at(0)) && is_the_cpu(pairs[i].at(1));
    if (is_one) (in.contains("pairs") ? out["same"].at(i) : out["same"]) = true;
  }
}

}  // namespace

std::vector<Decision> big_modeling_module_rules() {
  return {
      {"big_modeling", "the CPU with an index",
       "HF Accelerate takes it for another device than the CPU without one; here there is one CPU",
       &compares_devices, &have_one_cpu},
      {"big_modeling", "names of non-persistent buffers",
       "HF Accelerate compares the last part of a name with the whole, and gives the module's own "
       "a dot in front; ours compares whole names",
       &has_non_persistent_buffers, &name_them_fully},
      {"big_modeling", "tied tensors that are moved",
       "HF Accelerate moves a tied tensor under one of its names, and the tie is gone; ours moves "
       "the tensor",
       &moves_tied_tensors, &move_all_names},
      {"big_modeling", "parameters without a gradient",
       "HF Accelerate tells parameters and buffers apart by their registration; ours by whether "
       "they require a gradient",
       &leaves_buffers, &leave_integers},
  };
}

}  // namespace accelerate::golden
