#include "accelerate/hooks/layerwise_casting.h"

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/big_model/empty_model.h"
#include "accelerate/hooks/attach_hook.h"
#include "accelerate/hooks/hooked.h"
#include "accelerate/modules/value_at_use.h"
#include "accelerate/operators/managed_storage.h"
#include "accelerate/testing/value_error.h"

namespace accelerate {
namespace {

namespace nn = torch::nn;

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using torch::Tensor;

// A part of every kind, with names that patterns skip, and two uses of one weight.
struct NetImpl : nn::Module {
  explicit NetImpl(at::ScalarType dtype = at::kFloat) {
    tokens = register_module("tokens", nn::Embedding(7, 6));
    conv = register_module("conv", nn::Conv1d(nn::Conv1dOptions(6, 6, 3).padding(1)));
    back = register_module("back", nn::ConvTranspose1d(6, 6, 1));
    norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({6})));
    inner = register_module("inner", nn::Linear(6, 6));
    head = register_module("head", nn::Linear(nn::LinearOptions(6, 7).bias(false)));
    to(dtype);
  }
  Tensor forward(const Tensor& ids) {
    Tensor x = tokens(ids);
    x = back(conv(x.transpose(1, 2))).transpose(1, 2);
    x = torch::relu(inner(norm(x)));
    // Without a call of the layer.
    return head(x + torch::matmul(x, inner->weight.t()));
  }
  nn::Embedding tokens = nullptr;
  nn::Conv1d conv = nullptr;
  nn::ConvTranspose1d back = nullptr;
  nn::LayerNorm norm = nullptr;
  nn::Linear inner = nullptr, head = nullptr;
};
TORCH_MODULE(Net);

Net seeded(at::ScalarType dtype = at::kFloat) {
  torch::manual_seed(5);
  return Net(dtype);
}

// The parameters with these prefixes, rounded.
void round_by_hand(Net& net, at::ScalarType dtype, const std::vector<std::string>& prefixes) {
  const torch::NoGradGuard no_grad;
  for (auto& item : net->named_parameters()) {
    for (const std::string& prefix : prefixes) {
      if (item.key().starts_with(prefix)) item.value().copy_(item.value().to(dtype));
    }
  }
}

std::vector<std::string> cast_parameters(const nn::Module& module) {
  std::vector<std::string> names;
  for (const auto& item : module.named_parameters()) {
    if (find_maker(item.value()) != nullptr) names.push_back(item.key());
  }
  return names;
}

const std::vector<std::string> kLayers = {"conv", "back", "inner", "head"};

TEST(LayerwiseCasting, ComputesWithRoundedWeights) {
  const Tensor ids = torch::randint(7, {3, 5});
  for (const at::ScalarType compute : {at::kFloat, at::kBFloat16}) {
    for (const at::ScalarType storage : {at::kFloat8_e4m3fn, at::kFloat8_e5m2, at::kHalf}) {
      Net expected = seeded(compute), net = seeded(compute);
      round_by_hand(expected, storage, kLayers);
      attach_layerwise_casting_hooks(*net, storage, compute);
      EXPECT_THAT(cast_parameters(*net),
                  ElementsAre("conv.weight", "conv.bias", "back.weight", "back.bias",
                              "inner.weight", "inner.bias", "head.weight"));
      for (const bool gradients : {false, true}) {
        const torch::AutoGradMode mode(gradients);
        EXPECT_TRUE(net(ids).equal(expected(ids))) << storage;
        for (const Tensor& each : net->inner->parameters()) EXPECT_TRUE(is_absent(each));
      }
    }
  }
}

TEST(LayerwiseCasting, HasTheSameGradients) {
  const Tensor ids = torch::randint(7, {3, 5});
  Net expected = seeded(), net = seeded();
  round_by_hand(expected, at::kFloat8_e4m3fn, kLayers);
  attach_layerwise_casting_hooks(*net, at::kFloat8_e4m3fn, at::kFloat);
  for (Net* each : {&expected, &net}) (*each)(ids).pow(2).sum().backward();
  const auto gradients = expected->named_parameters();
  for (const auto& item : net->named_parameters()) {
    EXPECT_TRUE(item.value().grad().equal(gradients[item.key()].grad())) << item.key();
  }
}

