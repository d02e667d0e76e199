#include "launch/commands/commands.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>

#include "launch/testing/commands/command_tester.h"

namespace accelerate::launch::commands {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Words = std::vector<std::string>;

TEST(ExpandArguments, ALinkStandsForItsCommand) {
  EXPECT_THAT(expand_arguments("/opt/bin/accelerate-launch", Words{"--cpu", "train"}),
              ElementsAre("launch", "--cpu", "train"));
  EXPECT_THAT(expand_arguments("accelerate-estimate-memory", Words{"m"}),
              ElementsAre("estimate-memory", "m"));
  for (const char* link : link_names()) EXPECT_EQ(expand_arguments(link, {}).size(), 1u) << link;
}

TEST(ExpandArguments, OtherNamesStandForNothing) {
  for (const char* name : {"accelerate", "./accelerate", "accelerate-", "accelerate-lunch", ""}) {
    EXPECT_THAT(expand_arguments(name, {}), IsEmpty()) << name;
    EXPECT_THAT(expand_arguments(name, Words{"env"}), ElementsAre("env"));
  }
}

TEST(ExpandArguments, SimulateIsALaunch) {
  EXPECT_THAT(
      expand_arguments("accelerate", Words{"simulate", "2x4:h100", "./train", "--simulate"}),
      ElementsAre("launch", "--simulate", "2x4:h100", "./train", "--simulate"));
  EXPECT_THAT(expand_arguments("accelerate", Words{"launch", "simulate"}),
              ElementsAre("launch", "simulate"));
  EXPECT_THAT(expand_arguments("accelerate", Words{"simulate"}), ElementsAre("simulate"));
  EXPECT_THAT(expand_arguments("accelerate", Words{"simulate", "--help"}),
              ElementsAre("simulate", "--help"));
  EXPECT_THAT(expand_arguments("accelerate", Words{"simulate", ""}), ElementsAre("simulate", ""));
}

TEST(CanonicalNames, AreThoseOfOptionsOnly) {
  CLI::App app;
  std::string text;
  bool flag = false;
  app.add_option("--my_text", text);
  app.add_subcommand("inner")->add_flag("--my_flag", flag);
  EXPECT_THAT(
      with_canonical_names(app, {"--my-text", "--my-text", "inner", "--my-flag", "--my-other",
                                 "--my-text=--a-b", "a-b", "--", "--my-text"}),
      ElementsAre("--my_text", "--my-text", "inner", "--my_flag", "--my-other", "--my_text=--a-b",
                  "a-b", "--", "--my-text"));
}

TEST(Simulate, SaysWhatComesFirst) {
  for (const Words& words : {Words{}, Words{"--simulate_seed", "1", "2x4", "train"}}) {
    const CommandResult result = run_command(kSimulate, words);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, HasSubstr("accelerate simulate SPEC"));
  }
}

}  // namespace
}  // namespace accelerate::launch::commands
