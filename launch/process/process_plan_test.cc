#include "launch/process/process_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace accelerate::launcher::process {
namespace {

using ::testing::ElementsAre;

TEST(ProcessPlan, IsShownAsLines) {
  EXPECT_EQ(to_text(ProcessPlan{.argv = {"train", "x"},
                                .environment = {{"A", std::nullopt}, {"B", "1"}},
                                .inherited_fds = {7}}),
            "argv: train x\n"
            "set B=1\n"
            "unset A\n"
            "keep fd 7\n");
}

TEST(WithoutOuterRun, RemovesWhatItSaidAboutRanks) {
  EXPECT_EQ(to_text(without_outer_run()),
            "unset ACCELERATE_STORE_LISTEN_FD\n"
            "unset GROUP_RANK\n"
            "unset LOCAL_RANK\n"
            "unset LOCAL_WORLD_SIZE\n"
            "unset MASTER_ADDR\n"
            "unset MASTER_PORT\n"
            "unset RANK\n"
            "unset WORLD_SIZE\n");
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
