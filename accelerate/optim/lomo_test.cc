// LOMO and AdaLOMO: equal to plain formulas, with one gradient at a time.
#include <algorithm>
#include <cmath>
#include <functional>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/optim/lomo.h"

namespace accelerate::optim {
namespace {

using ::testing::HasSubstr;
using torch::Tensor;
using Tensors = std::vector<Tensor>;

torch::nn::Sequential make_net() {
  torch::manual_seed(4);
  torch::nn::Sequential net(torch::nn::Linear(5, 7), torch::nn::Tanh(), torch::nn::Linear(7, 7),
                            torch::nn::Tanh(), torch::nn::Linear(7, 1));
  net->to(torch::kDouble);
  return net;
}

Tensor loss_of(torch::nn::Sequential& net, int step = 0) {
  torch::manual_seed(10 + step);
  return net->forward(torch::randn({6, 5}, torch::kDouble)).square().mean();
}

void expect_close(const Tensors& ours, const Tensors& expected) {
  ASSERT_EQ(ours.size(), expected.size());
  for (size_t i = 0; i < ours.size(); ++i) {
    EXPECT_TRUE(torch::allclose(ours[i], expected[i], 1e-10, 1e-12)) << i;
  }
}

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

// Looks at all gradients whenever one is applied.
template <typename Base>
class Watched : public Base {
 public:
  using Base::Base;
  int updates = 0;
  size_t most_gradients = 0;

