// Models larger than memory: a table of the kinds of cases, each with a source of its own.
#include <optional>
#include <string>

#include "integration_tests/golden/big_modeling_files.h"
#include "integration_tests/golden/big_modeling_names.h"
#include "integration_tests/golden/family.h"
#include "integration_tests/golden/fields.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;

json run_case(const json& in) {
  if (std::optional<json> answer = run_big_modeling_files(in)) return *std::move(answer);
  if (std::optional<json> answer = run_big_modeling_names(in)) return *std::move(answer);
  throw CaseError("unknown kind \"" + string_field(in, "kind") + "\"");
}

const FamilyRegistration kRegistration("big_modeling", &run_case);

}  // namespace
}  // namespace accelerate::golden
