#include "accelerate/runtime/env_parsing.h"

#include <cstdlib>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accelerate {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

// Nothing but these is set.
Environment only(const std::map<std::string, std::string>& variables) {
  Environment environment;
  for (const auto& [name, value] : environment.variables()) environment.unset(name);
  for (const auto& [name, value] : variables) environment.set(name, value);
  return environment;
}

TEST(EnvironmentVariables, AreTheProcessesWithTheRanksOverThem) {
  Environment environment;
  environment.set("PATH", "changed");
  environment.set("ADDED", "");
  environment.unset("HOME");
  const auto variables = environment.variables();
  EXPECT_EQ(variables.at("PATH"), "changed");
  EXPECT_EQ(variables.at("ADDED"), "");
  EXPECT_FALSE(variables.contains("HOME"));
  const auto process = Environment().variables();
  EXPECT_EQ(process.at("PATH"), std::getenv("PATH"));
  EXPECT_EQ(variables.size(), process.size() + 1 - process.count("HOME"));
}

TEST(PatchEnvironment, WritesValuesAsThePeerDoes) {
  Environment environment = only({});
  const auto scope = patch_environment({{"bool", true},
                                        {"int", -2},
                                        {"size", size_t{3}},
                                        {"float", 0.5},
                                        {"whole", 2.0},
                                        {"none", nullptr},
                                        {"text", "a b"}},
                                       environment);
  EXPECT_THAT(environment.variables(),
              ElementsAre(Pair("BOOL", "True"), Pair("FLOAT", "0.5"), Pair("INT", "-2"),
                          Pair("NONE", "None"), Pair("SIZE", "3"), Pair("TEXT", "a b"),
                          Pair("WHOLE", "2.0")));
}

TEST(PatchEnvironment, RestoresWhatItChangedAndNothingElse) {
  Environment environment = only({{"A", "1"}, {"B", "2"}, {"lower", "3"}});
  {
    const auto scope =
        patch_environment({{"a", "x"}, {"lower", "y"}, {"C", 1}, {"b", 1}}, environment);
    environment.unset("B");
    environment.set("C", "later");
    environment.set("D", "4");
    EXPECT_EQ(environment.get("LOWER"), "y");
  }
  EXPECT_THAT(environment.variables(),
              ElementsAre(Pair("A", "1"), Pair("B", "2"), Pair("D", "4"), Pair("lower", "3")));
}

TEST(PatchEnvironment, RestoresANameThatIsGivenTwice) {
  Environment environment = only({{"A", "1"}});
  {
    const auto scope = patch_environment({{"A", "x"}, {"a", "y"}}, environment);
    EXPECT_EQ(environment.get("A"), "y");
  }
  EXPECT_EQ(environment.get("A"), "1");
}

TEST(PatchEnvironment, NestsAndEndsWithAnException) {
  Environment environment = only({{"A", "1"}});
  try {
    const auto outer = patch_environment({{"A", "2"}, {"B", "2"}}, environment);
    {
      const auto inner = patch_environment({{"A", "3"}}, environment);
      EXPECT_EQ(environment.get("A"), "3");
    }
    EXPECT_EQ(environment.get("A"), "2");
    throw std::runtime_error("inside");
  } catch (const std::runtime_error&) {
  }
  EXPECT_THAT(environment.variables(), ElementsAre(Pair("A", "1")));
}

TEST(PatchEnvironment, EndsEarlyWhereItsHolderDoes) {
  Environment environment = only({});
  std::optional scope(patch_environment({{"A", 1}}, environment));
  EXPECT_EQ(environment.get("A"), "1");
  scope.reset();
  EXPECT_EQ(environment.get("A"), std::nullopt);
}

TEST(PatchEnvironment, LeavesTheProcessAlone) {
  Environment environment;
  const auto scope = patch_environment({{"ACCELERATE_ONLY_HERE", 1}}, environment);
  EXPECT_EQ(std::getenv("ACCELERATE_ONLY_HERE"), nullptr);
  EXPECT_EQ(Environment().get("ACCELERATE_ONLY_HERE"), std::nullopt);
}

TEST(ClearEnvironment, EmptiesAndRestoresEverything) {
  Environment environment = only({{"A", "1"}, {"B", "2"}});
  try {
    const auto scope = clear_environment(environment);
    EXPECT_THAT(environment.variables(), IsEmpty());
    environment.set("B", "changed");
    environment.set("C", "added");
    throw std::runtime_error("inside");
  } catch (const std::runtime_error&) {
  }
  EXPECT_THAT(environment.variables(), ElementsAre(Pair("A", "1"), Pair("B", "2")));
}

TEST(ClearEnvironment, HidesTheProcessesOwnVariables) {
  Environment environment;
  {
    const auto scope = clear_environment(environment);
    EXPECT_EQ(environment.get("PATH"), std::nullopt);
  }
  EXPECT_EQ(environment.variables(), Environment().variables());
}

TEST(PurgeAccelerateEnvironment, PutsBackOurVariablesOnly) {
  Environment environment = only({{"ACCELERATE_A", "1"}, {"ACCELERATE_B", "2"}, {"X", "1"}});
  {
    const auto scope = purge_accelerate_environment(environment);
    EXPECT_EQ(environment.get("ACCELERATE_A"), "1");
    environment.set("ACCELERATE_A", "changed");
    environment.unset("ACCELERATE_B");
    environment.set("ACCELERATE_C", "added");
    environment.set("X", "kept");
    environment.set("Y", "kept");
  }
  EXPECT_THAT(environment.variables(),
              ElementsAre(Pair("ACCELERATE_A", "1"), Pair("ACCELERATE_B", "2"), Pair("X", "kept"),
                          Pair("Y", "kept")));
}

}  // namespace
}  // namespace accelerate
