#include "accelerate/optim/clip_grad.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/testing/threaded_group.h"

namespace accelerate {
namespace {

using ::testing::HasSubstr;
using Tensors = std::vector<torch::Tensor>;

constexpr double kInf = std::numeric_limits<double>::infinity();
const std::vector<double> kNormTypes = {1, 2, 3, 0.5, kInf, -kInf, 0, -1};

torch::Tensor with_gradient(torch::Tensor gradient) {
  torch::Tensor parameter = torch::zeros_like(gradient).requires_grad_();
  parameter.mutable_grad() = std::move(gradient);
  return parameter;
}

// Several shapes, one without a gradient, one without elements.
Tensors make_parameters(at::ScalarType dtype = at::kDouble) {
  torch::manual_seed(2);
  Tensors parameters;
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{3}, {}, {2, 5}, {0, 4}, {17}, {4, 2, 3}}) {
    parameters.push_back(with_gradient(torch::randn(shape).to(dtype)));
  }
  parameters.insert(parameters.begin() + 2, torch::ones({4}).to(dtype).requires_grad_());
  return parameters;
}

std::vector<double> elements_of(const Tensors& parameters) {
  std::vector<double> elements;
  for (const torch::Tensor& parameter : parameters) {
    if (!parameter.grad().defined()) continue;
    const torch::Tensor flat = parameter.grad().to(torch::kDouble).reshape({-1}).contiguous();
    elements.insert(elements.end(), flat.data_ptr<double>(),
                    flat.data_ptr<double>() + flat.numel());
  }
  return elements;
}

// From the definition; the elements of all gradients are one vector.
double expected_norm(const Tensors& parameters, double p) {
  double sum = 0;
  double largest = 0;
  double smallest = kInf;
  for (double element : elements_of(parameters)) {
    sum += std::pow(std::abs(element), p);
    largest = std::max(largest, std::abs(element));
    smallest = std::min(smallest, std::abs(element));
  }
  if (p == kInf) return largest;
  if (p == -kInf) return smallest;
  return std::pow(sum, 1 / p);
}

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

TEST(ClipGradNorm, ReturnsTheNormOfAllGradientsAndScalesThem) {
  for (double p : kNormTypes) {
    for (double max_norm : {0.0, 0.3, 1e6}) {
      const Tensors parameters = make_parameters();
      const std::vector<double> before = elements_of(parameters);
      // With order 0, PyTorch counts gradients.
      const double expected = p == 0 ? 5 : expected_norm(parameters, p);
      const torch::Tensor norm = clip_grad_norm_(parameters, max_norm, {.norm_type = p});
      EXPECT_EQ(norm.dim(), 0);
      EXPECT_NEAR(norm.item<double>(), expected, 1e-12 * expected) << p;
      const double factor = std::min(1.0, max_norm / (expected + 1e-6));
      const std::vector<double> after = elements_of(parameters);
      for (size_t i = 0; i < before.size(); ++i) {
        EXPECT_NEAR(after[i], before[i] * factor, 1e-12 * std::abs(before[i])) << p;
      }
    }
  }
}

TEST(ClipGradNorm, EqualsLibTorchs) {
  for (double p : {1.0, 2.0, 3.0, kInf}) {
    const Tensors ours = make_parameters(at::kFloat);
    Tensors theirs = make_parameters(at::kFloat);
    theirs.erase(theirs.begin() + 4);  // which it cannot take
    const double norm = torch::nn::utils::clip_grad_norm_(theirs, 0.5, p);
    EXPECT_FLOAT_EQ(clip_grad_norm_(ours, 0.5, {.norm_type = p}).item<float>(), norm);
    EXPECT_THAT(elements_of(ours), ::testing::Pointwise(::testing::FloatEq(), elements_of(theirs)));
  }
}

