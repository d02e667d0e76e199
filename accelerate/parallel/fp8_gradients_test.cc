#include "accelerate/parallel/fp8_gradients.h"

#include <limits>
#include <memory>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/parallel/communication_hook.h"
#include "accelerate/testing/threaded_group.h"

namespace accelerate {
namespace {

using torch::Tensor;

Tensor rounded(const Tensor& x, double amax) {
  const float scale = static_cast<float>(448 / amax);
  return (x * scale).to(at::kFloat8_e4m3fn).to(at::kFloat) * (1 / scale);
}

// Rank r's gradient; amaxes are powers of two times 7, so that scales are exact.
Tensor gradient_of(int rank, double amax) {
  Tensor gradient = torch::arange(20, at::kFloat) * 0.013 * (rank + 1);
  gradient[0] = amax * (rank + 1) / 2;
  return gradient;
}

TEST(QuantizeGradients, UsesTheScaleOfTheLargest) {
  run_ranks(2, [](const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
    const int rank = group->getRank();
    const Tensor a = gradient_of(rank, 7), b = gradient_of(rank, 28);
    const Tensor expected_a = rounded(a, 7), expected_b = rounded(b, 28);
    quantize_gradients({a, Tensor(), b}, group.get());
    EXPECT_TRUE(a.equal(expected_a));
    EXPECT_TRUE(b.equal(expected_b));
  });
}

TEST(QuantizeGradients, MakesAllRanksSeeWhatIsNotFinite) {
  run_ranks(2, [](const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
    const Tensor bad = torch::ones({4}), good = torch::full({4}, 7.f);
    if (group->getRank() == 1) bad[2] = std::numeric_limits<float>::quiet_NaN();
    quantize_gradients({bad, good}, group.get());
    EXPECT_TRUE(bad.isnan().all().item<bool>());
    EXPECT_TRUE(good.equal(torch::full({4}, 7.f)));
  });
}

TEST(QuantizeGradients, NeedsNoGroupAndNoGradients) {
  quantize_gradients({}, nullptr);
  quantize_gradients({Tensor()}, nullptr);
  const Tensor empty = torch::empty({0}), zeros = torch::zeros({3}),
               half = torch::randn({8}).to(at::kHalf);
  quantize_gradients({empty, zeros, half}, nullptr);
  EXPECT_TRUE(zeros.equal(torch::zeros({3})));
  EXPECT_EQ(half.scalar_type(), at::kHalf);
}

TEST(Fp8GradientHook, RoundsTheGradientsOfItsWeightsOnly) {
  run_ranks(2, [](const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
    const Tensor weight = torch::zeros({4, 5}), bias = torch::zeros({20});
    const Tensor buffer =
        torch::cat({gradient_of(group->getRank(), 7), gradient_of(group->getRank(), 7)});
    c10d::GradBucket bucket(0, 1, buffer, {0, 20}, {20, 20}, {{4, 5}, {20}}, {weight, bias},
                            std::nullopt);
    Fp8GradientHook hook({weight}, std::make_unique<MeanHook>());
    hook.reduce(group, bucket)->waitAndThrow();
    const Tensor one = gradient_of(0, 7), two = gradient_of(1, 7);
    EXPECT_TRUE(buffer.narrow(0, 0, 20).equal(rounded(one, 7) / 2 + rounded(two, 7) / 2));
    EXPECT_TRUE(buffer.narrow(0, 20, 20).equal(one / 2 + two / 2));
  });
}

}  // namespace
}  // namespace accelerate
