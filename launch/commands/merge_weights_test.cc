
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "accelerate/files/formats/safetensors_header.h"
#include "accelerate/platform/host_files.h"
#include "launch/commands/commands.h"
#include "launch/testing/commands/command_tester.h"

namespace accelerate::launcher::commands {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class MergeWeights : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(folder_ + "/in");
    SafetensorsHeader header{.tensors = {{.name = "w", .dtype = "F32", .shape = {2}}}};
    const auto start = lay_out_safetensors(header);
    ASSERT_TRUE(start.ok());
    std::ofstream(folder_ + "/in/a.safetensors", std::ios::binary)
        << *start << std::string(8, '\1');
    std::ofstream(folder_ + "/in/model.safetensors.index.json")
        << R"({"weight_map": {"w": "a.safetensors"}})";
  }

  const TemporaryFolder temporary_;
  const std::string folder_ = temporary_.path();
};

TEST_F(MergeWeights, MakesOneFileAndSaysWhere) {
  const CommandResult result = run_command(kMergeWeights, {folder_ + "/in", folder_ + "/out"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "1 tensors, 8 bytes: " + folder_ + "/out/model.safetensors\n");
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/out/model.safetensors"));
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/in/a.safetensors"));
}

TEST_F(MergeWeights, RemovesTheCheckpointWhenAskedTo) {
  const CommandResult result = run_command(
      kMergeWeights,
      {folder_ + "/in", folder_ + "/out", "--remove_checkpoint_dir", "--unsafe_serialization"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("--unsafe_serialization has no effect"));
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/in"));
}

TEST_F(MergeWeights, SaysWhatIsWrong) {
  CommandResult result = run_command(kMergeWeights, {folder_ + "/in"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("two folders are needed"));
  result = run_command(kMergeWeights, {folder_ + "/nowhere", folder_ + "/out"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, AllOf(HasSubstr("accelerate merge-weights: "), HasSubstr("/nowhere")));
}

}  // namespace
}  // namespace accelerate::launcher::commands
