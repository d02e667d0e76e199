#include "accelerate/precision/fp8_model.h"

#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/testing/threaded_group.h"

namespace accelerate {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using torch::Tensor;

struct MlpImpl : torch::nn::Module {
  explicit MlpImpl(int64_t classes = 16) {
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({16})));
    first = register_module("first", torch::nn::Linear(16, 32));
    odd = register_module("odd", torch::nn::Linear(32, 24));
    inner =
        register_module("inner", torch::nn::Sequential(torch::nn::Linear(24, 32), torch::nn::ReLU(),
                                                       torch::nn::Linear(32, 32)));
    last = register_module("last", torch::nn::Linear(32, classes));
  }
  Tensor forward(Tensor x) {
    x = torch::relu(first(norm(x)));
    x = torch::relu(inner->forward(torch::relu(odd(x))));
    if (throws) throw std::runtime_error("from the forward pass");
    return last(x);
  }
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear first{nullptr}, odd{nullptr}, last{nullptr};
  torch::nn::Sequential inner{nullptr};
  bool throws = false;
};
TORCH_MODULE(Mlp);

template <typename Kwargs>
Fp8Plan plan_of(Kwargs kwargs) {
  return {resolve(std::move(kwargs), Environment())};
}

std::vector<std::string> skipped(const Fp8Model& fp8) {
  std::vector<std::string> names;
  for (const auto& layer : fp8.report().skipped) names.push_back(layer.name);
  return names;
}

struct Fixture {
  explicit Fixture(const Fp8Plan& plan) : fp8(Fp8Model::convert(*model, plan)) {}

  Tensor in_fp8() {
    const Fp8Model::Scope scope = fp8->forward_scope();
    return model(x);
  }

  int seed = (torch::manual_seed(5), 0);
  Mlp model;
  Tensor x = torch::randn({8, 16});
  std::shared_ptr<Fp8Model> fp8;
};

TEST(Fp8Filters, KnowTheEndsAndTheSizes) {
  Mlp model;
  const auto [first, last] = find_first_last_linear_layers(*model);
  EXPECT_EQ(first, "first");
  EXPECT_EQ(last, "last");
  EXPECT_FALSE(find_first_last_linear_layers(*model->norm).first);
  torch::nn::Linear alone(16, 16);
  EXPECT_EQ(find_first_last_linear_layers(*alone).second, "");
  const Fp8Filter filter = filter_first_and_last_linear_layers(*model);
  EXPECT_FALSE(filter(*model->first, "first"));
  EXPECT_FALSE(filter(*model->odd, "odd"));
  EXPECT_TRUE(filter(*model->inner->children().back(), "inner.2"));
  EXPECT_FALSE(filter_linear_layers(*model->first, "first", {"first"}));
  EXPECT_TRUE(filter_linear_layers(*model->first, "first", {}));
}

TEST(Fp8Model, ChoosesLayersByTheRecipe) {
  const Fixture ao(plan_of(AORecipeKwargs{})), te(plan_of(TERecipeKwargs{})),
      ends(plan_of(TERecipeKwargs{.keep_first_and_last = true})),
      msamp(plan_of(MSAMPRecipeKwargs{}));
  EXPECT_THAT(ao.fp8->report().converted, ElementsAre("inner.2"));
  EXPECT_THAT(skipped(*ao.fp8), ElementsAre("first", "odd", "inner.0", "last"));
  // Layers after one that stays in high precision are converted.
  EXPECT_THAT(te.fp8->report().converted, ElementsAre("first", "inner.2", "last"));
  EXPECT_THAT(skipped(*te.fp8), ElementsAre("odd", "inner.0"));
  EXPECT_THAT(ends.fp8->report().converted, ElementsAre("inner.2"));
  EXPECT_TRUE(has_transformer_engine_layers(*te.fp8));
  EXPECT_FALSE(has_ao_layers(*te.fp8));
  EXPECT_TRUE(has_ao_layers(*ao.fp8));
  EXPECT_THAT(msamp.fp8->report().converted, ElementsAre("first", "inner.2", "last"));
  EXPECT_THAT(
      te.fp8->report().to_string(),
      HasSubstr("odd: not converted: [24, 32] has a dimension that is not a multiple of 16"));
}