TEST(LayerwiseCasting, SkipsPatternsAndClassesWithAllBelow) {
  const auto cast_with = [](const LayerwiseCastingOptions& options) {
    nn::Sequential net;
    net->push_back("head", nn::Linear(2, 2));
    net->push_back("body", seeded().ptr());
    attach_layerwise_casting_hooks(*net, at::kHalf, at::kFloat, options);
    return cast_parameters(*net);
  };
  EXPECT_THAT(cast_with({.skip_modules_pattern = {"^head", "conv|back"}}),
              ElementsAre("body.inner.weight", "body.inner.bias", "body.head.weight"));
  EXPECT_THAT(
      cast_with({.skip_modules_pattern = {"head"}, .skip_modules_classes = {"Conv1d"}}),
      ElementsAre("body.back.weight", "body.back.bias", "body.inner.weight", "body.inner.bias"));
  EXPECT_THAT(cast_with({.skip_modules_classes = {"Net"}}),
              ElementsAre("head.weight", "head.bias"));
  EXPECT_THAT(cast_with({.skip_modules_pattern = {""}}), ElementsAre());
}

TEST(LayerwiseCasting, KeepsWhatIsWrittenRounded) {
  nn::Linear linear(4, 4);
  attach_layerwise_casting_hooks(*linear, at::kHalf, at::kFloat);
  const Tensor values = torch::rand({4, 4}) / 3;
  {
    const torch::NoGradGuard no_grad;
    linear->weight.copy_(values);
    EXPECT_TRUE(linear->weight.equal(values.to(at::kHalf).to(at::kFloat)));
    linear->weight.select(0, 1).zero_();
    EXPECT_EQ(linear->weight[1].abs().sum().item<float>(), 0);
  }
  // An optimizer's step.
  torch::optim::SGD sgd(linear->parameters(), 0.5);
  const Tensor before = linear->weight.detach().clone();
  linear(torch::ones({1, 4})).sum().backward();
  sgd.step();
  EXPECT_TRUE(linear->weight.equal((before - 0.5).to(at::kHalf).to(at::kFloat)));
  // One that is refused changes nothing.
  const Tensor kept = linear->weight.detach().clone();
  EXPECT_ANY_THROW(linear->weight.add_(1));
  EXPECT_TRUE(linear->weight.equal(kept));
}

// Has another layer's weight.
struct TiedImpl : nn::LinearImpl {
  explicit TiedImpl(const Tensor& of) : LinearImpl(3, 3) { weight = parameters_["weight"] = of; }
};
TORCH_MODULE(Tied);

TEST(LayerwiseCasting, CastsTiedWeightsOnce) {
  nn::Linear first(3, 3), third(3, 3);
  Tied second(first->weight);                    // the same tensor
  third->weight.set_data(first->weight.data());  // the same memory
  nn::Sequential net{first, second, third};
  const Tensor weight = first->weight.detach().to(at::kHalf).to(at::kFloat);
  attach_layerwise_casting_hooks(*net, at::kHalf, at::kFloat);
  EXPECT_TRUE(third->weight.equal(weight));
  {
    const torch::NoGradGuard no_grad;
    third->weight.mul_(2);
  }
  EXPECT_TRUE(first->weight.equal(weight * 2));
  EXPECT_TRUE(second->weight.equal(weight * 2));
}

TEST(LayerwiseCasting, WorksWithInferenceTensors) {
  const c10::InferenceMode mode;
  nn::Linear linear(3, 3);
  ASSERT_TRUE(linear->weight.is_inference());
  const Tensor x = torch::rand({2, 3});
  const Tensor weight = linear->weight.to(at::kHalf).to(at::kFloat);
  const Tensor bias = linear->bias.to(at::kHalf).to(at::kFloat);
  attach_layerwise_casting_hooks(*linear, at::kHalf, at::kFloat);
  EXPECT_TRUE(linear(x).equal(torch::linear(x, weight, bias)));
  EXPECT_TRUE(is_absent(linear->weight));
  linear->weight.mul_(2);
  EXPECT_TRUE(linear->weight.equal(weight * 2));
}

TEST(LayerwiseCasting, IsDoneOnce) {
  nn::Linear linear(3, 3);
  attach_layerwise_casting_hooks(*linear, at::kHalf, at::kFloat);
  const Tensor weight = linear->weight.detach().clone();
  attach_layerwise_casting_hooks(*linear, at::kFloat8_e4m3fn, at::kFloat);
  EXPECT_TRUE(linear->weight.equal(weight));
}

TEST(LayerwiseCasting, EndsWithTheHooks) {
  Net net = seeded();
  const Tensor weight = net->inner->weight.detach().clone();
  attach_layerwise_casting_hooks(*net, at::kHalf, at::kFloat);
  remove_hook_from_submodules(*net);
  EXPECT_THAT(cast_parameters(*net), ElementsAre());
  EXPECT_TRUE(net->inner->weight.equal(weight.to(at::kHalf)));
  EXPECT_TRUE(net->inner->weight.requires_grad());
}

