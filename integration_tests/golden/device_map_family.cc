// Sizes, plans, balanced limits and checks on models of names and sizes.
#include <regex>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
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

// ---- What warnings say.

// Expressions for sentences: the bytes of buffers that have no room, and a device that is too small
// with the bytes that it lacks.
struct Sentences {
  const char* buffers;
  const char* too_small;
};
constexpr Sentences kOurs = {R"(^the buffers .* take ([0-9.e+]+) bytes)",
                             R"(^device (\S+) stays empty: .* takes ([0-9.e+]+) bytes)"};
constexpr Sentences kRecorded = {R"(requires ([0-9.e+]+) bytes of buffer)",
                                 R"(  - ([^:]+): ([0-9.e+]+) bytes required)"};

json number_in(const std::string& text) {
  double number = 0;
  if (!absl::SimpleAtod(text, &number)) throw CaseError("no number: " + text);
  return bytes_json(number);
}

// Sentences that are not known stay.
void take_numbers(const Sentences& sentences, const json& texts, json& outcome) {
  const std::regex buffers(sentences.buffers);
  const std::regex too_small(sentences.too_small);
  for (const std::string text : texts) {
    std::smatch found;
    if (std::regex_search(text, found, buffers)) {
      outcome["warnings"].push_back(number_in(found[1]));
      continue;
    }
    std::sregex_iterator each(text.begin(), text.end(), too_small);
    if (each == std::sregex_iterator()) outcome["warnings"].push_back(text);
    for (; each != std::sregex_iterator(); ++each) {
      const std::string device = (*each)[1];
      int index = 0;
      outcome["log"].push_back(
          {absl::SimpleAtoi(device, &index) ? json(index) : json(device), number_in((*each)[2])});
    }
  }
}

void take_recorded_numbers(json& outcome) {
  json texts = outcome.at("warnings");
  texts.insert(texts.end(), outcome.at("log").begin(), outcome.at("log").end());
  outcome["warnings"] = outcome["log"] = json::array();
  take_numbers(kRecorded, texts, outcome);
}

void take_facts(const json& /*in*/, json& recorded) {
  for (json& check : recorded.at("check")) {
    check["warnings"] = quoted_names(check.at("warnings"));
  }
  for (json& outcome : recorded.at("infer")) {
    if (!outcome.contains("variants")) {
      take_recorded_numbers(outcome);
      continue;
    }
    for (json& variant : outcome["variants"]) take_recorded_numbers(variant);
  }
}

// ---- Answers.

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
  take_numbers(kOurs, inferred->warnings(), outcome);
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
    answer["warnings"] = names_without_module(tree, map);
    out["check"].push_back(std::move(answer));
  }
  return out;
}

const FamilyRegistration kRegistration("device_map", &run_case, &take_facts);

}  // namespace
}  // namespace accelerate::golden
