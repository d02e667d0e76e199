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

TEST(Simulate, ExplainsAKernel) {
  const CommandResult result = run_command(
      kSimulate, {"--explain_op", "mm 12288x4096x4096:bf16", "--on", "h100,efficiency=measured"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const size_t sources = result.out.find("sources\n");
  ASSERT_NE(sources, std::string::npos);
  EXPECT_EQ(result.out.substr(0, sources), R"(mm 12288x4096x4096:bf16 on h100
  work        412.3 GFLOP
  traffic     234.9 MB, of which 100.7 MB are written
ideal
  arithmetic  416.7 us at 989.5 TFLOP/s
  memory      70.11 us at 3350 GB/s
  kernel      416.7 us, no less than 2 us
measured
  tiles       1536 of 256x128, in 12 waves of 132; at 1 of the best tile's speed (estimate)
  arithmetic  535.2 us at 80.3 % of 989.5 TFLOP/s (mamf)
  memory      80.16 us at 87.5 % of 3350 GB/s (azure)
  ramp        2.4 us (aic)
  correction  x 1.058, by measured products nearby:
              4096x4096x4096:fp16 took 194 us (vidur)
              4096x3840x5120:fp16 took 222 us (vidur)
              4096x4096x2048:fp16 took 102 us (vidur)
              4096x5120x5120:fp16 took 316.8 us (vidur)
              4096x5120x2560:fp16 took 154 us (vidur)
              4096x5504x4096:fp16 took 259 us (vidur)
  kernel      569 us, no less than 2 us
host
  ideal       5 us
  measured    6 us (pytorch-41383, estimate)
              7.8 us with a node for the backward pass (pytorch-41383, estimate)
A simulation takes the measured time (key efficiency of the cluster).
)");
  EXPECT_THAT(
      result.out.substr(sources),
      HasSubstr("\n  vidur       Vidur, profiles of linear layers, 2024-05-14 (H100 files), "
                "https://github.com/microsoft/vidur/tree/"));
}

TEST(Simulate, SaysWhatItCanExplain) {
  struct Case {
    Words words;
    const char* expected;
  };
  for (const Case& c :
       {Case{{"--explain_op", "mm 4x4", "--on", "h100"}, "expected mxnxk:TYPE, as in"},
        Case{{"--explain_op", "mm 4x4x4:bf16", "--on", "h1000"}, "expected a device"},
        Case{{"--explain_op", "mm 4x4x4:bf16", "--on", "1x1:h100,hbm=2"}, "expected a unit"},
        Case{{"--explain_op", "mm 4x4x4:bf16", "--on", "h100,efficiency=x"}, "ideal, measured"},
        Case{{"--explain_op", "mm 4x4x4:bf16"}, "--on"}, Case{{"--on", "h100"}, "--explain_op"}}) {
    const CommandResult result = run_command(kSimulate, c.words);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, HasSubstr(c.expected));
    EXPECT_THAT(result.out, IsEmpty());
  }
}

}  // namespace
}  // namespace accelerate::launch::commands