TEST(LayerwiseCasting, IsAHookOfAnyHookedModule) {
  nn::ModuleHolder<Hooked<nn::EmbeddingImpl>> tokens(5, 3);
  const Tensor weight = tokens->weight.detach().clone();
  add_hook_to_module(*tokens, std::make_shared<LayerwiseCastingHook>(at::kHalf, at::kFloat));
  EXPECT_TRUE(is_absent(tokens->weight));
  const Tensor ids = torch::arange(5);
  EXPECT_TRUE(tokens(ids).equal(weight.to(at::kHalf).to(at::kFloat)));
  remove_hook_from_module(*tokens);
  EXPECT_TRUE(tokens->weight.equal(weight.to(at::kHalf)));
}

TEST(LayerwiseCasting, RefusesWhatItCannotCast) {
  nn::Linear linear(2, 2);
  const auto error = [&](nn::Module& module, at::ScalarType storage,
                         const LayerwiseCastingOptions& options = {}) {
    return value_error_of(
        [&] { attach_layerwise_casting_hooks(module, storage, at::kFloat, options); });
  };
  EXPECT_THAT(error(*linear, at::kInt), HasSubstr("Int has no floating-point numbers"));
  EXPECT_THAT(error(*linear, at::kHalf, {.skip_modules_pattern = {"("}}),
              HasSubstr("skip_modules_pattern \"(\" is not a regular expression"));
  const nn::Linear empty = [] {
    const EmptyInit init = init_empty_weights();
    return nn::Linear(2, 2);
  }();
  EXPECT_THAT(error(*nn::Sequential(linear, empty), at::kHalf),
              AllOf(HasSubstr("\"1.weight\""), HasSubstr("meta device")));
  EXPECT_FALSE(is_absent(linear->weight));
}

TEST(LayerwiseCasting, ServesSeveralThreads) {
  nn::Linear linear(64, 64);
  attach_layerwise_casting_hooks(*linear, at::kHalf, at::kFloat);
  const Tensor x = torch::rand({8, 64});
  const torch::NoGradGuard no_grad;
  const Tensor expected = linear(x);
  std::vector<std::thread> threads;
  std::vector<int> wrong(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const torch::NoGradGuard no_grad;
      for (int i = 0; i < 200; ++i) wrong[t] += !linear(x).equal(expected);
    });
  }
  for (std::thread& each : threads) each.join();
  EXPECT_THAT(wrong, ElementsAre(0, 0, 0, 0));
  EXPECT_TRUE(is_absent(linear->weight));
}

TEST(LayerwiseCasting, OutlivesItsLayer) {
  Tensor view;
  {
    nn::Linear linear(2, 2);
    attach_layerwise_casting_hooks(*linear, at::kHalf, at::kFloat);
    view = linear->weight.detach().t();
  }
  EXPECT_EQ(view.sum().numel(), 1);
}

// ---- Makers.

class Failing final : public ValueMaker {
 public:
  Tensor make() override {
    TORCH_CHECK(!make_fails, "no values");
    return torch::ones({2});
  }
  void store(const Tensor& /*values*/) override { TORCH_CHECK(false, "no room"); }
  std::vector<KeptTensor> kept(const std::string& name) const override {
    return {{name, torch::ones({2})}};
  }
  std::unique_ptr<ValueMaker> on_device(c10::Device /*device*/) const override {
    return std::make_unique<Failing>();
  }
  bool make_fails = false;
};

TEST(ValuesAtUse, SayWhatFailed) {
  const Tensor parameter = torch::zeros({2});
  auto maker = std::make_unique<Failing>();
  Failing* const failing = maker.get();
  make_at_use(parameter, "w", at::kFloat, std::move(maker));
  EXPECT_EQ(find_maker(parameter), failing);
  failing->make_fails = true;
  EXPECT_THROW(parameter.sum(), c10::Error);
  failing->make_fails = false;
  EXPECT_EQ(parameter.sum().item<float>(), 2);
  parameter.add_(1);
  EXPECT_THROW(parameter.sum(), c10::Error);
  EXPECT_EQ(parameter.sum().item<float>(), 2);
  EXPECT_TRUE(is_absent(parameter));
  EXPECT_THAT(
      value_error_of([&] { make_at_use(parameter, "w", at::kFloat, std::make_unique<Failing>()); }),
      AllOf(HasSubstr("\"w\""), HasSubstr("another mechanism already")));
}

}  // namespace
}  // namespace accelerate