TEST(Fp8Model, AsksTheFilter) {
  std::vector<std::string> asked;
  AORecipeKwargs kwargs{
      .module_filter_func = [&](const torch::nn::Module&, const std::string& name) {
        asked.push_back(name);
        return name != "last";
      }};
  Fixture pads(plan_of(kwargs));
  EXPECT_THAT(asked, ElementsAre("first", "odd", "inner.0", "inner.2", "last"));
  EXPECT_THAT(pads.fp8->report().converted, ElementsAre("first", "odd", "inner.0", "inner.2"));
  EXPECT_TRUE(pads.in_fp8().allclose(pads.model(pads.x), 0, 0.1));
  kwargs.pad_inner_dim = false;
  const Fixture skips(plan_of(kwargs));
  EXPECT_THAT(skips.fp8->report().converted, ElementsAre("first", "inner.2"));
}

TEST(Fp8Model, LeavesEverythingElseBitEqual) {
  for (const Fp8Plan& plan :
       {plan_of(AORecipeKwargs{.module_filter_func = [](auto&, auto&) { return false; }}),
        plan_of(TERecipeKwargs{.override_linear_precision = {{true, true, true}}})}) {
    Fixture f(plan);
    const Tensor plain = f.model(f.x);
    plain.square().sum().backward();
    std::vector<Tensor> gradients;
    for (const Tensor& p : f.model->parameters()) gradients.push_back(p.grad().clone());
    f.model->zero_grad();
    const Tensor output = f.in_fp8();
    output.square().sum().backward();
    EXPECT_TRUE(output.equal(plain));
    size_t next = 0;
    for (const Tensor& p : f.model->parameters()) EXPECT_TRUE(p.grad().equal(gradients[next++]));
  }
}

TEST(Fp8Model, EndsWithItsScope) {
  Fixture f(plan_of(AORecipeKwargs{}));
  const Tensor plain = f.model(f.x), fp8 = f.in_fp8();
  EXPECT_FALSE(fp8.equal(plain));
  EXPECT_TRUE(f.model(f.x).equal(plain));
  f.model->throws = true;
  EXPECT_THROW(f.in_fp8(), std::runtime_error);
  f.model->throws = false;
  EXPECT_TRUE(f.model(f.x).equal(plain));
}

TEST(Fp8Model, ComputesInFp8InEvaluationWhereTheRecipeSaysSo) {
  const auto differs_in_eval = [](const Fp8Plan& plan) {
    Fixture f(plan);
    f.model->eval();
    return !f.in_fp8().equal(f.model(f.x));
  };
  EXPECT_TRUE(differs_in_eval(plan_of(AORecipeKwargs{})));
  EXPECT_TRUE(differs_in_eval(plan_of(MSAMPRecipeKwargs{})));
  EXPECT_FALSE(differs_in_eval(plan_of(TERecipeKwargs{})));
  EXPECT_TRUE(differs_in_eval(plan_of(TERecipeKwargs{.use_autocast_during_eval = true})));
}

TEST(Fp8Model, EvaluationLeavesScalesAlone) {
  Fixture f(plan_of(TERecipeKwargs{.use_autocast_during_eval = true}));
  f.in_fp8().sum().backward();
  const auto before = f.fp8->state_dict();
  f.model->eval();
  {
    const c10::InferenceMode inference;
    f.in_fp8();
  }
  for (const auto& [name, value] : f.fp8->state_dict())
    EXPECT_TRUE(value.equal(before.at(name))) << name;
  f.model->train();
  f.in_fp8();
  EXPECT_FALSE(f.fp8->state_dict().at("scales").equal(before.at("scales")));
}