// In float, the sum of a million squares would keep three digits.
TEST(ClipGradNorm, HasTheDigitsOfItsTypeForManyElements) {
  const auto values = [](int64_t rows, int64_t columns) {
    const torch::Tensor x = torch::arange(rows * columns, torch::kDouble).sin_().mul_(0.01).add_(1);
    return x.mul_(0.1).to(torch::kFloat).view({rows, columns});
  };
  const Tensors parameters{with_gradient(values(1024, 1024)), with_gradient(values(1031, 509).t()),
                           with_gradient(values(4, 5)),
                           with_gradient(values(64, 1024).slice(1, 0, 700))};
  Tensors halves;
  for (const torch::Tensor& parameter : parameters) {
    halves.push_back(with_gradient(parameter.grad().to(torch::kBFloat16)));
  }
  for (double p : {1.0, 2.0, 3.0, 0.5, -1.0, kInf}) {
    const double expected = expected_norm(parameters, p);
    EXPECT_NEAR(get_total_norm(parameters, {.norm_type = p}).item<double>(), expected,
                1e-6 * expected)
        << p;
    EXPECT_EQ(get_total_norm(parameters, {.norm_type = p}).scalar_type(), torch::kFloat);
    EXPECT_NEAR(get_total_norm(halves, {.norm_type = p}).item<double>(), expected_norm(halves, p),
                1e-6 * expected)
        << p;
  }
}

TEST(ClipGradNorm, TakesSeveralTypes) {
  Tensors parameters = make_parameters(at::kFloat);
  for (const torch::Tensor& parameter : make_parameters(at::kBFloat16)) {
    parameters.push_back(parameter);
  }
  for (const torch::Tensor& parameter : make_parameters()) parameters.push_back(parameter);
  const double expected = expected_norm(parameters, 2);
  const torch::Tensor norm = clip_grad_norm_(parameters, 0.5);
  EXPECT_NEAR(norm.item<double>(), expected, 0.01 * expected);
  EXPECT_NEAR(expected_norm(parameters, 2), 0.5, 0.01);
  EXPECT_EQ(parameters[7].grad().scalar_type(), at::kBFloat16);
}

// As those of parameters that a model conjugates.
TEST(ClipGradNorm, TakesConjugatedAndNegatedGradients) {
  const torch::Tensor numbers = torch::complex(torch::tensor({3.0f}), torch::tensor({4.0f}));
  const torch::Tensor conjugated = with_gradient(numbers.conj());
  EXPECT_NEAR(clip_grad_norm_({conjugated}, 1).item<double>(), 5, 1e-5);
  EXPECT_TRUE(torch::allclose(conjugated.grad(), numbers.conj() / 5));
  const torch::Tensor negated = with_gradient(torch::tensor({3.0f, 1.0f})._neg_view());
  clip_grad_value_({negated}, 2);
  EXPECT_TRUE(torch::equal(negated.grad(), torch::tensor({-2.0f, -1.0f})));
}

TEST(ClipGradNorm, WithoutGradientsIsZero) {
  EXPECT_EQ(clip_grad_norm_({}, 1.0).item<double>(), 0);
  const Tensors parameters{torch::ones({3}).requires_grad_(), with_gradient(torch::ones({0}))};
  for (double p : kNormTypes) {
    EXPECT_EQ(clip_grad_norm_(parameters, 1.0, {.norm_type = p}).item<double>(), 0);
  }
}

TEST(ClipGradNorm, TakesOneTensor) {
  const torch::Tensor parameter = with_gradient(torch::full({4}, 3.0));
  EXPECT_FLOAT_EQ(clip_grad_norm_(parameter, 1.0).item<float>(), 6);
  EXPECT_TRUE(torch::allclose(parameter.grad(), torch::full({4}, 0.5)));
}

// As the parameters of a layer with two names come.
TEST(ClipGradNorm, CountsATiedParameterOnce) {
  const torch::Tensor parameter = with_gradient(torch::full({4}, 3.0));
  const Tensors parameters{parameter, parameter};
  EXPECT_FLOAT_EQ(get_total_norm(parameters).item<float>(), 6);
  EXPECT_FLOAT_EQ(clip_grad_norm_(parameters, 1.0).item<float>(), 6);
  EXPECT_TRUE(torch::allclose(parameter.grad(), torch::full({4}, 0.5)));
}

TEST(ClipGradNorm, NotANumberSpreadsToAllGradients) {
  const Tensors parameters = make_parameters();
  parameters[0].mutable_grad()[1] = NAN;
  EXPECT_TRUE(std::isnan(clip_grad_norm_(parameters, 1.0).item<double>()));
  for (double element : elements_of(parameters)) EXPECT_TRUE(std::isnan(element));
}

