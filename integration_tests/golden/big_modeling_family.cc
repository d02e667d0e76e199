// Models larger than memory: a table of the kinds of cases, each with a source of its own.
#include <optional>
#include <string>

#include "integration_tests/golden/big_modeling_dispatch.h"
#include "integration_tests/golden/big_modeling_files.h"
#include "integration_tests/golden/big_modeling_hooks.h"
#include "integration_tests/golden/big_modeling_modules.h"
#include "integration_tests/golden/big_modeling_names.h"
#include "integration_tests/golden/big_modeling_turns.h"
#include "integration_tests/golden/family.h"
#include "integration_tests/golden/fields.h"
#include "integration_tests/golden/module_trees.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;

json run_case(const json& in) {
  if (std::optional<json> answer = run_big_modeling_files(in)) return *std::move(answer);
  if (std::optional<json> answer = run_big_modeling_names(in)) return *std::move(answer);
  if (std::optional<json> answer = run_big_modeling_modules(in)) return *std::move(answer);
  if (std::optional<json> answer = run_big_modeling_hooks(in)) return *std::move(answer);
  if (std::optional<json> answer = run_big_modeling_turns(in)) return *std::move(answer);
  if (string_field(in, "kind") == "dispatch") return run_big_modeling_dispatch(in);
  throw CaseError("unknown kind \"" + string_field(in, "kind") + "\"");
}

// Warnings are about names, which they have in quotes.
void take_facts(const json& in, json& recorded) {
  write_turns_alike(in, recorded);
  for (const char* sentences : {"log", "warnings"}) {
    if (!recorded.contains(sentences)) continue;
    json texts = json::array();
    for (const json& each : recorded[sentences]) {
      texts.push_back(each.is_object() ? each.value("message", "") : each.get<std::string>());
    }
    recorded[sentences] = quoted_names(texts);
  }
  // A step that repeats another one's answer is written by its number.
  if (!recorded.contains("steps")) return;
  json& steps = recorded["steps"];
  for (json& step : steps) {
    if (step.contains("same_as_step")) step = json(steps.at(step["same_as_step"].get<size_t>()));
  }
}

const FamilyRegistration kRegistration("big_modeling", &run_case, &take_facts);

}  // namespace
}  // namespace accelerate::golden
