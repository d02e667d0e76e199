// RMS norm against LibTorch's: values, gradients and gradients of gradients, and what is left of
// its intermediate results between the forward and the backward pass.
#include "accelerate/operators/rms_norm.h"

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include <c10/core/StorageImpl.h>
#include <c10/util/Exception.h>
#include <c10/util/intrusive_ptr.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/operators/call_arguments.h"
#include "accelerate/operators/operator_mode.h"
#include "accelerate/testing/value_error.h"

namespace accelerate {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using torch::Tensor;
using Tensors = std::vector<Tensor>;

constexpr double kEpsilon = 1e-5;

Tensor numbers(at::IntArrayRef sizes, at::ScalarType dtype, bool has_gradient = true) {
  return torch::randn(sizes).to(dtype).requires_grad_(has_gradient);
}

bool is_near(const Tensor& a, const Tensor& b, double tolerance) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         torch::allclose(a, b, tolerance, tolerance);
}

TEST(RmsNorm, HasTheValuesOfLibTorch) {
  torch::manual_seed(5);
  const std::vector<std::pair<at::ScalarType, double>> tolerances = {{torch::kFloat, 1e-6},
                                                                     {torch::kDouble, 1e-12},
                                                                     {torch::kBFloat16, 1e-2},
                                                                     {torch::kHalf, 2e-3}};
  for (const auto& [dtype, tolerance] : tolerances) {
    for (const bool has_gradient : {false, true}) {
      SCOPED_TRACE(dtype);
      const Tensor x = numbers({3, 4, 6}, dtype, has_gradient);
      const Tensor row = numbers({6}, dtype), rows = numbers({4, 6}, dtype);
      EXPECT_TRUE(is_near(accelerate::rms_norm(x, {6}, row, kEpsilon),
                          torch::rms_norm(x, {6}, row, kEpsilon), tolerance));
      EXPECT_TRUE(is_near(accelerate::rms_norm(x, {4, 6}, rows, 0.5),
                          torch::rms_norm(x, {4, 6}, rows, 0.5), tolerance));
      // LibTorch 2.6 takes the epsilon of 16 bits there.
      const double sums = dtype == torch::kDouble ? std::numeric_limits<double>::epsilon()
                                                  : double{std::numeric_limits<float>::epsilon()};
      const Tensor expected = torch::rms_norm(x, {6}, /*weight=*/{}, sums);
      EXPECT_TRUE(is_near(accelerate::rms_norm(x, {6}), expected, tolerance));
      EXPECT_TRUE(is_near(accelerate::rms_norm(x, {6}, Tensor()), expected, tolerance));
    }
  }
  // Numbers so small show which epsilon is the default.
  const Tensor tiny = torch::full({1, 4}, 1e-9, torch::kDouble);
  EXPECT_TRUE(is_near(accelerate::rms_norm(tiny, {4}), torch::rms_norm(tiny, {4}), 1e-12));
}

TEST(RmsNorm, HasTheSameBitsWithAndWithoutGradients) {
  torch::manual_seed(5);
  for (const at::ScalarType dtype : {torch::kFloat, torch::kBFloat16}) {
    const Tensor x = numbers({5, 8}, dtype), weight = numbers({8}, dtype);
    const Tensor trained = accelerate::rms_norm(x, {8}, weight, kEpsilon);
    EXPECT_TRUE(trained.requires_grad());
    {
      const torch::NoGradGuard no_grad;
      const Tensor y = accelerate::rms_norm(x, {8}, weight, kEpsilon);
      EXPECT_FALSE(y.requires_grad());
      EXPECT_TRUE(y.equal(trained));
    }
    const c10::InferenceMode inference;
    EXPECT_TRUE(accelerate::rms_norm(x, {8}, weight, kEpsilon).equal(trained.detach()));
  }
}

using Norm = Tensor (*)(const Tensor&, at::IntArrayRef, const std::optional<Tensor>&,
                        std::optional<double>);

Tensor of_libtorch(const Tensor& x, at::IntArrayRef shape, const std::optional<Tensor>& weight,
                   std::optional<double> eps) {
  return torch::rms_norm(x, shape, weight, eps);
}

