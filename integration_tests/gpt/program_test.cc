// The example as a program: its flags, and the table that it prints.
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/platform/child.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

ChildResult gpt(const std::string& launch, const std::string& options) {
  return run_shell("launch/accelerate launch " + launch + " accelerate/examples/gpt/gpt " + options)
      .value();
}

TEST(GptProgram, TrainsSimulatedRanks) {
  const ChildResult done =
      gpt("--simulate 1x2:h100",
          "--layers 2 --heads 2 --width 32 --context 32 --steps 3 --log_every 2 --precision bf16 "
          "--activation_checkpointing --optimizer sgd --untied_head");
  ASSERT_EQ(done.exit_code, 0) << done.output;
  EXPECT_THAT(done.output,
              AllOf(ContainsRegex("step +loss +tokens/s"), ContainsRegex(" 2 +5\\.[0-9]+ +[0-9]+"),
                    ContainsRegex(" 3 +5\\.[0-9]+ +[0-9]+"),
                    HasSubstr("gpt: 2 ranks on 1x2, 0.0 million parameters, step time "),
                    HasSubstr("peak memory ")));
}

TEST(GptProgram, TrainsRealRanks) {
  const ChildResult done =
      gpt("--num_processes 2", "--layers 1 --heads 2 --width 16 --context 16 --steps 2");
  ASSERT_EQ(done.exit_code, 0) << done.output;
  EXPECT_THAT(done.output, AllOf(HasSubstr("gpt: 2 ranks on "), Not(HasSubstr("peak memory"))));
}

TEST(GptProgram, RefusesASizeThatIsNone) {
  const ChildResult refused = gpt("--simulate 1x2", "--size 8B");
  EXPECT_EQ(refused.exit_code, 2) << refused.output;
  EXPECT_THAT(refused.output, HasSubstr("8B"));
}

}  // namespace
}  // namespace accelerate