TEST(Fp8Model, PassesWithoutGradientsInTrainingLeaveScalesAloneAndAreLocal) {
  run_ranks(2, [](const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
    torch::nn::Linear layer(16, 16);
    const auto fp8 = Fp8Model::convert(*layer, plan_of(TERecipeKwargs{}), group);
    const auto forward = [&](double factor) {
      const Fp8Model::Scope scope = fp8->forward_scope();
      return layer(torch::full({16, 16}, factor));
    };
    forward(7);
    const auto before = fp8->state_dict();
    if (group->getRank() == 0) {
      {
        const torch::NoGradGuard no_grad;
        forward(28);
      }
      const c10::InferenceMode inference;
      forward(28);
    }
    for (const auto& [name, value] : fp8->state_dict()) {
      EXPECT_TRUE(value.equal(before.at(name))) << name;
    }
    forward(7);
    EXPECT_EQ(fp8->state_dict().at("scales")[0][0].item<float>(), 64);
    EXPECT_EQ(fp8->state_dict().at("steps").item<int64_t>(), 2);
  });
}

TEST(Fp8Model, FrozenPartsOfATrainingPassHaveScales) {
  torch::nn::Linear layer(16, 16);
  const auto fp8 = Fp8Model::convert(*layer, plan_of(TERecipeKwargs{}));
  for (int step = 0; step < 2; ++step) {
    const Fp8Model::Scope scope = fp8->forward_scope();
    const torch::NoGradGuard no_grad;
    layer(torch::full({16, 16}, 7.));
  }
  EXPECT_EQ(fp8->state_dict().at("scales")[0][0].item<float>(), 64);
}

TEST(Fp8Model, LeavesOtherModelsAloneAndNests) {
  Fixture one(plan_of(AORecipeKwargs{}));
  Mlp two;
  const auto fp8_two = Fp8Model::convert(*two, plan_of(TERecipeKwargs{}));
  const Tensor plain_two = two(one.x);
  const Tensor alone = one.in_fp8();
  const Fp8Model::Scope outer = one.fp8->forward_scope();
  EXPECT_TRUE(two(one.x).equal(plain_two));
  {
    const Fp8Model::Scope inner = fp8_two->forward_scope();
    EXPECT_FALSE(two(one.x).equal(plain_two));
    EXPECT_TRUE(one.model(one.x).equal(alone));
  }
  EXPECT_TRUE(two(one.x).equal(plain_two));
  EXPECT_TRUE(one.model(one.x).equal(alone));
}

TEST(Fp8Model, GoesBeforeItsGraph) {
  auto f = std::make_unique<Fixture>(plan_of(TERecipeKwargs{}));
  const Tensor weight = f->model->last->weight, output = f->in_fp8();
  f.reset();
  output.sum().backward();
  EXPECT_TRUE(weight.grad().isfinite().all().item<bool>());
}

// Recomputes as a checkpoint does, with the handlers of the forward pass and without.
TEST(Fp8Model, IsComputedAgainWithTheHandlersOfTheForwardPass) {
  Fixture f(plan_of(TERecipeKwargs{}));
  f.in_fp8().sum().backward();
  OperatorHandlers handlers;
  Tensor output;
  {
    const Fp8Model::Scope scope = f.fp8->forward_scope();
    output = f.model(f.x);
    handlers = current_operator_handlers();
  }
  EXPECT_FALSE(f.model(f.x).equal(output));
  const OperatorModeScope again(handlers);
  EXPECT_TRUE(f.model(f.x).equal(output));
}

TEST(Fp8Model, KnowsLayersAfterTheModelMoved) {
  Fixture f(plan_of(AORecipeKwargs{}));
  f.model->to(at::kDouble);
  f.x = f.x.to(at::kDouble);
  const Tensor output = f.in_fp8();
  EXPECT_EQ(output.scalar_type(), at::kDouble);
  EXPECT_FALSE(output.equal(f.model(f.x)));
}