// Those of a loss in which no two elements count alike.
Tensors gradients_of(Norm norm, at::ScalarType dtype, const Tensors& wanted, const Tensor& x,
                     const std::optional<Tensor>& weight, at::IntArrayRef shape) {
  const Tensor y = norm(x, shape, weight, kEpsilon);
  const Tensor factors = torch::arange(y.numel(), torch::kDouble).cos().view(y.sizes()).to(dtype);
  return torch::autograd::grad({(y * factors).sum()}, wanted);
}

TEST(RmsNorm, HasTheGradientsOfLibTorch) {
  torch::manual_seed(5);
  const std::vector<std::pair<at::ScalarType, double>> tolerances = {
      {torch::kDouble, 1e-10}, {torch::kFloat, 1e-5}, {torch::kBFloat16, 5e-2}};
  for (const auto& [dtype, tolerance] : tolerances) {
    SCOPED_TRACE(dtype);
    const Tensor x = numbers({3, 4, 6}, dtype), weight = numbers({6}, dtype);
    const Tensor weights = numbers({4, 6}, dtype), fixed = numbers({3, 4, 6}, dtype, false);
    const auto expect_same = [&, dtype = dtype, tolerance = tolerance](
                                 const Tensors& wanted, const Tensor& input,
                                 const std::optional<Tensor>& factor, at::IntArrayRef shape) {
      const Tensors found =
          gradients_of(&accelerate::rms_norm, dtype, wanted, input, factor, shape);
      const Tensors expected = gradients_of(&of_libtorch, dtype, wanted, input, factor, shape);
      for (size_t i = 0; i < wanted.size(); ++i) {
        EXPECT_TRUE(is_near(found[i], expected[i], tolerance)) << found[i] << expected[i];
      }
    };
    expect_same({x, weight}, x, weight, {6});
    expect_same({x, weights}, x, weights, {4, 6});
    expect_same({x}, x, std::nullopt, {6});
    expect_same({x}, x, weight.detach(), {6});
    expect_same({x}, x, weight, {6});
    expect_same({weight}, fixed, weight, {6});
    // The weight is as large as the input.
    expect_same({weights}, fixed[0], weights, {4, 6});
  }
}

TEST(RmsNorm, RoundsGradientsOfInputsIn16BitsOnce) {
  torch::manual_seed(5);
  const Tensor x = numbers({64, 32}, torch::kBFloat16), weight = numbers({32}, torch::kBFloat16);
  const Tensor wide = x.detach().to(torch::kDouble).requires_grad_();
  const Tensor wide_weight = weight.detach().to(torch::kDouble).requires_grad_();
  accelerate::rms_norm(x, {32}, weight, kEpsilon).sum().backward();
  accelerate::rms_norm(wide, {32}, wide_weight, kEpsilon).sum().backward();
  // Half of the distance between numbers of 8 bits.
  constexpr double kRounding = 1.01 / 256;
  EXPECT_TRUE(torch::allclose(x.grad().to(torch::kDouble), wide.grad(), kRounding, 1e-5));
  EXPECT_TRUE(
      torch::allclose(weight.grad().to(torch::kDouble), wide_weight.grad(), kRounding, 1e-4));
}

TEST(RmsNorm, HasGradientsOfGradients) {
  torch::manual_seed(5);
  const Tensor x = numbers({3, 6}, torch::kDouble), weight = numbers({6}, torch::kDouble);
  const auto second = [&](Norm norm) {
    const Tensor y = norm(x, {6}, weight, kEpsilon);
    const Tensors first = torch::autograd::grad({y.pow(3).sum()}, {x, weight}, {},
                                                /*retain_graph=*/true, /*create_graph=*/true);
    return torch::autograd::grad({first[0].pow(2).sum() + first[1].sin().sum()}, {x, weight});
  };
  const Tensors found = second(&accelerate::rms_norm), expected = second(&of_libtorch);
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(is_near(found[i], expected[i], 1e-9)) << found[i] << expected[i];
  }
}

