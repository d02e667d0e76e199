#include "launch/process/process_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace accelerate::launcher::process {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(PlanSimulation, RemovesWhatAnOuterRunSaidAboutRanks) {
  EXPECT_EQ(to_text(plan_simulation({.simulate = "2x4:h100",
                                     .simulate_seed = "9",
                                     .simulate_numerics = "shapes",
                                     .simulate_unknown_values = "nan",
                                     .simulate_fold = "true",
                                     .report = "out",
                                     .command = {"train", "x"}})),
            "argv: train x\n"
            "set ACCELERATE_SIMULATE=2x4:h100\n"
            "set ACCELERATE_SIMULATE_FOLD=true\n"
            "set ACCELERATE_SIMULATE_NUMERICS=shapes\n"
            "set ACCELERATE_SIMULATE_REPORT=out\n"
            "set ACCELERATE_SIMULATE_SEED=9\n"
            "set ACCELERATE_SIMULATE_UNKNOWN_VALUES=nan\n"
            "unset ACCELERATE_STORE_LISTEN_FD\n"
            "unset GROUP_RANK\n"
            "unset LOCAL_RANK\n"
            "unset LOCAL_WORLD_SIZE\n"
            "unset MASTER_ADDR\n"
            "unset MASTER_PORT\n"
            "unset RANK\n"
            "unset WORLD_SIZE\n");
}

TEST(PlanSimulation, KeepsTheEnvironmentsChoicesWhenNoneAreGiven) {
  EXPECT_THAT(to_text(plan_simulation({.simulate = "2x4", .command = {"train"}})),
              AllOf(Not(HasSubstr("SEED")), Not(HasSubstr("NUMERICS")),
                    Not(HasSubstr("UNKNOWN_VALUES")), Not(HasSubstr("FOLD"))));
}

TEST(ApplyOverlay, ReplacesAddsAndRemoves) {
  EXPECT_THAT(apply_overlay({"A=1", "B=2", "A=3", "AB=4", "broken"},
                            {{"A", "9"}, {"B", std::nullopt}, {"C", "5"}}),
              ElementsAre("AB=4", "broken", "A=9", "C=5"));
}

TEST(EnvironmentWords, AreFoundByTheirWholeName) {
  const std::vector<std::string> words = {"AB=1", "A=b=c", "broken", "B=", "C=1", "C=2"};
  EXPECT_EQ(find_in_environment(words, "A"), "b=c");
  EXPECT_EQ(find_in_environment(words, "B"), "");
  EXPECT_EQ(find_in_environment(words, "C"), "2") << "the last one";
  EXPECT_EQ(find_in_environment(words, "broken"), std::nullopt);
  EXPECT_EQ(environment_value(words, "D"), "");
  // The same as an Environment, which has nothing of this process.
  const Environment environment = environment_of(words);
  EXPECT_EQ(environment.variables(),
            (std::map<std::string, std::string>{{"A", "b=c"}, {"AB", "1"}, {"B", ""}, {"C", "2"}}));
}

}  // namespace
}  // namespace accelerate::launcher::process
