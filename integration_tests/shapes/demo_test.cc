// The examples as programs under the launcher: with shapes alone they print the step time and the
// peak memory of a run with values. One shape: that of the demo.
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/platform/child.h"

namespace accelerate {
namespace {

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
      "accelerate/examples/digits/digits --data accelerate/examples/digits/digits.csv.gz "
      "--max_steps 10";
  const std::string real = costs(output_of("", digits));
  EXPECT_THAT(real, HasSubstr("peak memory"));
  EXPECT_EQ(costs(output_of(kShapes, digits)), real);
}

// Two of eight ranks run: rank 0 and a spot check.
TEST(Gpt, CostsTheSameFolded) {
  const std::string gpt = "accelerate/examples/gpt/gpt --steps 4 --log_every 2";
  const std::string whole = output_of(kShapes, gpt);
  EXPECT_THAT(costs(whole), HasSubstr("tokens/s"));
  EXPECT_EQ(costs(output_of(std::string(kShapes) + "--simulate_fold ", gpt)), costs(whole));
  // With a mesh, along its axes.
  const std::string mesh =
      std::string(kShapes) + "--use_parallelism_config --parallelism_config_tp_size 8 ";
  EXPECT_EQ(costs(output_of(mesh + "--simulate_fold ", gpt)), costs(output_of(mesh, gpt)));
}

TEST(Gpt, CostsTheSameWithShapesAlone) {
  const std::string gpt =
      "accelerate/examples/gpt/gpt --steps 4 --log_every 2 --precision bf16 "
      "--activation_checkpointing";
  const std::string shapes = output_of(kShapes, gpt);
  // Attention's kernels for bf16 have buffers, so the peak is lower: see equality_test.cc.
  const auto times = [](const std::string& output) {
    const std::string text = costs(output);
    return text.substr(0, text.find(", peak memory"));
  };
  EXPECT_THAT(times(shapes), HasSubstr("tokens/s"));
  EXPECT_EQ(times(shapes), times(output_of("", gpt)));
  EXPECT_THAT(shapes, HasSubstr("nan")) << "nobody computed a loss";
}

}  // namespace
}  // namespace accelerate