TEST(RmsNorm, GoesBackTwiceThroughARetainedGraph) {
  const Tensor x = numbers({3, 6}, torch::kFloat);
  const Tensor loss = accelerate::rms_norm(x, {6}).pow(3).sum();
  loss.backward({}, /*retain_graph=*/true);
  const Tensor once = x.grad().clone();
  loss.backward();
  EXPECT_TRUE(x.grad().equal(once + once));
}

TEST(RmsNorm, RefusesAnInputThatHasChanged) {
  const Tensor x = numbers({3, 6}, torch::kFloat), doubled = x * 2;
  const Tensor y = accelerate::rms_norm(doubled, {6});
  doubled.add_(1);
  EXPECT_THROW(y.sum().backward(), c10::Error);
}

// Remembers, but does not keep, the memory of all results.
class Results final : public OperatorHandler {
 public:
  Results() : OperatorHandler(OperatorOrder::kRecording) {}

  void call(const OperatorCall& call) override {
    names.push_back(call.op().schema().name());
    call.proceed();
    for_each_tensor(
        torch::jit::last(call.stack(), call.op().schema().returns().size()),
        [this](const Tensor& result) { memory_.push_back(result.storage().getWeakStorageImpl()); });
  }

  // The bytes of what is still there, besides the memory of `others`.
  int64_t bytes_beside(const Tensors& others) const {
    std::unordered_set<const c10::StorageImpl*> counted;
    for (const Tensor& each : others) counted.insert(each.storage().unsafeGetStorageImpl());
    int64_t sum = 0;
    for (const auto& each : memory_) {
      const auto storage = each.lock();
      if (storage && counted.insert(storage.get()).second) {
        sum += static_cast<int64_t>(storage->nbytes());
      }
    }
    return sum;
  }

  std::vector<std::string> names;

 private:
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> memory_;
};

TEST(RmsNorm, KeepsOneNumberOfEachRowBesideTheInput) {
  constexpr int64_t kRows = 64, kColumns = 32;
  for (const at::ScalarType dtype : {torch::kFloat, torch::kBFloat16}) {
    SCOPED_TRACE(dtype);
    const Tensor x = numbers({kRows, kColumns}, dtype), weight = numbers({kColumns}, dtype);
    const auto results = std::make_shared<Results>();
    Tensor y;
    {
      const OperatorModeScope scope(results);
      y = accelerate::rms_norm(x, {kColumns}, weight, kEpsilon);
    }
    EXPECT_EQ(results->bytes_beside({x, weight, y}), kRows * 4);
    y.sum().backward();
    EXPECT_EQ(results->bytes_beside({x, weight, y}), 0) << "the graph is freed";
  }
}

TEST(RmsNorm, IsShownToHandlersBeforeItsParts) {
  const auto results = std::make_shared<Results>();
  const OperatorModeScope scope(results);
  accelerate::rms_norm(numbers({3, 6}, torch::kFloat), {6});
  EXPECT_THAT(results->names, Contains("accelerate::rms_norm"));
  EXPECT_THAT(results->names, Contains("aten::rsqrt"));
}

TEST(RmsNorm, RefusesWhatDoesNotFit) {
  const auto error_of = [](const Tensor& x, at::IntArrayRef shape, const Tensor& weight = {}) {
    return value_error_of([&] { accelerate::rms_norm(x, shape, weight); });
  };
  const Tensor x = torch::ones({3, 6});
  EXPECT_THAT(error_of(x, {5}), HasSubstr("an input of sizes [3, 6] has other last sizes than the "
                                          "normalized_shape [5]"));
  EXPECT_THAT(error_of(x, {2, 3, 6}), HasSubstr("normalized_shape [2, 3, 6]"));
  EXPECT_THAT(error_of(x, {}), HasSubstr("normalized_shape []"));
  EXPECT_THAT(error_of(x, {6}, torch::ones({1})),
              HasSubstr("a weight of sizes [1] for the normalized_shape [6]"));
  EXPECT_THAT(error_of(torch::ones({3, 6}, torch::kLong), {6}),
              HasSubstr("the input has floating-point numbers, not Long"));
}

}  // namespace
}  // namespace accelerate
