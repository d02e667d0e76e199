// Runs `accelerate test` on real processes and on a simulated cluster, and asks `accelerate env`.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "accelerate/platform/child.h"

namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

// HOME is the test's own folder: no configuration of the machine takes part.
accelerate::ChildResult run_test_command(const std::string& launch_options) {
  return accelerate::run_shell("HF_HOME='" + ::testing::TempDir() + "' '" +
                               std::getenv("ACCELERATE_LAUNCHER") + "' test -- --cpu " +
                               launch_options)
      .value();
}

TEST(SelfTest, PassesOnProcesses) {
  const accelerate::ChildResult ran = run_test_command("--num_processes 2");
  EXPECT_EQ(ran.exit_code, 0) << ran.output;
  EXPECT_THAT(ran.output,
              AllOf(HasSubstr("All checks passed on 2 ranks."), HasSubstr("The self-test passed")));
}

TEST(SelfTest, ShowsWhichLibTorchAndHwlocProgramsLink) {
  const accelerate::ChildResult ran =
      accelerate::run_shell("HF_HOME='" + ::testing::TempDir() + "' '" +
                            std::getenv("ACCELERATE_LAUNCHER") + "' env")
          .value();
  EXPECT_EQ(ran.exit_code, 0) << ran.output;
  EXPECT_THAT(ran.output,
              ContainsRegex("- LibTorch version: [0-9.]+[^ ]* \\(/.*/libtorch_cpu.so.*, "
                            "which .*accelerate-self-test links\\)\n"));
  EXPECT_THAT(ran.output, ContainsRegex("- hwloc: API [0-9.]+\n"));
}

TEST(SelfTest, TellsTheVersionsOfTheInstallation) {
  const accelerate::ChildResult ran =
      accelerate::run_shell("'" + std::string(std::getenv("ACCELERATE_LAUNCHER")) + "' --version")
          .value();
  EXPECT_EQ(ran.exit_code, 0) << ran.output;
  EXPECT_THAT(ran.output, ContainsRegex("accelerate [0-9.]+\nLibTorch [0-9.]+.*\n"
                                        "Backends: (.*, )?gloo.*\n"));
}

// One shape, with several ranks on several nodes: a program of its own, started by the command.
TEST(SelfTest, PassesOnASimulatedCluster) {
  const accelerate::ChildResult ran = run_test_command("--simulate 2x2");
  EXPECT_EQ(ran.exit_code, 0) << ran.output;
  const std::string passed = "All checks passed on 4 ranks.";
  EXPECT_THAT(ran.output, HasSubstr(passed));
  EXPECT_EQ(ran.output.find(passed), ran.output.rfind(passed)) << "two nodes say it once";
}

}  // namespace
