#include "accelerate/megatron/optimizer.h"

#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <nlohmann/json.hpp>

#include "accelerate/testing/value_error.h"

namespace accelerate {
namespace {

using ::testing::HasSubstr;

MegatronLMPlugin with_optimizer(const torch::optim::Optimizer& optimizer,
                                MegatronLMPlugin plugin = {}) {
  plugin.megatron_lm_default_args = nlohmann::ordered_json::object();
  const MegatronOptimizerFacts facts = megatron_optimizer_facts(optimizer);
  plugin.set_optimizer_type(facts.class_name, facts.defaults);
  return plugin;
}

MegatronSchedule schedule() {
  return {.max_lr = 0.1,
          .lr_warmup_steps = 8,
          .lr_decay_steps = 80,
          .lr_decay_style = MegatronDecay::kConstant,
          .start_wd = 0.01,
          .end_wd = 0.03,
          .wd_incr_steps = 80,
          .wd_incr_style = MegatronDecay::kLinear};
}

TEST(MegatronOptimizer, HasGroupsWithAndWithoutWeightDecay) {
  torch::nn::Linear model(3, 2);
  const torch::optim::AdamW adam(model->parameters(), torch::optim::AdamWOptions(0.2)
                                                          .betas(std::make_tuple(0.8, 0.95))
                                                          .eps(1e-6)
                                                          .weight_decay(0.3));
  const MegatronOptimizer made = make_megatron_optimizer(*model, with_optimizer(adam));
  ASSERT_EQ(made.optimizer->param_groups().size(), 2U);
  EXPECT_EQ(made.factors[0], (MegatronFactors{.lr = 1, .weight_decay = 0}));
  EXPECT_EQ(made.factors[1], (MegatronFactors{.lr = 1, .weight_decay = 1}));
  EXPECT_TRUE(made.optimizer->param_groups()[0].params()[0].is_same(model->bias));
  EXPECT_TRUE(made.optimizer->param_groups()[1].params()[0].is_same(model->weight));
  const auto& options =
      dynamic_cast<const torch::optim::AdamWOptions&>(made.optimizer->param_groups()[1].options());
  EXPECT_EQ(options.lr(), 0.2);
  EXPECT_EQ(std::get<0>(options.betas()), 0.8);
  EXPECT_EQ(std::get<1>(options.betas()), 0.95);
  EXPECT_EQ(options.eps(), 1e-6);
  EXPECT_EQ(options.weight_decay(), 0.3);
}

TEST(MegatronOptimizer, FollowsTheConditionsOfThePlugin) {
  torch::nn::Linear model(3, 2);
  const torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  MegatronLMPlugin plugin = with_optimizer(sgd);
  plugin.no_wd_decay_cond = [](const std::string&, const at::Tensor&) { return false; };
  plugin.scale_lr_cond = [](const std::string& name, const at::Tensor&) { return name == "bias"; };
  plugin.lr_mult = 4;
  const MegatronOptimizer made = make_megatron_optimizer(*model, plugin);
  ASSERT_EQ(made.factors.size(), 2U);
  EXPECT_EQ(made.factors[0], (MegatronFactors{.lr = 1, .weight_decay = 1}));
  EXPECT_EQ(made.factors[1], (MegatronFactors{.lr = 4, .weight_decay = 1}));
  EXPECT_TRUE(made.optimizer->param_groups()[1].params()[0].is_same(model->bias));
  for (const torch::optim::OptimizerParamGroup& group : made.optimizer->param_groups()) {
    EXPECT_EQ(dynamic_cast<const torch::optim::SGDOptions&>(group.options()).momentum(), 0.9);
  }
}

// One that two modules share is one parameter, and a frozen one is none.
TEST(MegatronOptimizer, HasEachTrainedParameterOnce) {
  const auto model = std::make_shared<torch::nn::Module>("net");
  torch::nn::Linear shared(2, 2), frozen(2, 2);
  model->register_module("first", shared);
  model->register_module("again", shared);
  model->register_module("frozen", frozen);
  for (torch::Tensor& each : frozen->parameters()) each.set_requires_grad(false);
  const torch::optim::SGD sgd(shared->parameters(), torch::optim::SGDOptions(0.1));
  const MegatronOptimizer made = make_megatron_optimizer(*model, with_optimizer(sgd));
  ASSERT_EQ(made.optimizer->param_groups().size(), 2U);
  const auto& biases = made.optimizer->param_groups()[0].params();
  ASSERT_EQ(biases.size(), 1U);
  EXPECT_TRUE(biases[0].is_same(shared->bias));
  const auto& weights = made.optimizer->param_groups()[1].params();
  ASSERT_EQ(weights.size(), 1U);
  EXPECT_TRUE(weights[0].is_same(shared->weight));
}

TEST(MegatronOptimizer, KnowsBiasesByTheirNamesAndByTheirShapes) {
  const auto model = std::make_shared<torch::nn::Module>("net");
  const auto layer = std::make_shared<torch::nn::Module>("layer");
  model->register_module("layer", layer);
  layer->register_parameter("bias", torch::ones({2, 2}));
  layer->register_parameter("scale", torch::ones({2}));
  layer->register_parameter("weight", torch::ones({2, 2}));
  const torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.1));
  const MegatronOptimizer made = make_megatron_optimizer(*model, with_optimizer(sgd));
  ASSERT_EQ(made.optimizer->param_groups().size(), 2U);
  EXPECT_EQ(made.optimizer->param_groups()[0].params().size(), 2U);
  const auto& decaying = made.optimizer->param_groups()[1].params();
  ASSERT_EQ(decaying.size(), 1U);
  EXPECT_TRUE(decaying[0].is_same(layer->named_parameters()["weight"]));
}

