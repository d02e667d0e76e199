// A rank of four is killed in the middle of an epoch: all start anew from the last checkpoint, and
// the weights are those of a run in which nothing happened.
#include <csignal>
#include <cstdlib>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "accelerate/platform/file_system.h"
#include "accelerate/platform/host_files.h"
#include "launch/testing/launcher_process.h"

namespace accelerate {
namespace {

using launcher::testing::LauncherProcess;
using ::testing::HasSubstr;

constexpr char kWeights[] = "/model/model.safetensors";

std::vector<std::string> training(const std::string& output_dir) {
  const char* agent = std::getenv("ACCELERATE_AGENT_RUNNER");
  EXPECT_NE(agent, nullptr);
  return {agent,
          "processes=4",
          "max_restarts=1",
          "--",
          "/bin/sh",
          "-c",
          absl::StrCat("export OMP_NUM_THREADS=1; echo $$ is rank $RANK; "
                       "exec accelerate/examples/digits/digits --data "
                       "accelerate/examples/digits/digits.safetensors --epochs 6 --dropout 0.2 "
                       "--checkpointing_steps 7 --resume --output_dir ",
                       output_dir)};
}

TEST(Restart, ARunThatLostARankEndsWithTheSameWeights) {
  HostFiles files;
  const std::string whole = ::testing::TempDir() + "whole", torn = ::testing::TempDir() + "torn";
  LauncherProcess undisturbed(training(whole));
  ASSERT_EQ(undisturbed.finish(), 0) << undisturbed.stderr_text();

  LauncherProcess disturbed(training(torn));
  const std::vector<std::string> said = disturbed.wait_for_lines("is rank 2", 1);
  ASSERT_EQ(said.size(), 1u);
  const std::vector<std::string> words = absl::StrSplit(said[0], ' ');
  int pid = 0;
  ASSERT_TRUE(words.size() > 2 && absl::SimpleAtoi(words[2], &pid)) << said[0];
  // The table's first row, after the first of six epochs of 23 steps.
  std::string line;
  do {
    line = disturbed.next_output_line();
  } while (!line.empty() && line.find("]     1  ") == std::string::npos);
  ASSERT_FALSE(line.empty());
  ASSERT_EQ(kill(pid, SIGKILL), 0);
  EXPECT_EQ(disturbed.finish(), 0) << disturbed.stderr_text();
  EXPECT_THAT(disturbed.stderr_text(), HasSubstr(absl::StrCat("rank 2 (pid ", pid, ", ")));
  EXPECT_THAT(disturbed.stderr_text(), HasSubstr("was killed by signal 9"));
  EXPECT_THAT(disturbed.stderr_text(), HasSubstr("round 1, restart 1 of 1: 4 ranks"));
  EXPECT_TRUE(disturbed.everyone_is_gone());

  EXPECT_EQ(read_file(files, torn + kWeights).value(), read_file(files, whole + kWeights).value());
}

}  // namespace
}  // namespace accelerate