TEST(ClipGradNorm, ErrorIfNonfiniteNamesTheParameterAndChangesNothing) {
  for (double bad : {static_cast<double>(NAN), kInf}) {
    for (double p : {1.0, 2.0, kInf}) {
      const Tensors parameters = make_parameters();
      parameters[5].mutable_grad()[3] = bad;
      const torch::Tensor kept = parameters[0].grad().clone();
      EXPECT_THAT(message_of([&] {
                    clip_grad_norm_(parameters, 0.1, {.norm_type = p, .error_if_nonfinite = true});
                  }),
                  HasSubstr("gradient of parameter 5 of 7"));
      EXPECT_TRUE(torch::equal(parameters[0].grad(), kept));
    }
  }
  // Finite elements whose norm is not.
  const Tensors large{with_gradient(torch::full({4}, 3e38))};
  EXPECT_THAT(message_of([&] { get_total_norm(large, {.error_if_nonfinite = true}); }),
              HasSubstr("though all gradients are finite"));
}

TEST(ClipGradNorm, RefusesWhatMakesNoSense) {
  Tensors parameters = make_parameters();
  EXPECT_THROW(clip_grad_norm_(parameters, -1), c10::ValueError);
  EXPECT_THROW(clip_grad_norm_(parameters, NAN), c10::ValueError);
  EXPECT_THROW(clip_grad_norm_(parameters, 1, {.norm_type = NAN}), c10::ValueError);
  EXPECT_THROW(clip_grad_value_(parameters, -1), c10::ValueError);
  EXPECT_THROW(clip_grads_with_norm_(parameters, 1, torch::ones({2})), c10::ValueError);
  torch::Tensor sparse = torch::ones({3}).requires_grad_();
  sparse.mutable_grad() = torch::ones({3}).to_sparse();
  parameters.push_back(sparse);
  const std::vector<std::function<void()>> calls{
      [&] { clip_grad_norm_(parameters, 1); }, [&] { get_total_norm(parameters); },
      [&] { get_sharded_total_norm({{nullptr, parameters}}, at::kCPU); },
      [&] { clip_grad_value_(parameters, 1); }};
  for (const auto& call : calls) {
    EXPECT_THAT(message_of(call), HasSubstr("gradient of parameter 7 is sparse"));
  }
  parameters.pop_back();
  EXPECT_EQ(elements_of(parameters), elements_of(make_parameters()));
}

// Powers of the elements leave the range of float, or of double; the norm and the result do not.
TEST(ClipGradNorm, IsRightWherePowersOverflowOrVanish) {
  struct Case {
    at::ScalarType dtype;
    double value, order;
  };
  for (const auto& [dtype, value, order] :
       {Case{at::kFloat, 1e20, 2}, Case{at::kFloat, 3e37, 1}, Case{at::kFloat, 1e13, 3},
        Case{at::kFloat, 1e-30, 2}, Case{at::kFloat, 1e-40, 2}, Case{at::kFloat, 1e-15, 3},
        Case{at::kFloat, 1e38, 12}, Case{at::kFloat, 1e-39, -1}, Case{at::kBFloat16, 1e30, 2},
        Case{at::kBFloat16, 1e-25, 2}, Case{at::kHalf, 6e4, 2}, Case{at::kHalf, 6e4, 3},
        Case{at::kDouble, 1e200, 2}, Case{at::kDouble, 1e-200, 2}, Case{at::kDouble, 1e120, 3}}) {
    const std::string what = c10::str(dtype, " ", value, " order ", order);
    for (const int64_t elements : {3, 40000}) {
      const torch::Tensor parameter = with_gradient(torch::full({elements}, value, dtype));
      const auto element = parameter.grad()[0].item<double>();
      const double norm = element * std::pow(static_cast<double>(elements), 1 / order);
      if (norm > 3e38 && dtype != at::kDouble) continue;
      const double max_norm = norm / 8;
      const double digits = dtype == at::kHalf ? 1e-3 : dtype == at::kBFloat16 ? 8e-3 : 2e-6;
      // The smallest numbers of float32 have few digits.
      constexpr double kSmallest = 0x1p-149;
      EXPECT_NEAR(get_total_norm(parameter, {.norm_type = order}).item<double>(), norm,
                  dtype == at::kDouble ? 1e-6 * norm : std::max(1e-6 * norm, kSmallest))
          << what;
      clip_grad_norm_(parameter, max_norm, {.norm_type = order});
      // As PyTorch's, the factor has 1e-6 in its divisor.
      const double expected = element * std::min(1.0, max_norm / (norm + 1e-6));
      if (expected < 1e-37 && dtype != at::kDouble) continue;  // has few digits itself
      EXPECT_NEAR(parameter.grad()[-1].item<double>(), expected, digits * expected) << what;
    }
  }
}

