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
using testing::Not;

ChildResult digits(const std::string& output_dir, const std::string& options,
                   const std::string& launch = "--num_processes 2") {
  const std::string command =
      "launch/accelerate launch " + launch +
      " accelerate/examples/digits/digits --data "
      "accelerate/examples/digits/digits.safetensors --epochs 2 --dropout 0.2 "
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

// Trains on two simulated ranks with a disk of that rate. Returns the run's virtual time.
int64_t simulated_ns(const std::string& output_dir, const std::string& disk) {
  const ChildResult done = digits(
      output_dir, "--max_steps 8",
      "--simulate 1x2:h100,disk=" + disk + " --report " + testing::TempDir() + "report_" + disk);
  EXPECT_EQ(done.exit_code, 0) << done.output;
  HostFiles files;
  const std::string summary =
      read_file(files, testing::TempDir() + "report_" + disk + "/summary.json").value();
  const std::string key = "\"elapsed_ns\": ";
  return std::stoll(summary.substr(summary.find(key) + key.size()));
}

TEST(Checkpoints, OfASimulatedRunAreFilesHereAndTakeTheTimeOfItsDisk) {
  HostFiles files;
  const std::string folder = testing::TempDir() + "simulated";
  const int64_t slow_ns = simulated_ns(folder + "_slow", "8Mbps");
  const int64_t ns = simulated_ns(folder, "off");
  for (const std::string& saved : {folder, folder + "_slow"}) {
    const auto latest = latest_complete(files, saved + "/checkpoints");
    ASSERT_TRUE(latest.ok() && latest->has_value()) << latest.status();
    EXPECT_TRUE(verify_checkpoint(files, (*latest)->path).ok());
  }
  // Both ranks read the data, and rank 0 saves a checkpoint and the model.
  const int64_t bytes = 2 * files.info("accelerate/examples/digits/digits.safetensors")->size +
                        2 * files.info(folder + "/model/model.safetensors")->size;
  EXPECT_GE(slow_ns, 1000 * bytes);
  EXPECT_LT(ns, 1000 * bytes);
}

TEST(Checkpoints, AFolderThatCannotBeMadeIsNamed) {
  const ChildResult failed = digits("/proc/nowhere", "");
  EXPECT_NE(failed.exit_code, 0);
  EXPECT_THAT(failed.output, HasSubstr("rank 0: nothing can be saved in "
                                       "ProjectConfiguration::project_dir /proc/nowhere: cannot"));
  EXPECT_THAT(failed.output, Not(HasSubstr("test accuracy"))) << "before the training";
}

}  // namespace
}  // namespace accelerate
