// The examples as programs under the launcher: with shapes alone they print the step time and the
// peak memory of a run with values. One shape: that of the demo.
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/platform/child.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kShapes[] = " --simulate_numerics shapes --simulate_unknown_values nan ";

std::string output_of(const std::string& options, const std::string& program) {
  const ChildResult done =
      run_shell("launch/accelerate launch --simulate 2x4:h100 " + options + " " + program).value();
  EXPECT_EQ(done.exit_code, 0) << done.output;
  return done.output;
}

// What the program's last line says from the step time on.
std::string costs(const std::string& output) {
  const size_t begin = output.rfind("step time ");
  if (begin == output.npos) return "no step time in:\n" + output;
  return output.substr(begin, output.find('\n', begin) - begin);
}

TEST(Demo, CostsTheSameWithShapesAlone) {
  const std::string digits =
      "accelerate/examples/digits/digits --data accelerate/examples/digits/digits.safetensors "
      "--max_steps 10";
  const std::string real = costs(output_of("", digits));
  EXPECT_THAT(real, HasSubstr("peak memory"));
  EXPECT_EQ(costs(output_of(kShapes, digits)), real);
}

// Two of eight ranks run: rank 0 and a spot check.
TEST(Lm, CostsTheSameFolded) {
  const std::string lm =
      "accelerate/examples/lm/lm --max_steps 4 --log_every 2 --evaluation_sequences 8";
  const std::string whole = output_of(kShapes, lm);
  EXPECT_THAT(costs(whole), HasSubstr("peak memory"));
  EXPECT_EQ(costs(output_of(std::string(kShapes) + "--simulate_fold ", lm)), costs(whole));
  // With a mesh, along its axes.
  const std::string mesh =
      std::string(kShapes) + "--use_parallelism_config --parallelism_config_dp_replicate_size 8 ";
  EXPECT_EQ(costs(output_of(mesh + "--simulate_fold ", lm)), costs(output_of(mesh, lm)));
}

TEST(Lm, CostsTheSameWithShapesAlone) {
  const std::string lm =
      "accelerate/examples/lm/lm --blocks llama --max_steps 4 --log_every 2 --mixed_precision bf16 "
      "--activation_checkpointing --evaluation_sequences 8";
  const std::string shapes = output_of(kShapes, lm);
  EXPECT_THAT(costs(shapes), HasSubstr("peak memory"));
  EXPECT_EQ(costs(shapes), costs(output_of("", lm)));
  EXPECT_THAT(shapes, HasSubstr("loss nan")) << "no loss was computed";
}

}  // namespace
}  // namespace accelerate
