// The families of what this version does not have: compilation, and the norms of gradients on
// several meshes. A case counts as missing as long as the library refuses the feature.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "accelerate/accelerator.h"
#include "accelerate/platform/environment.h"
#include "integration_tests/golden/answers.h"
#include "integration_tests/golden/family.h"
#include "integration_tests/golden/fields.h"

namespace accelerate::golden {
namespace {

using nlohmann::json;

void expect_kind(const json& in, const std::vector<std::string>& kinds) {
  const std::string kind = string_field(in, "kind");
  if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) {
    throw CaseError("unknown kind \"" + kind + "\"");
  }
}

// What an Accelerator says where the variable asks for the feature.
void expect_refusal(const std::string& variable, const std::string& value, const char* says) {
  const json answer = ask_ranks(1, [&](int /*rank*/) {
                        Runtime::current().environment().set(variable, value);
                        const Accelerator accelerator;
                        return json{{"made", true}};
                      }).front();
  const std::string message = answer.contains("error") ? answer["error"].value("message", "") : "";
  if (!absl::StrContains(message, says)) {
    throw CaseError(variable + "=" + value + " is not refused any more, so this needs a replayer");
  }
}

json run_dynamo(const json& in) {
  expect_kind(in, {"plugin", "backend", "backends", "accelerator", "inspect", "compile_regions",
                   "unwrap", "prepare", "bound_methods"});
  expect_refusal("ACCELERATE_DYNAMO_BACKEND", "inductor", "this version compiles nothing");
  throw Missing("compilation");
}

const FamilyRegistration kDynamo("dynamo_plugin", &run_dynamo);

}  // namespace
}  // namespace accelerate::golden
