// Sizes, plans, balanced limits and checks on models of names and sizes.
#include <string>

#include "absl/status/statusor.h"
#include "accelerate/device_map/infer.h"
#include "integration_tests/golden/answers.h"
#include "integration_tests/golden/family.h"
#include "integration_tests/golden/fields.h"
#include "integration_tests/golden/module_trees.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;

json sizes_of(const ModuleTree& tree, const SizeOptions& options, bool buffers_only) {
  const auto sizes = compute_module_sizes(tree, options, buffers_only);
  if (!sizes.ok()) return status_error(sizes.status());
  json object = json::object();
  for (const auto& [name, bytes] : *sizes) object[name] = bytes_json(bytes);
  return object;
}

json with_lists(json outcome) {
  outcome["warnings"] = json::array();
  outcome["log"] = json::array();
  return outcome;
}

json infer(const ModuleTree& tree, const json& in) {
  expect_fields(in, {"max_memory", "no_split_module_classes", "dtype", "special_dtypes",
                     "clean_result", "offload_buffers", "fallback_allocation"});
  const absl::StatusOr<MaxMemory> limits = limits_of(field(in, "max_memory"));
  if (!limits.ok()) return with_lists(status_error(limits.status()));
  const InferOptions options = {
      .sizes = size_options_of(in),
      .no_split_module_classes = classes_of(field(in, "no_split_module_classes")),
      .clean_result = bool_field(in, "clean_result"),
      .offload_buffers = bool_field(in, "offload_buffers"),
      .fallback_allocation = bool_field(in, "fallback_allocation")};
  const auto inferred = infer_auto_device_map(tree, *limits, options);
  if (!inferred.ok()) return with_lists(status_error(inferred.status()));
  // The plan itself must be a map that covers the model.
  if (const absl::Status checked = check_device_map(tree, inferred->map); !checked.ok()) {
    return with_lists(status_error(checked));
  }
  json map = json::array();
  for (const auto& [name, device] : inferred->map.entries()) map.push_back({name, to_json(device)});
  json outcome = with_lists({{"map", std::move(map)}});
  if (inferred->buffers_without_room) {
    outcome["warnings"].push_back(bytes_json(*inferred->buffers_without_room));
  }
  for (const auto& [device, bytes] : inferred->too_small) {
    outcome["log"].push_back({to_json(device), bytes_json(bytes)});
  }
  return outcome;
}

json balance(const ModuleTree& tree, const json& in) {
  expect_fields(in,
                {"max_memory", "no_split_module_classes", "dtype", "special_dtypes", "low_zero"});
  const absl::StatusOr<MaxMemory> limits = limits_of(field(in, "max_memory"));
  if (!limits.ok()) return status_error(limits.status());
  const auto balanced = get_balanced_memory(
      tree, *limits,
      {.sizes = size_options_of(in),
       .no_split_module_classes = classes_of(field(in, "no_split_module_classes")),
       .low_zero = bool_field(in, "low_zero")});
  if (!balanced.ok()) return status_error(balanced.status());
  return to_json(*balanced);
}

json run_case(const json& in) {
  expect_fields(in, {"kind", "model", "tied", "sizes", "no_split", "infer", "balanced", "check"});
  const ModuleTree tree = tree_of(field(in, "model"), field(in, "tied"));
  const SizeOptions sizes = size_options_of(field(in, "sizes"));
  const auto largest = get_max_layer_size(tree, classes_of(field(in, "no_split")));
  const auto maximum = calculate_maximum_sizes(tree);
  if (!largest.ok() || !maximum.ok()) throw CaseError("the model has unknown dtypes");
  json out = {{"module_sizes", sizes_of(tree, {}, false)},
              {"module_sizes_dtyped", sizes_of(tree, sizes, false)},
              {"buffer_sizes", sizes_of(tree, sizes, true)},
              {"max_layer", to_json(*largest)},
              {"total_and_largest",
               json::array({bytes_json(maximum->total), to_json(maximum->largest_layer)})},
              {"tied", tree.tied_parameters()},
              {"infer", json::array()},
              {"balanced", json::array()},
              {"check", json::array()}};
  for (const json& each : field(in, "infer")) out["infer"].push_back(infer(tree, each));
  for (const json& each : field(in, "balanced")) out["balanced"].push_back(balance(tree, each));
  for (const json& each : field(in, "check")) {
    const DeviceMap map = map_of(each);
    const absl::Status checked = check_device_map(tree, map);
    json answer = checked.ok() ? json({{"ok", true}}) : status_error(checked);
    answer["warnings"] = unknown_names(tree, map);
    out["check"].push_back(std::move(answer));
  }
  return out;
}

const FamilyRegistration kRegistration("device_map", &run_case);

}  // namespace
}  // namespace accelerate::golden
