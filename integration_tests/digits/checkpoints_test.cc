// The example as two real processes, with real files: stopped and resumed it ends with the weights
// of a run that was not.
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/checkpoint/folder/checkpoint_folder.h"
#include "accelerate/platform/child.h"
#include "accelerate/platform/host_files.h"

namespace accelerate {
namespace {

using testing::HasSubstr;

ChildResult digits(const std::string& output_dir, const std::string& options,
                   const std::string& launch = "--num_processes 2") {
  const std::string command = "launch/accelerate launch " + launch +
                              " accelerate/examples/digits/digits --data "
                              "accelerate/examples/digits/digits.csv.gz --epochs 2 --dropout 0.2 "
                              "--checkpointing_steps 7 --output_dir " +
                              output_dir + " " + options;
  return run_shell(command).value();
}

TEST(Checkpoints, AStoppedRunEndsWithTheSameWeights) {
  HostFiles files;
  const std::string whole = testing::TempDir() + "whole", halves = testing::TempDir() + "halves";
  const ChildResult uninterrupted = digits(whole, "");
  ASSERT_EQ(uninterrupted.exit_code, 0) << uninterrupted.output;
  const ChildResult stopped = digits(halves, "--max_steps 31");
  ASSERT_EQ(stopped.exit_code, 0) << stopped.output;
  const auto latest = latest_complete(files, halves + "/checkpoints");
  ASSERT_TRUE(latest.ok() && latest->has_value()) << latest.status();
  EXPECT_EQ((*latest)->number, 3);  // after 28 steps
  EXPECT_TRUE(verify_checkpoint(files, (*latest)->path).ok());
  EXPECT_EQ(files.list(halves + "/checkpoints").value().size(), 2u);
  const ChildResult resumed = digits(halves, "--resume");
  ASSERT_EQ(resumed.exit_code, 0) << resumed.output;
  const std::string weights = "/model/model.safetensors";
  EXPECT_EQ(read_file(files, halves + weights).value(), read_file(files, whole + weights).value());
  // Simulated processes load a checkpoint that real ones saved.
  const ChildResult simulated = digits(halves, "--resume --max_steps 1", "--simulate 1x2");
  EXPECT_EQ(simulated.exit_code, 0) << simulated.output;
}

TEST(Checkpoints, AFolderThatCannotBeMadeIsNamed) {
  const ChildResult failed = digits("/proc/nowhere", "");
  EXPECT_NE(failed.exit_code, 0);
  EXPECT_THAT(failed.output, HasSubstr("/proc/nowhere/checkpoints"));
  EXPECT_THAT(failed.output, HasSubstr("rank 0"));
}

}  // namespace
}  // namespace accelerate
