// What each field and each variable of a plug-in resolves to. What prepared models do with it is in
// integration_tests/compile.
#include "accelerate/config/dynamo_plugin.h"

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "accelerate/base/compile_backends.h"
#include "accelerate/testing/value_error.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

TorchDynamoPlugin resolved(TorchDynamoPlugin plugin,
                           const std::vector<std::pair<std::string, std::string>>& variables = {}) {
  Environment environment;
  for (const auto& [name, value] : environment.variables()) {
    if (name.starts_with("ACCELERATE_DYNAMO_")) environment.unset(name);
  }
  for (const auto& [name, value] : variables) environment.set(name, value);
  return resolve(std::move(plugin), environment);
}

TEST(TorchDynamoPlugin, HasTheDefaultsOfHfAccelerate) {
  EXPECT_EQ(to_dict(resolved({})).dump(),
            R"({"backend":"no","mode":"default","fullgraph":false,"dynamic":null,"options":null,)"
            R"("disable":false,"use_regional_compilation":false})");
  EXPECT_EQ(to_kwargs(resolved({})), Json::object());
  EXPECT_FALSE(compiles(resolved({})));
}

TEST(TorchDynamoPlugin, TakesEachFieldFromItsVariableUnlessItIsGiven) {
  const std::vector<std::pair<std::string, std::string>> variables = {
      {"ACCELERATE_DYNAMO_BACKEND", "aot_eager"},
      {"ACCELERATE_DYNAMO_MODE", "max-autotune"},
      {"ACCELERATE_DYNAMO_USE_FULLGRAPH", "True"},
      {"ACCELERATE_DYNAMO_USE_DYNAMIC", "1"},
      {"ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION", "yes"}};
  const TorchDynamoPlugin by_variables = resolved({}, variables);
  EXPECT_EQ(to_dict(by_variables).dump(),
            R"({"backend":"aot_eager","mode":"max-autotune","fullgraph":true,"dynamic":true,)"
            R"("options":null,"disable":false,"use_regional_compilation":true})");
  EXPECT_EQ(to_kwargs(by_variables).dump(),
            R"({"backend":"aot_eager","mode":"max-autotune","fullgraph":true,"dynamic":true})");
  EXPECT_TRUE(compiles(by_variables));
  const TorchDynamoPlugin given = {.backend = DynamoBackend::kEager,
                                   .mode = "default",
                                   .fullgraph = false,
                                   .dynamic = false,
                                   .use_regional_compilation = false};
  EXPECT_EQ(resolved(given, variables), given);
  EXPECT_EQ(resolved(by_variables), by_variables) << "again";
}

TEST(TorchDynamoPlugin, TakesNamesInAnyCaseAndTheMisspeltOne) {
  for (const CompileBackendRow& row : compile_backend_rows()) {
    const std::string name = to_string(row.backend);
    EXPECT_EQ(backend_of(resolved({.backend = name})), row.backend);
    EXPECT_EQ(backend_of(resolved({.backend = absl::AsciiStrToLower(name)})), row.backend);
  }
  for (const char* name : {"torhchxla_trace_once", "TORHCHXLA_TRACE_ONCE"}) {
    EXPECT_EQ(backend_of(resolved({}, {{"ACCELERATE_DYNAMO_BACKEND", name}})),
              DynamoBackend::kTorchxlaTraceOnce);
  }
  EXPECT_THAT(value_error_of([] { resolved({.backend = "bogus"}); }),
              AllOf(HasSubstr("'BOGUS' is not a valid DynamoBackend"), HasSubstr("AOT_EAGER")));
  EXPECT_THAT(value_error_of([] { backend_of({.backend = "eager"}); }), HasSubstr("not resolved"));
}

TEST(TorchDynamoPlugin, RefusesTextsThatAreNoTruthValues) {
  for (const char* variable : {"ACCELERATE_DYNAMO_USE_FULLGRAPH", "ACCELERATE_DYNAMO_USE_DYNAMIC",
                               "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION"}) {
    EXPECT_THAT(value_error_of([&] { resolved({}, {{variable, "perhaps"}}); }),
                AllOf(HasSubstr(variable), HasSubstr("neither true nor false")));
  }
}

TEST(TorchDynamoPlugin, IsCheckedWhereItCompiles) {
  const auto message = [](TorchDynamoPlugin plugin) {
    return value_error_of([&] { check(resolved(std::move(plugin))); });
  };
  EXPECT_EQ(message({.mode = "fast"}), "no error") << "nothing is compiled";
  EXPECT_EQ(message({.backend = "eager", .mode = "fast", .disable = true}), "no error");
  EXPECT_THAT(message({.backend = "eager", .mode = "fast"}),
              AllOf(HasSubstr("mode is \"fast\""), HasSubstr("max-autotune-no-cudagraphs")));
  EXPECT_EQ(message({.backend = "eager", .options = Json{{"a", 1}}}), "no error");
  EXPECT_THAT(message({.backend = "eager", .mode = "max-autotune", .options = Json{{"a", 1}}}),
              HasSubstr("give one of them"));
  EXPECT_THAT(message({.backend = "eager", .options = Json(3)}), HasSubstr("an object"));
  for (const Json& budget : {Json(0), Json(0.5), Json(1)}) {
    EXPECT_EQ(message({.backend = "inductor", .options = Json{{"memory_budget", budget}}}),
              "no error");
  }
  for (const Json& budget : {Json(-0.1), Json(2), Json("all")}) {
    EXPECT_THAT(message({.backend = "inductor", .options = Json{{"memory_budget", budget}}}),
                HasSubstr("memory_budget is " + budget.dump()));
  }
  EXPECT_EQ(message({.backend = "inductor", .options = Json{{"package", "here"}}}), "no error");
  EXPECT_THAT(message({.backend = "inductor", .options = Json{{"package", ""}}}),
              HasSubstr("the path of a folder"));
}

// Every name but "no" does something, or says what is nearest.
TEST(CompileBackends, AreInTheOrderOfTheirNames) {
  const auto rows = compile_backend_rows();
  ASSERT_EQ(rows.size(), values<DynamoBackend>().size());
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i].backend, values<DynamoBackend>()[i]);
    EXPECT_STRNE(rows[i].says, "");
    EXPECT_EQ(compile_backend_refusal(rows[i].backend).empty(), rows[i].works);
    EXPECT_TRUE(compile_backend_row(rows[i].nearest).works) << to_string(rows[i].backend);
  }
  EXPECT_EQ(compile_backend_refusal(DynamoBackend::kTvm),
            "dynamo_backend=tvm: TVM compiles graphs that Python traces; the nearest that works is "
            "inductor");
}

TEST(CompileBackends, StandInTheirPageAsInTheirTable) {
  const char* const path = std::getenv("ACCELERATE_COMPILE_PAGE");
  ASSERT_NE(path, nullptr);
  std::ifstream file(path);
  const std::string page(std::istreambuf_iterator<char>(file), {});
  const auto name = [](DynamoBackend backend) { return absl::AsciiStrToLower(to_string(backend)); };
  std::string table;
  for (const CompileBackendRow& row : compile_backend_rows()) {
    absl::StrAppend(&table, "| `", name(row.backend), "` | ",
                    row.works ? "yes" : absl::StrCat("no: `", name(row.nearest), "`"), " | ",
                    row.says, " |\n");
  }
  EXPECT_THAT(page, HasSubstr(table)) << "put this into accelerate/docs/compile.md:\n" << table;
}

}  // namespace
}  // namespace accelerate
