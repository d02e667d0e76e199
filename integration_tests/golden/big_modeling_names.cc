#include "integration_tests/golden/big_modeling_names.h"

#include <cstdint>
#include <set>
#include <string>

#include <c10/core/Device.h>

#include "accelerate/big_model/infer_device_map.h"
#include "accelerate/device_map/infer.h"
#include "accelerate/modules/tied_parameters.h"
#include "accelerate/runtime/device_cache.h"
#include "accelerate/testing/fake_runtime.h"
#include "integration_tests/golden/answers.h"
#include "integration_tests/golden/fields.h"
#include "integration_tests/golden/module_trees.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;

// Devices with free bytes, of which null stands for one that does not answer.
class Machine final : public FakeRuntime {
 public:
  explicit Machine(const json& in) {
    const json& gpus = field(in, "gpus");
    for (size_t i = 0; i < gpus.size(); ++i) {
      if (!gpus[i].is_null()) free_.accelerators.emplace_back(i, gpus[i].get<int64_t>());
    }
    free_.host = int_field(in, "ram");
    if (bool_field_or(in, "mps", false)) own_ = c10::Device(c10::kMPS, 0);
    std::set<int64_t> integrated;
    if (in.contains("integrated")) {
      for (const int64_t index : ints_field(in, "integrated")) integrated.insert(index);
    }
    register_shared_memory(own_.type(),
                           [integrated](int index) { return integrated.contains(index); });
  }

  // Any kind of accelerator.
  c10::Device device() const override { return own_; }

  FreeMemory free_memory() const override { return free_; }

 private:
  c10::Device own_ = c10::Device(c10::kXPU, 0);
  FreeMemory free_;
};

json max_layer(const json& in) {
  expect_fields(in, {"kind", "model", "tied", "no_split", "note"});
  const auto largest = get_max_layer_size(tree_of(field(in, "model"), json::array()),
                                          classes_of(field(in, "no_split")));
  if (!largest.ok()) return status_error(largest.status());
  return {{"largest", to_json(*largest)}};
}

json clean(const json& in) {
  expect_fields(in, {"kind", "device_map", "note"});
  const DeviceMap cleaned = clean_device_map(map_of(field(in, "device_map")));
  json map = json::object();
  for (const auto& [name, device] : cleaned.entries()) map[name] = to_json(device);
  return {{"map", std::move(map)}};
}

absl::StatusOr<MaxMemory> limits_on(Machine& machine, const json& in) {
  const RuntimeScope scope(machine);
  if (field(in, "max_memory").is_null()) return get_max_memory();
  return limits_of(in["max_memory"]);
}

json with_log(json answer) {
  answer["log"] = json::array();
  return answer;
}

json max_memory(const json& in) {
  expect_fields(in, {"kind", "max_memory", "gpus", "ram", "integrated", "mps", "note"});
  Machine machine(in);
  const absl::StatusOr<MaxMemory> limits = limits_on(machine, in);
  if (!limits.ok()) return with_log(status_error(limits.status()));
  return with_log({{"max_memory", to_json(*limits)}});
}

json balanced(const json& in) {
  expect_fields(in, {"kind", "max_memory", "gpus", "ram", "integrated", "mps", "model", "tied",
                     "arguments", "note"});
  const json& arguments = field(in, "arguments");
  expect_fields(arguments, {"no_split_module_classes", "dtype", "special_dtypes", "low_zero"});
  Machine machine(in);
  const absl::StatusOr<MaxMemory> limits = limits_on(machine, in);
  if (!limits.ok()) return with_log(status_error(limits.status()));
  const auto result = get_balanced_memory(
      tree_of(field(in, "model"), in.value("tied", json::array())), *limits,
      {.sizes = size_options_of(arguments),
       .no_split_module_classes = classes_of(arguments.value("no_split_module_classes", json())),
       .low_zero = bool_field_or(arguments, "low_zero", false),
       .limits_are_free_memory = in["max_memory"].is_null()});
  if (!result.ok()) return with_log(status_error(result.status()));
  return with_log({{"max_memory", to_json(*result)}});
}

json check_map(const json& in) {
  expect_fields(in, {"kind", "model", "tied", "device_map", "note"});
  const ModuleTree tree = tree_of(field(in, "model"), field(in, "tied"));
  const DeviceMap map = map_of(field(in, "device_map"));
  const absl::Status checked = check_device_map(tree, map);
  return {{"map", checked.ok() ? json("ok") : status_error(checked)},
          {"ties", part([&] {
             check_tied_parameters_on_same_device(tree.tied_parameters(), map);
             return json("ok");
           })},
          {"warnings", names_without_module(tree, map)},
          {"log", json::array()}};
}

}  // namespace

std::optional<json> run_big_modeling_names(const json& in) {
  const std::string kind = string_field(in, "kind");
  if (kind == "max_layer") return max_layer(in);
  if (kind == "clean_device_map") return clean(in);
  if (kind == "get_max_memory") return max_memory(in);
  if (kind == "balanced") return balanced(in);
  if (kind == "check_map") return check_map(in);
  return std::nullopt;
}

}  // namespace accelerate::golden