// As clipping to 1, which is what programs do.
TEST(ClipGradNorm, ClipsWhatHasANormBeyondTheType) {
  const torch::Tensor parameter = with_gradient(torch::full({4}, 3e38F));
  clip_grad_norm_(parameter, 1.0);
  EXPECT_TRUE(torch::allclose(parameter.grad(), torch::full({4}, 0.5F)));
  const torch::Tensor half = with_gradient(torch::full({400}, 6e4, at::kHalf));
  EXPECT_FLOAT_EQ(clip_grad_norm_(half, 1.0).item<float>(),
                  20 * torch::full({}, 6e4, at::kHalf).item<float>());
  EXPECT_TRUE(torch::allclose(half.grad(), torch::full({400}, 0.05, at::kHalf), 1e-3, 0));
}

// Large elements decide, and small ones that matter are not lost beside those that do not.
TEST(ClipGradNorm, TakesElementsOfAllSizesTogether) {
  const Tensors parameters{with_gradient(torch::tensor({3e30F, 0.0F})),
                           with_gradient(torch::tensor({4e30F, 1e-30F})),
                           with_gradient(torch::zeros({3}))};
  EXPECT_FLOAT_EQ(get_total_norm(parameters).item<float>(), 5e30F);
  const Tensors small{with_gradient(torch::tensor({3e-25F})),
                      with_gradient(torch::tensor({4e-25F}))};
  EXPECT_FLOAT_EQ(get_total_norm(small).item<float>(), 5e-25F);
  const Tensors zeros{with_gradient(torch::zeros({3}))};
  EXPECT_EQ(clip_grad_norm_(zeros, 1.0).item<float>(), 0);
  EXPECT_EQ(zeros[0].grad().sum().item<float>(), 0);
}

// Ranks with parts of the gradients, of which some have none.
TEST(ShardedNorm, IsThatOfTheWhole) {
  // Ranks are threads, and random numbers are the process's.
  const Tensors whole = make_parameters();
  for (double p : kNormTypes) {
    run_ranks(3, [&](const ProcessGroupPtr& group) {
      const double expected = p == 0 ? 10 : expected_norm(whole, p);
      const int rank = group->getRank();
      Tensors parts;
      for (const torch::Tensor& parameter : whole) {
        if (!parameter.grad().defined()) {
          parts.push_back(torch::ones({2}, torch::kDouble).requires_grad_());
          continue;
        }
        const torch::Tensor flat = parameter.grad().reshape({-1});
        const int64_t middle = flat.numel() / 2;
        parts.push_back(with_gradient(rank == 0   ? flat.slice(0, 0, middle).clone()
                                      : rank == 1 ? flat.slice(0, middle).clone()
                                                  : flat.slice(0, 0, 0).clone()));
      }
      // The same again, on every rank.
      Tensors all;
      for (const torch::Tensor& parameter : whole) {
        if (parameter.grad().defined()) all.push_back(with_gradient(parameter.grad().clone()));
      }
      Tensors both = whole;
      both.insert(both.end(), all.begin(), all.end());
      const std::vector<GradientShards> shards{{group, parts}, {nullptr, all}};
      const double joint = p == 0 ? expected : expected_norm(both, p);
      EXPECT_NEAR(get_sharded_total_norm(shards, torch::kCPU, {.norm_type = p}).item<double>(),
                  joint, 1e-12 * joint)
          << p;
      const double one = p == 0 ? 5 : expected_norm(whole, p);
      EXPECT_NEAR(
          get_sharded_total_norm({{group, parts}}, torch::kCPU, {.norm_type = p}).item<double>(),
          one, 1e-12 * one)
          << p;
      const std::vector<double> before = elements_of(all);
      clip_sharded_grad_norm_(shards, joint / 2, torch::kCPU, {.norm_type = p});
      const std::vector<double> after = elements_of(all);
      const double factor = joint / 2 / (joint + 1e-6);  // As PyTorch has it.
      for (size_t i = 0; i < before.size(); ++i) {
        EXPECT_NEAR(after[i], before[i] * factor, 1e-6 * std::abs(before[i])) << p;
      }
    });
  }
}