 protected:
  void update(Tensor& parameter, Tensor grad, double lr,
              const torch::optim::OptimizerOptions& options) override {
    size_t held = 1;  // this one
    for (const Tensor& other : this->param_groups()[0].params()) held += other.grad().defined();
    most_gradients = std::max(most_gradients, held);
    ++updates;
    Base::update(parameter, std::move(grad), lr, options);
  }
};

template <typename Optimizer>
class FusedBackwardTest : public ::testing::Test {};
using Optimizers = ::testing::Types<Lomo, AdaLomo>;
TYPED_TEST_SUITE(FusedBackwardTest, Optimizers);

TYPED_TEST(FusedBackwardTest, HoldsOneGradientAtATime) {
  torch::nn::Sequential net = make_net();
  Watched<TypeParam> optimizer(net->parameters());
  for (int step = 0; step < 2; ++step) optimizer.fused_backward(loss_of(net), 0.1);
  EXPECT_EQ(optimizer.updates, 2 * 6);
  EXPECT_EQ(optimizer.most_gradients, 1);
  for (const Tensor& parameter : net->parameters()) EXPECT_FALSE(parameter.grad().defined());
}

TYPED_TEST(FusedBackwardTest, AnOrdinaryBackwardPassOnlyGathers) {
  torch::nn::Sequential net = make_net();
  TypeParam optimizer(net->parameters());
  optimizer.fused_backward(loss_of(net), 0.1);
  const Tensor before = net->parameters()[0].detach().clone();
  loss_of(net).backward();
  EXPECT_TRUE(net->parameters()[0].grad().defined());
  EXPECT_FALSE(optimizer.step().defined());
  EXPECT_TRUE(torch::equal(before, net->parameters()[0]));
  EXPECT_THROW(optimizer.step([] { return Tensor(); }), c10::ValueError);
}

TYPED_TEST(FusedBackwardTest, RefusesBadLearningRates) {
  torch::nn::Sequential net = make_net();
  TypeParam optimizer(net->parameters());
  const Tensor before = net->parameters()[0].detach().clone();
  for (double lr : {static_cast<double>(NAN), static_cast<double>(INFINITY), -0.1}) {
    EXPECT_THROW(optimizer.fused_backward(loss_of(net), lr), c10::ValueError);
    optimizer.param_groups()[0].options().set_lr(lr);
    EXPECT_THROW(optimizer.fused_backward(loss_of(net)), c10::ValueError);
    optimizer.param_groups()[0].options().set_lr(0.1);
  }
  EXPECT_THROW(optimizer.fused_backward(Tensor(), 0.1), c10::ValueError);
  EXPECT_TRUE(torch::equal(before, net->parameters()[0]));
}

TYPED_TEST(FusedBackwardTest, EachGroupHasItsOwnLearningRate) {
  torch::nn::Sequential net = make_net();
  const Tensors parameters = net->parameters();
  TypeParam optimizer(Tensors(parameters.begin(), parameters.begin() + 2));
  auto options = optimizer.defaults().clone();
  options->set_lr(0);
  optimizer.add_param_group(torch::optim::OptimizerParamGroup(
      Tensors(parameters.begin() + 2, parameters.end()), std::move(options)));
  Tensors before;
  for (const Tensor& parameter : parameters) before.push_back(parameter.detach().clone());
  optimizer.fused_backward(loss_of(net));
  for (size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_EQ(torch::equal(before[i], parameters[i]), i >= 2) << i;
  }
}

TYPED_TEST(FusedBackwardTest, ClipsByTheNormOfAllGradients) {
  torch::nn::Sequential net = make_net();
  std::conditional_t<std::is_same_v<TypeParam, Lomo>, LomoOptions, AdaLomoOptions> defaults;
  defaults.clip_grad_norm(0.1);
  TypeParam optimizer(net->parameters(), defaults);
  EXPECT_THAT(message_of([&] { optimizer.fused_backward(loss_of(net), 0.1); }),
              HasSubstr("call grad_norm(loss) before"));
  loss_of(net).backward();
  double square = 0;
  for (const Tensor& parameter : net->parameters()) {
    square += parameter.grad().square().sum().item<double>();
  }
  net->zero_grad();
  const Tensor loss = loss_of(net);
  EXPECT_NEAR(optimizer.grad_norm(loss).item().toDouble(), std::sqrt(square), 1e-12);
  for (const Tensor& parameter : net->parameters()) EXPECT_FALSE(parameter.grad().defined());
  optimizer.fused_backward(loss, 0.1);
  // Each time.
  EXPECT_THROW(optimizer.fused_backward(loss_of(net), 0.1), c10::Error);
}

// Gradients of norm 2^15 sqrt(128) get a factor of 1.9e-6, which has five bits as a half.
TEST(Lomo, ClipsGradientsOf16Bits) {
  const auto trained = [](at::ScalarType dtype) {
    Tensor weight = torch::zeros({8, 16}, dtype).requires_grad_();
    Lomo optimizer(Tensors{weight}, LomoOptions().clip_grad_norm(0.7));
    const auto loss = [&] { return weight.mul(32768).sum(); };
    optimizer.grad_norm(loss());
    optimizer.fused_backward(loss(), /*lr=*/1);
    return weight.detach().to(at::kFloat);
  };
  const Tensor exact = trained(at::kFloat);
  EXPECT_NEAR(exact.norm().item<double>(), 0.7, 1e-4);
  EXPECT_TRUE(torch::allclose(trained(at::kHalf), exact, 1.0 / 1024, 0));
  EXPECT_TRUE(torch::allclose(trained(at::kBFloat16), exact, 1.0 / 128, 0));
}

// The norm is that of the gradients as they are applied: each value is limited first, as in
// lomo_optim's grad_norm.
TYPED_TEST(FusedBackwardTest, TheNormIsThatOfTheClampedValues) {
  constexpr double kLimit = 0.05;
  torch::nn::Sequential net = make_net();
  std::conditional_t<std::is_same_v<TypeParam, Lomo>, LomoOptions, AdaLomoOptions> defaults;
  defaults.clip_grad_value(kLimit);
  TypeParam optimizer(net->parameters(), defaults);
  loss_of(net).backward();
  double clamped = 0;
  double whole = 0;
  for (const Tensor& parameter : net->parameters()) {
    const Tensor gradient = parameter.grad().flatten();
    for (int64_t i = 0; i < gradient.numel(); ++i) {
      const double value = gradient[i].item<double>();
      const double limited = std::clamp(value, -kLimit, kLimit);
      clamped += limited * limited;
      whole += value * value;
    }
  }
  ASSERT_LT(clamped, 0.9 * whole) << "the limit must matter";
  net->zero_grad();
  EXPECT_NEAR(optimizer.grad_norm(loss_of(net)).item().toDouble(), std::sqrt(clamped), 1e-12);
}

TYPED_TEST(FusedBackwardTest, ErrorsInBackwardLeaveNoHooks) {
  torch::nn::Sequential net = make_net();
  TypeParam optimizer(net->parameters());
  Tensor loss = loss_of(net);
  loss.register_hook([](Tensor) -> Tensor { TORCH_CHECK(false, "broken"); });
  EXPECT_THAT(message_of([&] { optimizer.fused_backward(loss, 0.1); }), HasSubstr("broken"));
  loss_of(net).backward();
  for (const Tensor& parameter : net->parameters()) EXPECT_TRUE(parameter.grad().defined());
}

TYPED_TEST(FusedBackwardTest, ArchiveContinues) {
  torch::nn::Sequential net = make_net();
  TypeParam first(net->parameters());
  for (int step = 0; step < 3; ++step) first.fused_backward(loss_of(net, step), 0.1);
  std::stringstream bytes;
  torch::serialize::OutputArchive out;
  first.save(out);
  out.save_to(bytes);
  Tensors kept;
  for (const Tensor& parameter : net->parameters()) kept.push_back(parameter.detach().clone());
  first.fused_backward(loss_of(net, 3), 0.1);
  Tensors expected;
  for (const Tensor& parameter : net->parameters()) expected.push_back(parameter.detach().clone());
  {
    torch::NoGradGuard no_grad;
    for (size_t i = 0; i < kept.size(); ++i) net->parameters()[i].copy_(kept[i]);
  }
  TypeParam second(net->parameters());
  torch::serialize::InputArchive in;
  in.load_from(bytes);
  second.load(in);
  second.fused_backward(loss_of(net, 3), 0.1);
  expect_close(net->parameters(), expected);
}

TYPED_TEST(FusedBackwardTest, Trains) {
  torch::nn::Sequential net = make_net();
  TypeParam optimizer(net->parameters());
  const double first = loss_of(net).item().toDouble();
  for (int step = 0; step < 200; ++step) optimizer.fused_backward(loss_of(net), 0.05);
  EXPECT_LT(loss_of(net).item().toDouble(), 0.05 * first);
}

TEST(Lomo, EqualsSgd) {
  torch::nn::Sequential ours = make_net();
  torch::nn::Sequential theirs = make_net();
  Lomo lomo(ours->parameters());
  torch::optim::SGD sgd(theirs->parameters(), 0.1);
  for (int step = 0; step < 5; ++step) {
    lomo.fused_backward(loss_of(ours, step), 0.1);
    sgd.zero_grad();
    loss_of(theirs, step).backward();
    sgd.step();
    expect_close(ours->parameters(), theirs->parameters());
  }
}

TEST(Lomo, ClipsAndDecaysAsWritten) {
  torch::nn::Sequential ours = make_net();
  torch::nn::Sequential plain = make_net();
  Lomo lomo(ours->parameters(),
            LomoOptions().clip_grad_norm(0.3).clip_grad_value(0.2).weight_decay(0.1));
  const Tensor loss = loss_of(ours);
  lomo.grad_norm(loss);
  lomo.fused_backward(loss, 0.5);
  loss_of(plain).backward();
  torch::NoGradGuard no_grad;
  double square = 0;
  for (const Tensor& parameter : plain->parameters()) {
    square += parameter.grad().clamp(-0.2, 0.2).square().sum().item<double>();
  }
  const double norm = std::sqrt(square);
  EXPECT_GT(norm, 0.3);
  for (Tensor& parameter : plain->parameters()) {
    const Tensor grad = parameter.grad().clamp(-0.2, 0.2) * (0.3 / (norm + 1e-6));
    parameter.copy_(parameter * (1 - 0.5 * 0.1) - 0.5 * grad);
  }
  expect_close(ours->parameters(), plain->parameters());
}

TEST(Lomo, UpdatesByTheClampedValues) {
  constexpr double kLimit = 0.05;
  torch::nn::Sequential net = make_net();
  loss_of(net).backward();
  std::vector<Tensor> expected;
  double largest = 0;
  for (const Tensor& parameter : net->parameters()) {
    largest = std::max(largest, parameter.grad().abs().max().item<double>());
    expected.push_back(parameter.detach() - 0.1 * parameter.grad().clamp(-kLimit, kLimit));
  }
  ASSERT_GT(largest, kLimit) << "the limit must matter";
  net->zero_grad();
  Lomo optimizer(net->parameters(), LomoOptions().clip_grad_value(kLimit));
  optimizer.fused_backward(loss_of(net), 0.1);
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(at::allclose(net->parameters()[i], expected[i])) << i;
  }
}

TEST(Lomo, AddsToGradientsThatAreThere) {
  torch::nn::Sequential ours = make_net();
  torch::nn::Sequential plain = make_net();
  Lomo lomo(ours->parameters());
  loss_of(ours, 0).backward();
  lomo.fused_backward(loss_of(ours, 1), 0.1);
  torch::optim::SGD sgd(plain->parameters(), 0.1);
  loss_of(plain, 0).backward();
  loss_of(plain, 1).backward();
  sgd.step();
  expect_close(ours->parameters(), plain->parameters());
}

TEST(Lomo, ParametersWithoutAGradientStay) {
  torch::nn::Sequential net = make_net();
  Tensors parameters = net->parameters();
  const Tensor unused = torch::ones({3}).requires_grad_();
  const Tensor frozen = torch::ones({3});
  parameters.push_back(unused);
  parameters.push_back(frozen);
  Lomo lomo(parameters);
  lomo.fused_backward(loss_of(net), 0.1);
  EXPECT_TRUE(torch::equal(unused, torch::ones({3})));
  Lomo empty((Tensors()));
  empty.fused_backward(loss_of(net), 0.1);
}

// Each element by the paper's formulas.
TEST(AdaLomo, EqualsTheFormulas) {
  constexpr double kLr = 0.1;
  constexpr double kDecay = 0.2;
  torch::manual_seed(1);
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{4, 3}, {5}, {2, 3, 4}, {}}) {
    const Tensor parameter = torch::randn(shape, torch::kDouble).requires_grad_();
    AdaLomo adalomo(Tensors{parameter}, AdaLomoOptions().weight_decay(kDecay).clip_threshold(0.8));
    const int64_t size = parameter.numel();
    const bool factored = shape.size() >= 2;
    const int64_t columns = factored ? shape.back() : 1;
    const int64_t rows = factored ? shape[shape.size() - 2] : 1;
    std::vector<double> theta(parameter.data_ptr<double>(), parameter.data_ptr<double>() + size);
    std::vector<double> row(size / columns), column(size / rows), second(size);
    for (int step = 1; step <= 4; ++step) {
      const Tensor gradient = torch::randn(shape, torch::kDouble);
      adalomo.fused_backward((parameter * gradient).sum(), kLr);
      const double* g = gradient.data_ptr<double>();
      const double keep = 1 - std::pow(step, -0.8);
      std::vector<double> u(size);
      if (factored) {
        const int64_t matrices = size / rows / columns;
        for (int64_t m = 0; m < matrices; ++m) {
          auto square = [&](int64_t r, int64_t c) {
            const double value = g[(m * rows + r) * columns + c];
            return value * value + 1e-30;
          };
          double mean_of_rows = 0;
          for (int64_t r = 0; r < rows; ++r) {
            double mean = 0;
            for (int64_t c = 0; c < columns; ++c) mean += square(r, c) / columns;
            double& kept = row[m * rows + r];
            kept = keep * kept + (1 - keep) * mean;
            mean_of_rows += kept / rows;
          }
          for (int64_t c = 0; c < columns; ++c) {
            double mean = 0;
            for (int64_t r = 0; r < rows; ++r) mean += square(r, c) / rows;
            double& kept = column[m * columns + c];
            kept = keep * kept + (1 - keep) * mean;
          }
          for (int64_t r = 0; r < rows; ++r) {
            for (int64_t c = 0; c < columns; ++c) {
              const int64_t i = (m * rows + r) * columns + c;
              u[i] = g[i] / std::sqrt(row[m * rows + r] * column[m * columns + c] / mean_of_rows);
            }
          }
        }
      } else {
        for (int64_t i = 0; i < size; ++i) {
          second[i] = keep * second[i] + (1 - keep) * (g[i] * g[i] + 1e-30);
          u[i] = g[i] / std::sqrt(second[i]);
        }
      }
      double u_square = 0, theta_square = 0;
      for (int64_t i = 0; i < size; ++i) {
        u_square += u[i] * u[i] / size;
        theta_square += theta[i] * theta[i] / size;
      }
      const double rate = kLr * std::max(1e-3, std::sqrt(theta_square));
      for (int64_t i = 0; i < size; ++i) {
        const double clipped = u[i] / std::max(1.0, std::sqrt(u_square) / 0.8);
        theta[i] = theta[i] * (1 - rate * kDecay) - rate * clipped;
        EXPECT_NEAR(parameter.data_ptr<double>()[i], theta[i], 1e-12) << step;
      }
    }
  }
}

TEST(AdaLomo, TakesHalfPrecisionAndEmptyParameters) {
  const Tensor half = torch::ones({4, 4}, torch::kBFloat16).requires_grad_();
  const Tensor none = torch::ones({0, 4}).requires_grad_();
  AdaLomo adalomo(Tensors{half, none});
  adalomo.fused_backward(half.sum().to(torch::kFloat) + none.sum(), 0.1);
  EXPECT_TRUE((half < 1).all().item<bool>());
  EXPECT_EQ(half.scalar_type(), torch::kBFloat16);
}

}  // namespace
}  // namespace accelerate::optim
