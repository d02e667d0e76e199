#include "accelerate/precision/fp8_quantize.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
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

// A format by its definition alone.
struct Format {
  at::ScalarType type;
  int fraction_bits, bias, last_code;  // of the largest finite number

  double value(int code) const {
    const int exponent = code >> fraction_bits, fraction = code & ((1 << fraction_bits) - 1);
    const double part = std::ldexp(fraction, -fraction_bits);
    return exponent == 0 ? std::ldexp(part, 1 - bias) : std::ldexp(1 + part, exponent - bias);
  }

  // The nearest number's code; ties go to the even code, everything beyond to the last.
  int code(double x) const {
    const int sign = std::signbit(x) ? 0x80 : 0;
    const double magnitude = std::min(std::abs(x), value(last_code));
    int best = 0;
    for (int code = 1; code <= last_code; ++code) {
      const double old = std::abs(value(best) - magnitude), now = std::abs(value(code) - magnitude);
      if (now < old || (now == old && code % 2 == 0)) best = code;
    }
    return best | sign;
  }
};

constexpr Format kFormats[] = {{kE4M3, 3, 7, 0x7e}, {kE5M2, 2, 15, 0x7b}};

// Every number, the midpoints between numbers, their neighbours in float32, and values out of
// range.
std::vector<float> interesting(const Format& format) {
  std::vector<float> values{0.f, 1e30f, std::numeric_limits<float>::denorm_min()};
  for (int code = 0; code <= format.last_code; ++code) {
    const auto here = static_cast<float>(format.value(code));
    const auto next = static_cast<float>(format.value(code + 1));
    for (const float x : {here, (here + next) / 2}) {
      values.insert(values.end(), {x, std::nextafter(x, kInfinity), std::nextafter(x, -kInfinity)});
    }
  }
  const size_t positive = values.size();
  for (size_t i = 0; i < positive; ++i) values.push_back(-values[i]);
  return values;
}

TEST(Fp8Cast, RoundsToNearestEvenAndSaturates) {
  for (const Format& format : kFormats) {
    EXPECT_EQ(fp8_max(format.type), format.value(format.last_code));
    const std::vector<float> values = interesting(format);
    const Tensor codes =
        fp8_cast(torch::tensor(values), torch::ones({}), format.type).view(at::kByte);
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(codes[static_cast<int64_t>(i)].item<int>(), format.code(values[i]))
          << values[i] << " in " << format.type;
    }
  }
}

TEST(Fp8Cast, KeepsNanAndRefusesOtherTypes) {
  const Tensor nan = torch::full({1}, kNan);
  for (const Format& format : kFormats) {
    EXPECT_TRUE(fp8_cast(nan, torch::ones({}), format.type).to(at::kFloat).isnan().item<bool>());
  }
  EXPECT_THROW(fp8_cast(nan, torch::ones({}), at::kHalf), c10::ValueError);
}

TEST(Fp8Quantize, SpreadsATensorOverTheRange) {
  const Tensor x = torch::tensor({1.f, -3.5f, 0.25f, 0.f});
  const Fp8Tensor fp8 = fp8_quantize(x, kE4M3);
  EXPECT_EQ(fp8.data.to(at::kFloat)[1].item<float>(), -448);
  EXPECT_EQ(fp8.inverse_scale.item<float>(), 3.5f / 448);
  EXPECT_TRUE(fp8.dequantize().equal(x));  // all are numbers of the format times 1 / 128
}

// The scale reaches every finite amax without leaving float32 itself.
TEST(Fp8Quantize, HandlesTheEndsOfTheRange) {
  for (const Format& format : kFormats) {
    for (const float size : {0.f, std::numeric_limits<float>::denorm_min(), 1e-30f, 1e-20f, 1.f,
                             std::numeric_limits<float>::max()}) {
      const Fp8Tensor fp8 = fp8_quantize(torch::tensor({size, -size}), format.type);
      EXPECT_TRUE(fp8.inverse_scale.isfinite().item<bool>()) << size;
      const Tensor back = fp8.dequantize();
      EXPECT_NEAR(back[0].item<float>(), size, size < 1e-30f ? 1e-35 : size * 1e-6) << size;
    }
    EXPECT_EQ(fp8_quantize(torch::empty({0, 4}), format.type).dequantize().numel(), 0);
    EXPECT_EQ(fp8_amax(torch::empty({0})).item<float>(), 0);
  }
}

