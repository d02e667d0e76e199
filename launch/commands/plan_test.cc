#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "accelerate/base/rank_layout.h"
#include "accelerate/platform/host_files.h"
#include "launch/commands/commands.h"
#include "launch/testing/commands/command_tester.h"

namespace accelerate::launcher::commands {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class Plan : public ::testing::Test {
 protected:
  void SetUp() override {
    // Stands for the program: says how it was called.
    program_ = folder_ + "/accelerate-plan";
    std::ofstream(program_) << "#!/bin/sh\nprintf %s \"$1\" > " << folder_
                            << "/said\nexit ${CODE:-0}\n";
    EXPECT_EQ(chmod(program_.c_str(), 0755), 0);
  }

  CommandResult run(std::vector<std::string> words, std::vector<std::string> environment = {}) {
    return run_command(
        kPlan, std::move(words),
        {.environment = std::move(environment), .executable = folder_ + "/accelerate"});
  }

  json said() {
    std::stringstream text;
    text << std::ifstream(folder_ + "/said").rdbuf();
    return json::parse(text.str());
  }

  const TemporaryFolder temporary_;
  const std::string folder_ = temporary_.path();
  std::string program_;
};

TEST_F(Plan, AsksTheProgramForWhatWasTyped) {
  EXPECT_EQ(run({"llama-70b", "--on", "16x8:h100"}).exit_code, 0);
  EXPECT_EQ(said(), json({{"model", "llama-70b"},
                          {"cluster", "16x8:h100"},
                          {"micro_batch_size", 1},
                          {"mixed_precision", "bf16"},
                          {"exact", false}}));
  const CommandResult result = run({"llama-1b",
                                    "--on",
                                    "1x8:h100,mem=40GB",
                                    "--batch_size",
                                    "64",
                                    "--micro_batch_size",
                                    "2",
                                    "--sequence_length",
                                    "512",
                                    "--layers",
                                    "4",
                                    "--experts",
                                    "8",
                                    "--mixed_precision",
                                    "no",
                                    "--exact",
                                    "--skew",
                                    "2.5",
                                    "--most_pp",
                                    "4",
                                    "--most_cp",
                                    "2",
                                    "--most_sp",
                                    "8"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(said(), json({{"model", "llama-1b"},
                          {"cluster", "1x8:h100,mem=40GB"},
                          {"batch_size", 64},
                          {"micro_batch_size", 2},
                          {"sequence_length", 512},
                          {"layers", 4},
                          {"experts", 8},
                          {"skew", 2.5},
                          {"most_pp", 4},
                          {"most_cp", 2},
                          {"most_sp", 8},
                          {"mixed_precision", "no"},
                          {"exact", true}}));
}

TEST_F(Plan, RefusesNumbersThatCannotBe) {
  for (const char* option : {"--batch_size", "--micro_batch_size", "--sequence_length", "--layers",
                             "--experts", "--most_pp", "--most_cp", "--most_sp"}) {
    const CommandResult result = run({"llama-70b", "--on", "16x8:h100", option, "0"});
    EXPECT_EQ(result.exit_code, kExitBadCommandLine) << option;
    EXPECT_THAT(result.err, HasSubstr(option));
  }
  EXPECT_EQ(run({"llama-70b", "--on", "16x8:h100", "--skew", "-1"}).exit_code, kExitBadCommandLine);
  EXPECT_EQ(run({"llama-70b", "--on", "16x8:h100", "--mixed_precision", "int8"}).exit_code,
            kExitBadCommandLine);
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/said"));
  EXPECT_EQ(run({"llama-70b", "--on", "16x8:h100", "--skew", "0"}).exit_code, 0);
}

TEST_F(Plan, AsksForJson) {
  EXPECT_EQ(run({"llama-70b", "--on", "16x8:h100", "--json"}).exit_code, 0);
  EXPECT_EQ(said().value("json", false), true);
}

TEST_F(Plan, PassesAFailureOn) {
  EXPECT_EQ(run({"llama-70b", "--on", "2x8:h100"}, {"CODE=7"}).exit_code, 7);
}

TEST_F(Plan, SaysWhatIsMissing) {
  const CommandResult nothing = run({});
  EXPECT_EQ(nothing.exit_code, kExitBadCommandLine);
  EXPECT_THAT(nothing.err, HasSubstr("accelerate plan: a model and a cluster are needed"));
  const CommandResult device = run({"llama-70b", "--on", "2x8"});
  EXPECT_EQ(device.exit_code, kExitBadCommandLine);
  EXPECT_THAT(device.err, HasSubstr("--on=2x8 names no device; expected a cluster as 16x8:h100"));
  EXPECT_EQ(run({"llama-70b", "--on", "2x8:abacus"}).exit_code, kExitBadCommandLine);
  std::filesystem::remove(program_);
  const CommandResult program = run({"llama-70b", "--on", "2x8:h100"});
  EXPECT_EQ(program.exit_code, kExitNotFound);
  EXPECT_THAT(program.err, HasSubstr("there is no program " + program_ + "; install"));
}

TEST_F(Plan, PrintsWhichLayoutsThereAre) {
  const CommandResult result = run({"--layouts_markdown"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out, layouts_markdown());
}

}  // namespace
}  // namespace accelerate::launcher::commands
