// The example as two real processes, with real files: stopped and resumed it ends with the weights
// of a run that was not.
#include <array>
#include <cstdio>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/checkpoint/folder/checkpoint_folder.h"
#include "accelerate/platform/host_files.h"

namespace accelerate {
namespace {

using testing::HasSubstr;

struct Output {
  int status = -1;
  std::string text;
};

Output digits(const std::string& output_dir, const std::string& options,
              const std::string& launch = "--num_processes 2") {
  const std::string command = "launch/accelerate launch " + launch +
                              " accelerate/examples/digits/digits --data "
                              "accelerate/examples/digits/digits.csv.gz --epochs 2 --dropout 0.2 "
                              "--checkpointing_steps 7 --output_dir " +
                              output_dir + " " + options + " 2>&1";
  Output output;
  std::FILE* pipe = popen(command.c_str(), "r");
  std::array<char, 4096> chunk;
  while (size_t n = fread(chunk.data(), 1, chunk.size(), pipe)) output.text.append(chunk.data(), n);
  output.status = pclose(pipe);
  return output;
}

TEST(Checkpoints, AStoppedRunEndsWithTheSameWeights) {
  HostFiles files;
  const std::string whole = testing::TempDir() + "whole", halves = testing::TempDir() + "halves";
  const Output uninterrupted = digits(whole, "");
  ASSERT_EQ(uninterrupted.status, 0) << uninterrupted.text;
  const Output stopped = digits(halves, "--max_steps 31");
  ASSERT_EQ(stopped.status, 0) << stopped.text;
  const auto latest = latest_complete(files, halves + "/checkpoints");
  ASSERT_TRUE(latest.ok() && latest->has_value()) << latest.status();
  EXPECT_EQ((*latest)->number, 3);  // after 28 steps
  EXPECT_TRUE(verify_checkpoint(files, (*latest)->path).ok());
  EXPECT_EQ(files.list(halves + "/checkpoints").value().size(), 2u);
  const Output resumed = digits(halves, "--resume");
  ASSERT_EQ(resumed.status, 0) << resumed.text;
  const std::string weights = "/model/model.safetensors";
  EXPECT_EQ(read_file(files, halves + weights).value(), read_file(files, whole + weights).value());
  // What real processes saved simulated ones load.
  const Output simulated = digits(halves, "--resume --max_steps 1", "--simulate 1x2");
  EXPECT_EQ(simulated.status, 0) << simulated.text;
}

TEST(Checkpoints, AFolderThatCannotBeMadeIsNamed) {
  const Output failed = digits("/proc/nowhere", "");
  EXPECT_NE(failed.status, 0);
  EXPECT_THAT(failed.text, HasSubstr("/proc/nowhere/checkpoints"));
  EXPECT_THAT(failed.text, HasSubstr("rank 0"));
}

}  // namespace
}  // namespace accelerate