TEST(MegatronOptimizer, OfAdamHasTheRatesOfTheSchedule) {
  torch::nn::Linear model(3, 2);
  const torch::optim::AdamW adam(model->parameters(), torch::optim::AdamWOptions(0.1));
  const MegatronOptimizer made = make_megatron_optimizer(*model, with_optimizer(adam));
  set_megatron_rates(*made.optimizer, made.factors, schedule(), 4);
  for (const size_t group : {0, 1}) {
    const auto& options = dynamic_cast<const torch::optim::AdamWOptions&>(
        made.optimizer->param_groups()[group].options());
    EXPECT_DOUBLE_EQ(options.lr(), 0.05);
    EXPECT_DOUBLE_EQ(options.weight_decay(), group == 0 ? 0 : 0.011);
  }
}

TEST(MegatronOptimizer, RefusesRatesOfOtherGroups) {
  torch::nn::Linear model(3, 2);
  torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.1));
  const std::vector<MegatronFactors> one(1), two(2);
  EXPECT_THAT(value_error_of([&] { set_megatron_rates(sgd, two, schedule(), 4); }),
              HasSubstr("has 1 groups of parameters, but there are factors for 2"));
  torch::optim::RMSprop rmsprop(model->parameters(), torch::optim::RMSpropOptions(0.1));
  EXPECT_THAT(value_error_of([&] { set_megatron_rates(rmsprop, one, schedule(), 4); }),
              HasSubstr("a group of parameters is of another optimizer"));
}

TEST(MegatronOptimizer, HasTheRatesOfTheSchedule) {
  torch::nn::Linear model(3, 2);
  const torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.1));
  MegatronLMPlugin plugin = with_optimizer(sgd);
  plugin.scale_lr_cond = [](const std::string& name, const at::Tensor&) { return name == "bias"; };
  plugin.lr_mult = 4;
  const MegatronOptimizer made = make_megatron_optimizer(*model, plugin);
  const auto options = [&](size_t group) -> const torch::optim::SGDOptions& {
    return dynamic_cast<const torch::optim::SGDOptions&>(
        made.optimizer->param_groups()[group].options());
  };
  set_megatron_rates(*made.optimizer, made.factors, schedule(), 4);
  EXPECT_DOUBLE_EQ(options(0).lr(), 4 * 0.05) << "a bias, half way through the warmup";
  EXPECT_EQ(options(0).weight_decay(), 0);
  EXPECT_DOUBLE_EQ(options(1).lr(), 0.05);
  EXPECT_DOUBLE_EQ(options(1).weight_decay(), 0.011);
  set_megatron_rates(*made.optimizer, made.factors, schedule(), 40);
  EXPECT_DOUBLE_EQ(options(1).lr(), 0.1);
  EXPECT_DOUBLE_EQ(options(1).weight_decay(), 0.02);
}

TEST(MegatronOptimizer, NamesWhatItCannotBe) {
  torch::nn::Linear model(3, 2);
  const torch::optim::RMSprop rmsprop(model->parameters(), torch::optim::RMSpropOptions(0.1));
  EXPECT_THAT(value_error_of([&] { megatron_optimizer_facts(rmsprop); }), HasSubstr("RMSprop"));
  MegatronLMPlugin plugin;
  plugin.megatron_lm_default_args = nlohmann::ordered_json::object();
  EXPECT_THAT(value_error_of([&] { make_megatron_optimizer(*model, plugin); }),
              HasSubstr("optimizer: expected \"adam\" or \"sgd\""));
  const torch::optim::Adam adam(model->parameters(), torch::optim::AdamOptions(0.1));
  plugin = with_optimizer(adam);
  plugin.megatron_lm_default_args.erase("adam_eps");
  EXPECT_THAT(value_error_of([&] { make_megatron_optimizer(*model, plugin); }),
              HasSubstr("adam_eps"));
}

}  // namespace
}  // namespace accelerate
