#include "accelerate/precision/fp8_model.h"

#include <cmath>
#include <limits>
#include <vector>

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

namespace accelerate {
namespace {

using torch::Tensor;

// An independent emulation: a tensor cast to a format and back.
Tensor through(const Tensor& x, at::ScalarType format, double limit) {
  const float scale = static_cast<float>(limit) / x.abs().max().item<float>();
  return (x.to(at::kFloat) * scale).clamp(-limit, limit).to(format).to(at::kFloat) / scale;
}
Tensor e4m3(const Tensor& x) { return through(x, at::kFloat8_e4m3fn, 448); }
Tensor e5m2(const Tensor& x) { return through(x, at::kFloat8_e5m2, 57344); }

c10::intrusive_ptr<Fp8Layer> layer_with(const Fp8Recipe& recipe) {
  auto layer = c10::make_intrusive<Fp8Layer>();
  layer->recipe = recipe;
  if (recipe.scaling == Fp8Scaling::kDelayed)
    layer->scales = std::make_shared<DelayedScales>(1, DelayedScalingOptions());
  return layer;
}

struct Pass {
  Tensor output, of_input, of_weight, of_bias;
};

// Sizes [rows, in, out]; the gradient is not the same everywhere.
struct Setting {
  explicit Setting(std::vector<int64_t> input_sizes = {8, 32}, int64_t out = 16) {
    torch::manual_seed(7);
    x = torch::randn(input_sizes);
    weight = torch::randn({out, input_sizes.back()}) * 0.1;
    bias = torch::randn({out});
    input_sizes.back() = out;
    gradient = torch::randn(input_sizes) * 1e-3;
  }

  template <typename Layer>
  Pass run(const Layer& layer, bool with_bias = true) const {
    const Tensor x1 = x.clone().requires_grad_(), w1 = weight.clone().requires_grad_(),
                 b1 = with_bias ? bias.clone().requires_grad_() : Tensor();
    const Tensor output = layer(x1, w1, b1);
    output.backward(gradient.to(output.scalar_type()));
    return {output.detach(), x1.grad(), w1.grad(), with_bias ? b1.grad() : Tensor()};
  }
  Pass run_fp8(const Fp8Recipe& recipe, bool with_bias = true) const {
    const auto layer = layer_with(recipe);
    return run([&](auto& x, auto& w, auto& b) { return fp8_linear(x, w, b, layer, true); },
               with_bias);
  }
  Pass run_plain(bool with_bias = true) const {
    return run([](auto& x, auto& w, auto& b) { return torch::nn::functional::linear(x, w, b); },
               with_bias);
  }