TEST(Fp8Model, GivesTiedLayersOneState) {
  torch::nn::Sequential model(torch::nn::Linear(16, 16), torch::nn::Linear(16, 16));
  auto& a = dynamic_cast<torch::nn::LinearImpl&>(*model->children()[0]);
  auto& b = dynamic_cast<torch::nn::LinearImpl&>(*model->children()[1]);
  b.weight = a.weight;
  const auto fp8 = Fp8Model::convert(*model, plan_of(TERecipeKwargs{}));
  EXPECT_EQ(fp8->report().converted.size(), 2);
  EXPECT_EQ(fp8->weights().size(), 1);
  EXPECT_EQ(fp8->state_dict().at("scales").sizes(), (at::IntArrayRef{1, 3}));
}

TEST(Fp8Model, WithoutLayersDoesNothing) {
  torch::nn::LayerNorm norm(torch::nn::LayerNormOptions({4}));
  const auto fp8 = Fp8Model::convert(*norm, plan_of(TERecipeKwargs{}));
  EXPECT_THAT(fp8->report().converted, IsEmpty());
  EXPECT_THAT(fp8->state_dict(), IsEmpty());
  const Fp8Model::Scope scope = fp8->forward_scope();
  EXPECT_TRUE(current_operator_handlers().empty());
}

TEST(Fp8Model, LeavesMistakesToTheOperator) {
  torch::nn::Linear layer(16, 16);
  const auto fp8 = Fp8Model::convert(*layer, plan_of(MSAMPRecipeKwargs{}));
  const Fp8Model::Scope scope = fp8->forward_scope();
  EXPECT_THROW(layer(torch::ones({2, 8})), c10::Error);
  EXPECT_THROW(layer(torch::ones({2, 16}, at::kLong)), c10::Error);
}

// The loss after learning a function, from about 0.5 at the start.
double final_loss(const std::optional<Fp8Plan>& plan) {
  torch::set_num_threads(1);
  torch::manual_seed(11);
  torch::nn::Sequential model(torch::nn::Linear(16, 64), torch::nn::Tanh(),
                              torch::nn::Linear(64, 64), torch::nn::Tanh(),
                              torch::nn::Linear(64, 16));
  const Tensor x = torch::randn({64, 16}), y = torch::sin(x.cumsum(1));
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(3e-3));
  const auto fp8 = plan ? Fp8Model::convert(*model, *plan) : nullptr;
  double loss_value = 0;
  for (int step = 0; step < 120; ++step) {
    optimizer.zero_grad();
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    Tensor output;
    {
      const Fp8Model::Scope scope =
          fp8 ? fp8->forward_scope() : Fp8Model::Scope(OperatorHandlers());
      output = model->forward(x);
    }
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    const Tensor loss = torch::mse_loss(output.to(at::kFloat), y);
    loss.backward();
    for (const Tensor& p : model->parameters()) EXPECT_EQ(p.grad().scalar_type(), at::kFloat);
    optimizer.step();
    loss_value = loss.item<double>();
  }
  return loss_value;
}

TEST(Fp8Model, TrainsNearlyAsInBfloat16) {
  const double bf16 = final_loss(std::nullopt);
  EXPECT_LT(bf16, 0.05);
  const std::map<std::string, Fp8Plan> plans{
      {"AO", plan_of(AORecipeKwargs{.module_filter_func = [](auto&, auto&) { return true; }})},
      {"MSAMP", plan_of(MSAMPRecipeKwargs{})},
      {"TE", plan_of(TERecipeKwargs{})},
      {"TE E4M3 max",
       plan_of(TERecipeKwargs{
           .margin = 1, .interval = 3, .fp8_format = "E4M3", .amax_compute_algo = "max"})},
      {"TE MXFP8", plan_of(TERecipeKwargs{.use_mxfp8_block_scaling = true})}};
  for (const auto& [name, plan] : plans) EXPECT_NEAR(final_loss(plan), bf16, 0.02) << name;
}

}  // namespace
}  // namespace accelerate
