#include <algorithm>
#include <string>
#include <vector>

#include "integration_tests/golden/answers.h"
#include "integration_tests/golden/fields.h"
#include "integration_tests/golden/rules.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;

bool is_kind(const json& in, const char* kind) { return in.at("kind") == kind; }

bool lists_names(const json& in) { return is_kind(in, "backends"); }

void add_ipex(const json& /*in*/, json& out) {
  json names = json::array();
  for (const json& name : out.at("names")) {
    if (name == "TVM") names.push_back("IPEX");
    names.push_back(name);
  }
  out["names"] = std::move(names);
}

// A module in another one is to be compiled by itself.
bool compiles_a_part(const json& in) {
  const json paths = in.value("compile", json::array());
  const bool is_inside = is_kind(in, "inspect") && !in.at("wrap").empty();
  return std::ranges::any_of(paths, [&](const json& path) { return path != "" || is_inside; });
}

bool binds_methods(const json& in) { return is_kind(in, "bound_methods"); }

void refuse(const json& /*in*/, json& out) { out = refused_by_compiler(); }

// The names of a tree's parameters.
void append_names(const json& tree, const std::string& prefix, json& names) {
  for (const json& parameter : tree.at("params")) {
    names.push_back(prefix + parameter.at(0).get<std::string>());
  }
  for (const json& child : tree.at("children")) {
    append_names(child.at(1), prefix + child.at(0).get<std::string>() + ".", names);
  }
}

bool gives_a_model_back(const json& in) {
  const bool is_about_it =
      is_kind(in, "unwrap") || is_kind(in, "prepare") ||
      (is_kind(in, "compile_regions") && in.at("function") == "compile_regions");
  return is_about_it && !compiles_a_part(in);
}

void give_the_module(const json& in, json& out) {
  json names = json::array();
  append_names(in.at("model"), "", names);
  out["state_dict"] = std::move(names);
  if (is_kind(in, "compile_regions")) return;
  out["is_original"] = true;
  out["class"] = in.at("model").at("class");
  if (is_kind(in, "unwrap")) out["compiled"] = json::array();
}

}  // namespace

std::vector<Decision> dynamo_plugin_rules() {
  static constexpr char kFamily[] = "dynamo_plugin";
  return {
      {kFamily, "names of older releases",
       "HF Accelerate has dropped IPEX; we know the name, and say what is nearest.", &lists_names,
       &add_ipex},
      {kFamily, "handles compile",
       "HF Accelerate compiles modules inside of others; here handles of whole models compile.",
       &compiles_a_part, &refuse},
      {kFamily, "no bound methods", "A Python method can be bound to another object.",
       &binds_methods, &refuse},
      {kFamily, "modules stay",
       "HF Accelerate replaces modules by compiled ones with other names of parameters, which "
       "unwrapping keeps or not; here a module stays what it is.",
       &gives_a_model_back, &give_the_module},
  };
}

}  // namespace accelerate::golden
