#include "accelerate/precision/fp8_scales.h"

#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/testing/threaded_group.h"

namespace accelerate {
namespace {

using torch::Tensor;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

void record(DelayedScales& scales, int64_t layer, Fp8Role role, float amax) {
  scales.record(layer, role, torch::tensor(amax));
}
float scale(const DelayedScales& scales, int64_t layer = 0, Fp8Role role = Fp8Role::kInput) {
  return scales.scale(layer, role).item<float>();
}

// The scales of the input, before each step and after the last one.
std::vector<float> scales_after(const DelayedScalingOptions& options,
                                const std::vector<float>& amaxes) {
  DelayedScales scales(1, options);
  std::vector<float> seen;
  for (const float amax : amaxes) {
    scales.begin_step(nullptr);
    seen.push_back(scale(scales));
    record(scales, 0, Fp8Role::kInput, amax);
  }
  scales.begin_step(nullptr);
  seen.push_back(scale(scales));
  return seen;
}

using Scales = std::vector<float>;

TEST(DelayedScales, FollowTheNewestAmax) {
  EXPECT_EQ(scales_after({}, {7, 14, 3.5}), (Scales{1, 64, 32, 128}));
}

TEST(DelayedScales, FollowTheLargestOfTheHistory) {
  EXPECT_EQ(scales_after({.amax_history_len = 2, .use_max = true}, {7, 14, 3.5, 3.5, 28}),
            (Scales{1, 64, 32, 32, 128, 16}));
  // Longer than there are steps.
  EXPECT_EQ(scales_after({.use_max = true}, {14, 7, 3.5}), (Scales{1, 32, 32, 32}));
}

TEST(DelayedScales, LeaveAMargin) {
  EXPECT_EQ(scales_after({.margin = 3}, {7, 14}), (Scales{1, 8, 4}));
}

TEST(DelayedScales, AreComputedOncePerInterval) {
  EXPECT_EQ(scales_after({.interval = 2}, {7, 14, 28, 56}), (Scales{1, 1, 32, 32, 8}));
  EXPECT_EQ(scales_after({.interval = 2, .amax_history_len = 4, .use_max = true}, {14, 7, 28, 3.5}),
            (Scales{1, 1, 32, 32, 16}));
}

TEST(DelayedScales, StayWhereAnAmaxSaysNothing) {
  EXPECT_EQ(scales_after({}, {7, 0, kInfinity, kNan, 14}), (Scales{1, 64, 64, 64, 64, 32}));
  // A value that is not finite is dropped at once, not when it leaves the history.
  EXPECT_EQ(scales_after({.amax_history_len = 8, .use_max = true}, {7, kInfinity, 14}),
            (Scales{1, 64, 64, 32}));
}

TEST(DelayedScales, ReachAVerySmallAmaxWithAFiniteScale) {
  const std::vector<float> scales = scales_after({}, {std::numeric_limits<float>::denorm_min()});
  EXPECT_TRUE(std::isfinite(scales[1]));
  EXPECT_TRUE(std::isnormal(1 / scales[1]));
}

TEST(DelayedScales, KeepLayersAndRolesApart) {
  DelayedScales scales(2, {});
  scales.begin_step(nullptr);
  record(scales, 0, Fp8Role::kInput, 7);
  record(scales, 0, Fp8Role::kGradient, 7);
  record(scales, 1, Fp8Role::kWeight, 3.5);
  record(scales, 1, Fp8Role::kWeight, 7);  // used twice: the larger counts
  record(scales, 1, Fp8Role::kWeight, 1);
  EXPECT_EQ(scale(scales, 1, Fp8Role::kWeight), 1);  // not before the next step
  scales.begin_step(nullptr);
  EXPECT_EQ(scale(scales, 0, Fp8Role::kInput), 64);
  EXPECT_EQ(scale(scales, 0, Fp8Role::kWeight), 1);
  EXPECT_EQ(scale(scales, 0, Fp8Role::kGradient), 8192);
  EXPECT_EQ(scale(scales, 1, Fp8Role::kInput), 1);
  EXPECT_EQ(scale(scales, 1, Fp8Role::kWeight), 64);
}

TEST(DelayedScales, HaveTheGradientsFormat) {
  DelayedScales scales(1, {.gradient_format = kE4M3});
  scales.begin_step(nullptr);
  record(scales, 0, Fp8Role::kGradient, 7);
  scales.begin_step(nullptr);
  EXPECT_EQ(scale(scales, 0, Fp8Role::kGradient), 64);
}

TEST(DelayedScales, AreTheSameOnAllRanks) {
  run_ranks(3, [](const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
    DelayedScales scales(2, {});
    const auto rank = static_cast<float>(group->getRank());
    scales.begin_step(group.get());
    record(scales, 0, Fp8Role::kInput, 7 * (rank + 2));         // 14, 21, 28
    record(scales, 1, Fp8Role::kWeight, rank == 1 ? kNan : 7);  // no finite maximum
    scales.begin_step(group.get());
    EXPECT_EQ(scale(scales, 0, Fp8Role::kInput), 16);
    EXPECT_EQ(scale(scales, 1, Fp8Role::kWeight), 1);
    record(scales, 0, Fp8Role::kInput, 7 * (rank + 2));
    scales.begin_step(nullptr);  // each for itself
    EXPECT_EQ(scale(scales, 0, Fp8Role::kInput), 448 / (7 * (rank + 2)));
  });
}

TEST(DelayedScales, AgreeInARanksFirstStepToo) {
  run_ranks(2, [](const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
    DelayedScales scales(1, {});
    if (group->getRank() == 0) {  // makes a step alone before
      scales.begin_step(nullptr);
      record(scales, 0, Fp8Role::kInput, 7);
    }
    scales.begin_step(group.get());
    EXPECT_EQ(scale(scales), 64);
    record(scales, 0, Fp8Role::kInput, group->getRank() == 0 ? 7 : 14);
    scales.begin_step(group.get());
    EXPECT_EQ(scale(scales), 32);
  });
}

TEST(DelayedScales, ContinueFromTheirState) {
  const DelayedScalingOptions options{.interval = 2, .amax_history_len = 3, .use_max = true};
  DelayedScales one(1, options);
  std::vector<float> expected, resumed;
  std::map<std::string, Tensor> state;
  const std::vector<float> amaxes{7, 14, 3, 28, 1, 2, 5, 9};
  const auto steps = [&](DelayedScales& scales, size_t from, size_t to, std::vector<float>& seen) {
    for (size_t i = from; i < to; ++i) {
      scales.begin_step(nullptr);
      record(scales, 0, Fp8Role::kInput, amaxes[i]);
      seen.push_back(scale(scales));
    }
  };
  steps(one, 0, 3, expected);
  state = one.state_dict();
  expected.clear();
  steps(one, 3, 8, expected);
  DelayedScales two(1, options);
  two.load_state_dict(state);
  steps(two, 3, 8, resumed);
  EXPECT_EQ(resumed, expected);
}

TEST(DelayedScales, RefuseAStateThatDoesNotFit) {
  DelayedScales one(1, {}), two(2, {}), history(1, {.use_max = true});
  EXPECT_THROW(one.load_state_dict(two.state_dict()), c10::ValueError);
  EXPECT_THROW(one.load_state_dict(history.state_dict()), c10::ValueError);
  EXPECT_THROW(one.load_state_dict({}), c10::ValueError);
  EXPECT_THROW(DelayedScales(1, {.margin = -1}), c10::ValueError);
  EXPECT_THROW(DelayedScales(1, {.interval = 0}), c10::ValueError);
  EXPECT_THROW(DelayedScales(1, {.amax_history_len = 0}), c10::ValueError);
}

}  // namespace
}  // namespace accelerate