// Four ranks: one tensor is whole on all of them, one in two halves that two ranks have each, one
// in quarters, and one is frozen.
TEST(ShardedNorm, CountsOnceWhatSeveralRanksHave) {
  const torch::Tensor whole = torch::tensor({3.0F, -4.0F, 0.5F});
  const torch::Tensor halved = torch::tensor({{1.0F, -2.0F}, {8.0F, 0.25F}});
  const torch::Tensor quartered = torch::tensor({7.0F, 2.0F, -1.0F, 6.0F});
  for (double p : kNormTypes) {
    const Tensors all{with_gradient(whole), with_gradient(halved), with_gradient(quartered)};
    const auto expected = get_total_norm(all, {.norm_type = p}).item<double>();
    run_ranks(4, [&](const ProcessGroupPtr& group) {
      const int rank = group->getRank();
      const Tensors parts{with_gradient(whole.clone()), with_gradient(halved[rank / 2].clone()),
                          with_gradient(quartered.slice(0, rank, rank + 1).clone()),
                          torch::ones({2}).requires_grad_()};
      const std::vector<GradientShards> shards{
          {.group = group, .parameters = parts, .counts = {rank == 0, rank % 2 == 0, true, true}}};
      const torch::Tensor norm =
          clip_sharded_grad_norm_(shards, expected / 2, torch::kCPU, {.norm_type = p});
      EXPECT_FLOAT_EQ(norm.item<float>(), static_cast<float>(expected)) << p;
      // All are scaled alike, counted or not.
      const double factor = std::min(1.0, expected / 2 / (expected + 1e-6));
      EXPECT_TRUE(torch::allclose(parts[0].grad(), whole * factor)) << p;
      EXPECT_TRUE(torch::allclose(parts[1].grad(), halved[rank / 2] * factor)) << p;
    });
  }
}

TEST(ShardedNorm, IsRightWherePowersOverflow) {
  run_ranks(2, [&](const ProcessGroupPtr& group) {
    const torch::Tensor part = with_gradient(torch::full({50}, 1e20F));
    const torch::Tensor norm = clip_sharded_grad_norm_({{group, {part}}}, 1.0, torch::kCPU);
    EXPECT_FLOAT_EQ(norm.item<float>(), 1e21F);
    EXPECT_TRUE(torch::allclose(part.grad(), torch::full({50}, 0.1F)));
    const torch::Tensor wide = with_gradient(torch::full({50}, 1e300, torch::kDouble));
    EXPECT_NEAR(get_sharded_total_norm({{group, {wide}}}, torch::kCPU).item<double>(), 1e301,
                1e289);
    const torch::Tensor nan = with_gradient(torch::full({1}, NAN));
    EXPECT_THROW(clip_sharded_grad_norm_({{group, {group->getRank() == 0 ? nan : part}}}, 1.0,
                                         torch::kCPU, {.error_if_nonfinite = true}),
                 c10::Error);
    EXPECT_TRUE(torch::allclose(part.grad(), torch::full({50}, 0.1F)));
  });
}

TEST(ClipGradsWithNorm, UsesTheGivenNorm) {
  const torch::Tensor parameter = with_gradient(torch::full({4}, 3.0));
  clip_grads_with_norm_(parameter, 1.0, torch::full({}, 10.0));
  EXPECT_TRUE(torch::allclose(parameter.grad(), torch::full({4}, 0.3)));
}

TEST(ClipGradValue, LimitsEachElement) {
  Tensors parameters = make_parameters();
  parameters[0].mutable_grad()[1] = NAN;
  parameters[0].mutable_grad()[2] = -kInf;
  const std::vector<double> before = elements_of(parameters);
  clip_grad_value_(parameters, 0.25);
  const std::vector<double> after = elements_of(parameters);
  for (size_t i = 0; i < before.size(); ++i) {
    if (std::isnan(before[i])) {
      EXPECT_TRUE(std::isnan(after[i]));
    } else {
      EXPECT_EQ(after[i], std::clamp(before[i], -0.25, 0.25));
    }
  }
  clip_grad_value_({}, 1);
}

TEST(ClipGradValue, TakesLimitsBeyondTheType) {
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble}) {
    const torch::Tensor parameter = with_gradient(torch::full({3}, -2, dtype));
    clip_grad_value_({parameter}, 1e300);
    EXPECT_TRUE(torch::equal(parameter.grad(), torch::full({3}, -2, dtype))) << dtype;
  }
}

}  // namespace
}  // namespace accelerate