TEST(Fp8Quantize, HidesNoInfinityOrNan) {
  for (const float bad : {kInfinity, -kInfinity, kNan}) {
    const Tensor x = torch::tensor({1.f, bad});
    EXPECT_TRUE(fp8_quantize(x, kE4M3).dequantize().isnan().all().item<bool>());
    EXPECT_TRUE(fp8_quantize(x, torch::ones({}), fp8_amax(x), kE5M2)
                    .dequantize()
                    .isnan()
                    .all()
                    .item<bool>());
  }
}

TEST(Fp8Quantize, TakesHalfPrecisionWithoutRoundingItFirst) {
  const Tensor x = torch::randn({64}).to(at::kBFloat16);
  EXPECT_TRUE(fp8_quantize(x, kE4M3).data.view(at::kByte).equal(
      fp8_quantize(x.to(at::kFloat), kE4M3).data.view(at::kByte)));
}

// By hand, block by block.
TEST(MxQuantize, GivesEachBlockThePowerOfTwoThatFits) {
  torch::manual_seed(3);
  for (const Format& format : kFormats) {
    const double limit = format.value(format.last_code);
    Tensor x = torch::randn({5, 80}) * torch::exp(torch::randn({5, 80}) * 4);
    x[0].slice(0, 0, 32).zero_();
    x[1][3] = limit * 64;  // a power of two times the largest number exactly
    x[1].slice(0, 4, 32).fill_(1e-3);
    const MxTensor mx = mx_quantize(x, format.type);
    EXPECT_EQ(mx.exponents.sizes(), (at::IntArrayRef{5, 3}));
    const Tensor codes = mx.data.view(at::kByte), back = mx.dequantize();
    for (int64_t row = 0; row < 5; ++row) {
      for (int64_t block = 0; block < 3; ++block) {
        const int64_t end = std::min<int64_t>(80, (block + 1) * 32);
        double amax = 0;
        for (int64_t i = block * 32; i < end; ++i) {
          amax = std::max(amax, std::abs(x[row][i].item<double>()));
        }
        int exponent = -127;
        while (amax > std::ldexp(limit, exponent)) ++exponent;
        EXPECT_EQ(mx.exponents[row][block].item<int>(), exponent + 127);
        for (int64_t i = block * 32; i < end; ++i) {
          const double scaled = std::ldexp(x[row][i].item<double>(), -exponent);
          const int code = format.code(scaled);
          ASSERT_EQ(codes[row][i].item<int>(), code);
          const double value = std::ldexp(format.value(code & 0x7f), exponent);
          ASSERT_EQ(back[row][i].item<double>(), (code & 0x80) ? -value : value);
        }
      }
    }
  }
}

TEST(MxQuantize, KeepsWhatIsNotFiniteInItsBlock) {
  Tensor x = torch::ones({1, 64});
  x[0][40] = kInfinity;
  const Tensor back = mx_quantize(x, kE4M3).dequantize();
  EXPECT_TRUE(back.slice(1, 0, 32).equal(torch::ones({1, 32})));
  EXPECT_TRUE(back.slice(1, 32, 64).isnan().all().item<bool>());
  EXPECT_EQ(mx_quantize(torch::empty({3, 0}), kE4M3).dequantize().numel(), 0);
  EXPECT_EQ(mx_quantize(torch::empty({0, 40}), kE4M3).dequantize().numel(), 0);
  EXPECT_THROW(mx_quantize(torch::ones({3}), kE4M3), c10::ValueError);
}

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
  const std::vector<float> amaxes{7, 28, 3, 14, 1, 2, 5, 9};
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
  // The state stays what it was, for whoever loads it next.
  DelayedScales three(1, options);
  three.load_state_dict(state);
  resumed.clear();
  steps(three, 3, 8, resumed);
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