  Tensor x, weight, bias, gradient;
};

double relative_error(const Tensor& a, const Tensor& b) {
  return ((a - b).norm() / b.norm()).item<double>();
}

void expect_near(const Pass& a, const Pass& b, double tolerance) {
  EXPECT_LT(relative_error(a.output, b.output), tolerance);
  EXPECT_LT(relative_error(a.of_input, b.of_input), tolerance);
  EXPECT_LT(relative_error(a.of_weight, b.of_weight), tolerance);
}

TEST(Fp8Linear, MultipliesTheQuantisedNumbers) {
  const Setting setting;
  const Pass fp8 = setting.run_fp8({});
  const Tensor x = e4m3(setting.x), w = e4m3(setting.weight), g = e5m2(setting.gradient);
  // Scales are not powers of two: only the order of rounding differs.
  expect_near(fp8, {x.mm(w.t()) + setting.bias, g.mm(w), g.t().mm(x), {}}, 1e-6);
  EXPECT_TRUE(fp8.of_bias.equal(setting.gradient.sum(0)));
  EXPECT_FALSE(fp8.output.equal(setting.run_plain().output));
  expect_near(fp8, setting.run_plain(), 0.08);  // what 3 and 2 bits of fraction are worth
}

// With scales that are powers of two every step of the emulation is exact but the sums.
TEST(Fp8Linear, IsBitEqualToTheSameSumsOfTheSameNumbers) {
  Setting setting;
  setting.x.view(-1)[0] = 7;
  setting.weight.view(-1)[0] = 0.875;
  setting.gradient.view(-1)[0] = 0.4375;
  const Pass fp8 = setting.run_fp8({});
  const Tensor x = e4m3(setting.x), w = e4m3(setting.weight), g = e5m2(setting.gradient);
  EXPECT_TRUE(fp8.output.equal(x.mm(w.t()) + setting.bias));
  EXPECT_TRUE(fp8.of_input.equal(g.mm(w)));
  EXPECT_TRUE(fp8.of_weight.equal(g.t().mm(x)));
}

TEST(Fp8Linear, HasE4M3GradientsByRequest) {
  const Setting setting;
  const Pass fp8 = setting.run_fp8({.gradient_format = kE4M3});
  EXPECT_LT(relative_error(fp8.of_input, e4m3(setting.gradient).mm(e4m3(setting.weight))), 1e-6);
  EXPECT_GT(relative_error(fp8.of_input, setting.run_fp8({}).of_input), 1e-3);
}

TEST(Fp8Linear, TakesScalesFromPastSteps) {
  const Setting setting;
  const auto layer = layer_with({.scaling = Fp8Scaling::kDelayed});
  const auto pass = [&] {
    layer->scales->begin_step(nullptr);
    return setting.run([&](auto& x, auto& w, auto& b) { return fp8_linear(x, w, b, layer, true); });
  };
  const Pass first = pass(), second = pass();
  const Tensor raw = setting.x.to(at::kFloat8_e4m3fn).to(at::kFloat);  // at scale 1
  EXPECT_LT(relative_error(
                first.output,
                raw.mm(setting.weight.to(at::kFloat8_e4m3fn).to(at::kFloat).t()) + setting.bias),
            1e-6);
  // Now the scales are those of the same tensors.
  const Pass current = setting.run_fp8({});
  EXPECT_TRUE(second.output.equal(current.output));
  EXPECT_TRUE(second.of_input.equal(current.of_input));
  EXPECT_TRUE(second.of_weight.equal(current.of_weight));
}

// A step may begin, with other scales, between a pass and its gradients.
TEST(Fp8Linear, OfShardsHasTheForwardPassesScaleInItsBackwardPass) {
  const Setting setting;
  const auto gradient_of_input = [&](bool is_sharded) {
    const auto layer = layer_with({.scaling = Fp8Scaling::kDelayed});
    layer->is_sharded = is_sharded;
    layer->scales->begin_step(nullptr);
    setting.run([&](auto& x, auto& w, auto& b) { return fp8_linear(x, w, b, layer, true); });
    layer->scales->begin_step(nullptr);
    const Tensor x = setting.x.clone().requires_grad_(), w = setting.weight.clone();
    const Tensor output = fp8_linear(x, w, {}, layer, true);
    layer->scales->record(0, Fp8Role::kWeight, torch::tensor(100.f));
    layer->scales->begin_step(nullptr);
    output.backward(setting.gradient);
    return x.grad();
  };
  EXPECT_TRUE(gradient_of_input(true).equal(gradient_of_input(false)));
}

TEST(Fp8Linear, MultipliesByTheWeightThatRanksGathered) {
  Setting setting;
  const auto layer = layer_with({});
  layer->gathered = fp8_quantize(setting.weight.neg().exp(), kE4M3);
  const Pass gathered =
      setting.run([&](auto& x, auto& w, auto& b) { return fp8_linear(x, w, b, layer, true); });
  setting.weight = setting.weight.neg().exp();
  const Pass whole = setting.run_fp8({});
  EXPECT_TRUE(gathered.output.equal(whole.output));
  EXPECT_TRUE(gathered.of_input.equal(whole.of_input));
  EXPECT_TRUE(gathered.of_weight.equal(whole.of_weight));
}

TEST(Fp8Linear, RecordsOnlyWhereItIsToldTo) {
  const Setting setting;
  const auto layer = layer_with({.scaling = Fp8Scaling::kDelayed});
  layer->scales->begin_step(nullptr);
  setting.run([&](auto& x, auto& w, auto& b) { return fp8_linear(x, w, b, layer, false); });
  EXPECT_TRUE(layer->scales->state_dict().at("amax").eq(0).all().item<bool>());
  setting.run([&](auto& x, auto& w, auto& b) { return fp8_linear(x, w, b, layer, true); });
  EXPECT_TRUE(layer->scales->state_dict().at("amax").equal(
      torch::stack(
          {setting.x.abs().max(), setting.weight.abs().max(), setting.gradient.abs().max()})
          .unsqueeze(0)));
}

TEST(Fp8Linear, ComputesInBlocks) {
  const Setting setting({40, 80}, 48);  // no multiples of 32
  const Pass blocks = setting.run_fp8({.scaling = Fp8Scaling::kBlocks});
  const auto along = [](const Tensor& x, at::ScalarType format) {
    return mx_quantize(x, format).dequantize();
  };
  EXPECT_TRUE(blocks.output.equal(along(setting.x, kE4M3).mm(along(setting.weight, kE4M3).t()) +
                                  setting.bias));
  EXPECT_TRUE(blocks.of_input.equal(
      along(setting.gradient, kE5M2).mm(along(setting.weight.t(), kE4M3).t())));
  EXPECT_TRUE(blocks.of_weight.equal(
      along(setting.gradient.t(), kE5M2).mm(along(setting.x.t(), kE4M3).t())));
  expect_near(blocks, setting.run_plain(), 0.08);
}

TEST(Fp8Linear, LeavesOverriddenProductsBitEqual) {
  for (const Fp8Scaling scaling :
       {Fp8Scaling::kCurrent, Fp8Scaling::kDelayed, Fp8Scaling::kBlocks}) {
    for (const bool with_bias : {true, false}) {
      for (const auto& sizes : {std::vector<int64_t>{8, 32}, std::vector<int64_t>{2, 3, 32}}) {
        const Setting setting(sizes);
        const Pass plain = setting.run_plain(with_bias);
        for (int which = 0; which < 8; ++which) {
          const bool fprop = which & 1, dgrad = which & 2, wgrad = which & 4;
          const Pass pass = setting.run_fp8({.scaling = scaling,
                                             .override_fprop = fprop,
                                             .override_dgrad = dgrad,
                                             .override_wgrad = wgrad},
                                            with_bias);
          EXPECT_EQ(pass.output.equal(plain.output), fprop);
          EXPECT_EQ(pass.of_input.equal(plain.of_input), dgrad);
          EXPECT_EQ(pass.of_weight.equal(plain.of_weight), wgrad);
        }
      }
    }
  }
}

TEST(Fp8Linear, TakesInputsOfAnyShape) {
  for (const auto& sizes : {std::vector<int64_t>{32}, std::vector<int64_t>{2, 3, 4, 32},
                            std::vector<int64_t>{0, 32}, std::vector<int64_t>{5, 0, 32}}) {
    for (const Fp8Scaling scaling :
         {Fp8Scaling::kCurrent, Fp8Scaling::kDelayed, Fp8Scaling::kBlocks}) {
      const Setting setting(sizes);
      const Pass fp8 = setting.run_fp8({.scaling = scaling}), plain = setting.run_plain();
      EXPECT_EQ(fp8.output.sizes(), plain.output.sizes());
      EXPECT_EQ(fp8.of_input.sizes(), plain.of_input.sizes());
      EXPECT_TRUE(fp8.of_weight.isfinite().all().item<bool>());
      if (setting.x.numel() == 0)
        EXPECT_TRUE(fp8.of_weight.eq(0).all().item<bool>());
      else
        EXPECT_LT(relative_error(fp8.output, plain.output), 0.06);
    }
  }
}

// Outputs are bfloat16, and each gradient has the type of its tensor.
// As an activation in place behind a layer does.
TEST(Fp8Linear, LetsCallersChangeTheOutputInPlace) {
  const Fp8Recipe recipes[] = {{},
                               {.scaling = Fp8Scaling::kDelayed},
                               {.scaling = Fp8Scaling::kBlocks},
                               {.override_fprop = true}};
  for (const Fp8Recipe& recipe : recipes) {
    for (const std::vector<int64_t>& sizes :
         {std::vector<int64_t>{32}, {8, 32}, {2, 4, 32}, {2, 2, 2, 32}}) {
      const Setting setting(sizes);
      const auto run = [&](bool in_place) {
        const auto layer = layer_with(recipe);
        return setting.run([&](auto& x, auto& w, auto& b) {
          const Tensor y = fp8_linear(x, w, b, layer, true);
          return in_place ? y.add_(0.5).relu_() : y.add(0.5).relu();
        });
      };
      const Pass changed = run(true), copied = run(false);
      EXPECT_TRUE(changed.output.equal(copied.output));
      EXPECT_TRUE(changed.of_input.equal(copied.of_input));
      EXPECT_TRUE(changed.of_weight.equal(copied.of_weight));
      EXPECT_TRUE(changed.of_bias.equal(copied.of_bias));
      EXPECT_GT(changed.of_weight.abs().max().item<float>(), 0);
    }
  }
}

TEST(Fp8Linear, FollowsAutocast) {
  const Setting setting;
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  const Pass fp8 = setting.run_fp8({}),
             high = setting.run_fp8(
                 {.override_fprop = true, .override_dgrad = true, .override_wgrad = true}),
             plain = setting.run_plain();
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kCPU, false);
  EXPECT_EQ(fp8.output.scalar_type(), at::kBFloat16);
  EXPECT_EQ(fp8.of_input.scalar_type(), at::kFloat);
  EXPECT_EQ(fp8.of_weight.scalar_type(), at::kFloat);
  EXPECT_EQ(fp8.of_bias.scalar_type(), at::kFloat);
  // Inputs are rounded to bfloat16 first, weights are not.
  const Tensor x = e4m3(setting.x.to(at::kBFloat16)), w = e4m3(setting.weight),
               g = e5m2(setting.gradient.to(at::kBFloat16));
  EXPECT_LT(relative_error(fp8.output.to(at::kFloat), x.mm(w.t()) + setting.bias), 4e-3);
  EXPECT_LT(relative_error(fp8.of_weight, g.t().mm(x)), 1e-6);
  EXPECT_TRUE(high.output.equal(plain.output));
  EXPECT_TRUE(high.of_input.equal(plain.of_input));
  EXPECT_TRUE(high.of_weight.equal(plain.of_weight));
}

TEST(Fp8Linear, GivesGradientsOnlyWhereTheyAreWanted) {
  const Setting setting;
  const auto layer = layer_with({});
  const Tensor frozen = setting.weight, x = setting.x.clone().requires_grad_();
  fp8_linear(x, frozen, {}, layer, true).sum().backward();
  EXPECT_TRUE(x.grad().defined());
  const Tensor w = setting.weight.clone().requires_grad_();
  fp8_linear(setting.x, w, setting.bias, layer, true).sum().backward();
  EXPECT_TRUE(w.grad().defined());
  const torch::NoGradGuard no_grad;
  EXPECT_FALSE(fp8_linear(x, w, {}, layer, true).requires_grad());
}

TEST(Fp8Linear, HidesNoInfinity) {
  for (const Fp8Scaling scaling :
       {Fp8Scaling::kCurrent, Fp8Scaling::kDelayed, Fp8Scaling::kBlocks}) {
    Setting setting;
    setting.gradient[0][0] = std::numeric_limits<float>::infinity();
    EXPECT_FALSE(setting.run_fp8({.scaling = scaling}).of_weight.isfinite().all().item<bool>());
    setting.x[0][0] = std::numeric_limits<float>::infinity();
    EXPECT_FALSE(setting.run_fp8({.scaling = scaling}).output.isfinite().all().item<bool>());
  }
}

TEST(Fp8Linear, HasNoSecondDerivative) {
  const Setting setting;
  const Tensor x = setting.x.clone().requires_grad_();
  const Tensor output = fp8_linear(x, setting.weight, {}, layer_with({}), true);
  EXPECT_THROW(torch::autograd::grad({output.sum()}, {x}, {}, true, /*create_graph=*/true),
               c10::Error);
}

TEST(Fp8Linear, NoticesWhatChangedBeforeTheBackwardPass) {
  const Setting setting;
  const Tensor x = (setting.x.clone().requires_grad_() * 1),
               w = setting.weight.clone().requires_grad_();
  const Tensor output = fp8_linear(x, w, {}, layer_with({.override_wgrad = true}), true);
  x.mul_(2);
  EXPECT_THROW(output.sum().backward(), c10::Error);
}

}  // namespace
}  // namespace accelerate
