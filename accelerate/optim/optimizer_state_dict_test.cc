#include "accelerate/optim/optimizer_state_dict.h"

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/serialize/archive.h>
#include <nlohmann/json.hpp>

#include "accelerate/optim/accelerated_optimizer.h"
#include "accelerate/optim/foreach_optimizers.h"
#include "accelerate/optim/fused_optimizers.h"
#include "accelerate/optim/lomo.h"
#include "accelerate/optim/shared_objects.h"
#include "accelerate/testing/value_error.h"

namespace accelerate {
namespace {

using nlohmann::ordered_json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using torch::optim::Optimizer;
using torch::optim::OptimizerParamGroup;

// What becomes of a state dict in a file: numbers become text, tensors memory of their own.
StateDict written_and_read(const StateDict& state) {
  StateDict read;
  read.values = ordered_json::parse(state.values.dump());
  for (const auto& [name, tensor] : state.tensors) {
    read.tensors.emplace_back(name,
                              tensor.to(at::kCPU, tensor.scalar_type(), /*non_blocking=*/false,
                                        /*copy=*/true, at::MemoryFormat::Contiguous));
  }
  return read;
}

// A user's own, with state in a place of its own.
class Sluggish : public Optimizer {
 public:
  explicit Sluggish(std::vector<at::Tensor> parameters)
      : Optimizer(std::move(parameters), std::make_unique<torch::optim::SGDOptions>(0.1)) {}
  at::Tensor step(LossClosure) override {
    at::NoGradGuard no_grad;
    ++steps_;
    for (OptimizerParamGroup& group : param_groups_) {
      for (at::Tensor& parameter : group.params()) {
        if (parameter.grad().defined()) parameter.sub_(parameter.grad(), 0.1 / steps_);
      }
    }
    return {};
  }
  void save(torch::serialize::OutputArchive& archive) const override {
    archive.write("steps", c10::IValue(steps_));
  }
  void load(torch::serialize::InputArchive& archive) override {
    c10::IValue steps;
    archive.read("steps", steps);
    steps_ = steps.toInt();
  }

 private:
  int64_t steps_ = 0;
};

class Forgetful : public Optimizer {
 public:
  explicit Forgetful(std::vector<at::Tensor> parameters)
      : Optimizer(std::move(parameters), std::make_unique<torch::optim::SGDOptions>(0.1)) {}
  at::Tensor step(LossClosure) override { return {}; }
};

// Derived from a known one, and more than it.
class ScaledAdam : public torch::optim::Adam {
 public:
  using torch::optim::Adam::Adam;
};

struct Kind {
  std::string name;
  std::function<std::unique_ptr<Optimizer>(std::vector<OptimizerParamGroup>)> make;
};

void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

template <typename Opt, typename Options>
Kind kind_of(std::string name, Options options) {
  return {std::move(name), [options](const std::vector<OptimizerParamGroup>& groups) {
            return std::make_unique<Opt>(groups, options);
          }};
}

std::vector<Kind> kinds() {
  using namespace torch::optim;
  return {
      kind_of<torch::optim::SGD>("Sgd", SGDOptions(0.1)),
      kind_of<torch::optim::SGD>("SgdMomentum",
                                 SGDOptions(0.1).momentum(0.9).weight_decay(0.01).nesterov(true)),
      kind_of<torch::optim::Adam>("Adam", AdamOptions(0.1)),
      kind_of<torch::optim::Adam>("AdamAmsgrad", AdamOptions(0.1).amsgrad(true)),
      kind_of<torch::optim::AdamW>("AdamW", AdamWOptions(0.1).betas({0.8, 0.9})),
      kind_of<torch::optim::Adagrad>("Adagrad", AdagradOptions(0.1).initial_accumulator_value(1)),
      kind_of<optim::Adagrad>("OwnAdagrad", AdagradOptions(0.1).initial_accumulator_value(1)),
      kind_of<torch::optim::RMSprop>("RMSprop", RMSpropOptions(0.1)),
      kind_of<torch::optim::RMSprop>("RMSpropCentered",
                                     RMSpropOptions(0.1).momentum(0.9).centered(true)),
      kind_of<torch::optim::LBFGS>("Lbfgs", LBFGSOptions(0.1).max_iter(3).history_size(4)),
      kind_of<torch::optim::LBFGS>("LbfgsSearch",
                                   LBFGSOptions(1).max_iter(3).line_search_fn("strong_wolfe")),
      kind_of<optim::SGD>("FusedSgd", SGDOptions(0.1).momentum(0.9)),
      kind_of<optim::Adam>("FusedAdam", AdamOptions(0.1).amsgrad(true)),
      kind_of<optim::AdamW>("FusedAdamW", AdamWOptions(0.1)),
      kind_of<optim::Lion>("Lion", optim::LionOptions(0.1)),
      kind_of<optim::Lamb>("Lamb", optim::LambOptions(0.1)),
      kind_of<optim::ScheduleFreeAdamW>("ScheduleFreeAdamW",
                                        optim::ScheduleFreeAdamWOptions(0.1).warmup_steps(3)),
      kind_of<optim::Lomo>("Lomo", optim::LomoOptions(0.1)),
      kind_of<optim::AdaLomo>("AdaLomo", optim::AdaLomoOptions(0.1)),
      kind_of<ScaledAdam>("DerivedAdam", AdamOptions(0.1)),
      {"Own", [](const std::vector<OptimizerParamGroup>& groups) {
         return std::make_unique<Sluggish>(groups.front().params());
       }}};
}

// Parameters of several layouts; the last one never has a gradient.
std::vector<at::Tensor> made_parameters(at::ScalarType dtype = at::kFloat,
                                        at::MemoryFormat format = at::MemoryFormat::ChannelsLast) {
  const auto values = [dtype](at::IntArrayRef sizes) {
    const int64_t size = c10::multiply_integers(sizes);
    return at::arange(size, at::kFloat)
        .div_(static_cast<double>(size))
        .add_(0.25)
        .reshape(sizes)
        .to(dtype);
  };
  std::vector<at::Tensor> parameters = {values({3, 2}), values({4}),
                                        values({2, 3, 2, 2}).contiguous(format), values({}),
                                        values({5})};
  for (at::Tensor& parameter : parameters) parameter.requires_grad_(true);
  return parameters;
}

at::Tensor loss_of(const std::vector<at::Tensor>& parameters, int64_t step) {
  at::Tensor loss = at::zeros({});
  for (size_t i = 0; i + 1 < parameters.size(); ++i) {
    const double target = std::sin(static_cast<double>(step * 7 + static_cast<int64_t>(i)));
    loss = loss + (parameters[i] - target).square().mul(0.5).cos().sum();
  }
  return loss;
}

void train(Optimizer& optimizer, const std::vector<at::Tensor>& parameters, int64_t from,
           int64_t to) {
  for (int64_t step = from; step < to; ++step) {
    optimizer.zero_grad();
    if (auto* fused = dynamic_cast<optim::FusedBackwardOptimizer*>(&optimizer)) {
      fused->fused_backward(loss_of(parameters, step));
      continue;
    }
    const auto backward = [&] {
      at::AutoGradMode grad(true);
      optimizer.zero_grad();
      at::Tensor loss = loss_of(parameters, step);
      loss.backward();
      return loss;
    };
    if (dynamic_cast<torch::optim::LBFGS*>(&optimizer) != nullptr) {
      optimizer.step(backward);
    } else {
      backward();
      optimizer.step();
    }
  }
}

std::vector<OptimizerParamGroup> one_group(const std::vector<at::Tensor>& parameters) {
  return {OptimizerParamGroup(parameters)};
}

void copy_parameters(const std::vector<at::Tensor>& from, const std::vector<at::Tensor>& to) {
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < from.size(); ++i) to[i].copy_(from[i]);
}

class EveryOptimizer : public ::testing::TestWithParam<Kind> {
 protected:
  // LBFGS cannot do with other layouts.
  static std::vector<at::Tensor> parameters_for_kind() {
    const bool any = !GetParam().name.starts_with("Lbfgs");
    return made_parameters(at::kFloat,
                           any ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous);
  }
};

TEST_P(EveryOptimizer, GoesOnBitEqualAfterAFile) {
  const std::vector<at::Tensor> parameters = parameters_for_kind();
  const auto optimizer = GetParam().make(one_group(parameters));
  train(*optimizer, parameters, 0, 3);
  const StateDict saved = written_and_read(optimizer_state_dict(*optimizer));
  const std::vector<at::Tensor> others = parameters_for_kind();
  copy_parameters(parameters, others);
  const auto resumed = GetParam().make(one_group(others));
  load_optimizer_state_dict(*resumed, saved);
  EXPECT_EQ(optimizer_state_dict(*resumed).values, optimizer_state_dict(*optimizer).values);
  train(*optimizer, parameters, 3, 6);
  train(*resumed, others, 3, 6);
  for (size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_TRUE(at::equal(parameters[i], others[i])) << "parameter " << i;
  }
}

// Snapshots behind training notice a change by it.
TEST_P(EveryOptimizer, ChangesTheVersionOfTensorsThatItChanges) {
  const std::vector<at::Tensor> parameters = parameters_for_kind();
  const auto optimizer = GetParam().make(one_group(parameters));
  train(*optimizer, parameters, 0, 3);
  const StateDict state = optimizer_state_dict(*optimizer);
  const StateDict before = written_and_read(state);
  std::vector<int64_t> versions;
  for (const auto& [name, tensor] : state.tensors) versions.push_back(tensor._version());
  train(*optimizer, parameters, 3, 4);
  int changed = 0;
  for (size_t i = 0; i < versions.size(); ++i) {
    const auto& [name, tensor] = state.tensors[i];
    if (at::equal(tensor, before.tensors[i].second)) continue;
    EXPECT_NE(tensor._version(), versions[i]) << name;
    ++changed;
  }
  const std::string& kind = GetParam().name;
  const bool replaces = kind.starts_with("Lbfgs") || kind == "DerivedAdam" || kind == "Own";
  const bool keeps = kind != "Sgd" && kind != "Lomo";
  if (keeps && !replaces) EXPECT_GT(changed, 0);
}

TEST_P(EveryOptimizer, IsUnchangedByAStateWithoutGroups) {
  const std::vector<at::Tensor> parameters = parameters_for_kind();
  const auto optimizer = GetParam().make(one_group(parameters));
  train(*optimizer, parameters, 0, 2);
  const StateDict before = written_and_read(optimizer_state_dict(*optimizer));
  StateDict bad = before;
  bad.values["param_groups"] = ordered_json::array();
  EXPECT_THAT(value_error_of([&] { load_optimizer_state_dict(*optimizer, bad); }),
              HasSubstr("loaded state dict has a different number of parameter groups"));
  EXPECT_EQ(optimizer_state_dict(*optimizer).values, before.values);
}

TEST_P(EveryOptimizer, LoadsTheStateOfANewOne) {
  const std::vector<at::Tensor> parameters = parameters_for_kind();
  const auto optimizer = GetParam().make(one_group(parameters));
  const StateDict saved = written_and_read(optimizer_state_dict(*optimizer));
  const std::vector<at::Tensor> others = parameters_for_kind();
  const auto resumed = GetParam().make(one_group(others));
  load_optimizer_state_dict(*resumed, saved);
  train(*optimizer, parameters, 0, 2);
  train(*resumed, others, 0, 2);
  for (size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_TRUE(at::equal(parameters[i], others[i])) << "parameter " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(All, EveryOptimizer, ::testing::ValuesIn(kinds()),
                         [](const auto& info) { return info.param.name; });

// One Adam that has taken three steps.
class AdamStateDict : public ::testing::Test {
 protected:
  AdamStateDict()
      : parameters_(made_parameters()),
        adam_({OptimizerParamGroup({parameters_[0], parameters_[4]}),
               OptimizerParamGroup(std::vector<at::Tensor>{}),
               OptimizerParamGroup({parameters_[1]},
                                   std::make_unique<torch::optim::AdamOptions>(0.25))},
              torch::optim::AdamOptions(0.1)) {
    train(adam_, parameters_, 0, 3);
    saved_ = written_and_read(optimizer_state_dict(adam_));
  }

  std::string load_error(const StateDict& state) {
    const StateDict before = written_and_read(optimizer_state_dict(adam_));
    const std::string error = value_error_of([&] { load_optimizer_state_dict(adam_, state); });
    const StateDict after = optimizer_state_dict(adam_);
    EXPECT_EQ(after.values, before.values);
    EXPECT_EQ(after.tensors.size(), before.tensors.size());
    for (size_t i = 0; i < before.tensors.size(); ++i) {
      EXPECT_TRUE(at::equal(after.tensors[i].second, before.tensors[i].second));
    }
    return error;
  }
  std::string error_with(const std::function<void(StateDict&)>& change) {
    StateDict state = written_and_read(saved_);
    change(state);
    return load_error(state);
  }
  std::string error_with(const std::string& pointer, const ordered_json& value) {
    return error_with(
        [&](StateDict& state) { state.values[ordered_json::json_pointer(pointer)] = value; });
  }

  std::vector<at::Tensor> parameters_;
  torch::optim::Adam adam_;
  StateDict saved_;
};

TEST_F(AdamStateDict, HasPyTorchsNames) {
  EXPECT_EQ(saved_.values, ordered_json::parse(R"({
    "type": "Adam",
    "state": {"0": {"step": 3}, "2": {"step": 3}},
    "param_groups": [
      {"lr": 0.1, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0, "amsgrad": false,
       "params": [0, 1]},
      {"lr": 0.1, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0, "amsgrad": false,
       "params": []},
      {"lr": 0.25, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0, "amsgrad": false,
       "params": [2]}]})"));
  std::vector<std::string> names;
  for (const auto& [name, tensor] : saved_.tensors) names.push_back(name);
  EXPECT_THAT(names, ElementsAre("state.0.exp_avg", "state.0.exp_avg_sq", "state.2.exp_avg",
                                 "state.2.exp_avg_sq"));
}

TEST_F(AdamStateDict, CopiesNothing) {
  const auto& state = static_cast<const torch::optim::AdamParamState&>(
      *adam_.state().at(parameters_[0].unsafeGetTensorImpl()));
  const StateDict saved = optimizer_state_dict(adam_);
  EXPECT_EQ(saved.tensors[0].second.data_ptr(), state.exp_avg().data_ptr());
}

TEST_F(AdamStateDict, AdoptsWhatNobodyElseHolds) {
  StateDict mine = written_and_read(saved_);
  const void* data = mine.tensors[0].second.data_ptr();
  load_optimizer_state_dict(adam_, std::move(mine));
  EXPECT_EQ(optimizer_state_dict(adam_).tensors[0].second.data_ptr(), data);
}

TEST_F(AdamStateDict, IsNotSharedWithTheOptimizerThatItCameFrom) {
  const std::vector<at::Tensor> others = made_parameters();
  torch::optim::Adam other(
      {OptimizerParamGroup({others[0], others[4]}), OptimizerParamGroup(std::vector<at::Tensor>{}),
       OptimizerParamGroup({others[1]})},
      torch::optim::AdamOptions(0.5));
  load_optimizer_state_dict(other, optimizer_state_dict(adam_));
  train(other, others, 3, 4);
  const StateDict now = optimizer_state_dict(adam_);
  for (size_t i = 0; i < now.tensors.size(); ++i) {
    EXPECT_TRUE(at::equal(now.tensors[i].second, saved_.tensors[i].second));
  }
}

TEST_F(AdamStateDict, TakesTheParametersDtypeAndLayout) {
  std::vector<at::Tensor> halves = made_parameters(at::kBFloat16);
  torch::optim::Adam other(
      {OptimizerParamGroup({halves[0], halves[4]}), OptimizerParamGroup(std::vector<at::Tensor>{}),
       OptimizerParamGroup({halves[1]})},
      torch::optim::AdamOptions(0.5));
  load_optimizer_state_dict(other, written_and_read(saved_));
  EXPECT_EQ(optimizer_state_dict(other).tensors[0].second.scalar_type(), at::kBFloat16);

  const std::vector<at::Tensor> parameters = made_parameters();
  optim::Adam first({parameters[2]});
  train(first, parameters, 0, 1);
  StateDict state = written_and_read(optimizer_state_dict(first));
  ASSERT_TRUE(state.tensors[0].second.is_contiguous());
  load_optimizer_state_dict(first, std::move(state));
  EXPECT_TRUE(
      optimizer_state_dict(first).tensors[0].second.is_contiguous(at::MemoryFormat::ChannelsLast));
}

TEST_F(AdamStateDict, IsTheFusedOnesToo) {
  const std::vector<at::Tensor> others = made_parameters();
  optim::Adam fused({OptimizerParamGroup({others[0], others[4]}),
                     OptimizerParamGroup(std::vector<at::Tensor>{}),
                     OptimizerParamGroup({others[1]})});
  load_optimizer_state_dict(fused, written_and_read(saved_));
  EXPECT_EQ(optimizer_state_dict(fused).values, saved_.values);
}

TEST_F(AdamStateDict, KeepsEveryNumber) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  auto& options = static_cast<torch::optim::AdamOptions&>(adam_.param_groups()[0].options());
  for (const double number : {kInfinity, -kInfinity, 0.1 + 0.2, 5e-324, -0.0, 1.0 / 3, 1e308}) {
    options.lr(number).betas({-number, std::nan("")});
    const StateDict saved = written_and_read(optimizer_state_dict(adam_));
    options.lr(1).betas({2, 3});
    load_optimizer_state_dict(adam_, saved);
    EXPECT_EQ(options.lr(), number);
    EXPECT_EQ(std::signbit(options.lr()), std::signbit(number));
    EXPECT_EQ(std::get<0>(options.betas()), -number);
    EXPECT_TRUE(std::isnan(std::get<1>(options.betas())));
  }
}

TEST_F(AdamStateDict, ForgetsWhatTheSavedOneDidNotHave) {
  std::vector<at::Tensor> others = made_parameters();
  torch::optim::Adam fresh(
      {OptimizerParamGroup({others[0], others[4]}), OptimizerParamGroup(std::vector<at::Tensor>{}),
       OptimizerParamGroup({others[1]})},
      torch::optim::AdamOptions(0.1));
  load_optimizer_state_dict(adam_, written_and_read(optimizer_state_dict(fresh)));
  EXPECT_TRUE(adam_.state().empty());
}

TEST_F(AdamStateDict, SaysWhatIsWrongAndChangesNothing) {
  EXPECT_THAT(error_with("/type", "SGD"), HasSubstr("of type SGD, this one is of type Adam"));
  EXPECT_THAT(error_with("/type", 7), HasSubstr("\"type\" is 7"));
  EXPECT_THAT(error_with("/state", nullptr), HasSubstr("\"state\" is null"));
  EXPECT_THAT(error_with("/state/0", 3), HasSubstr("state[0] of the state of an optimizer"));
  EXPECT_THAT(error_with("/state/0/step", 2.5), HasSubstr("\"step\" is 2.5"));
  EXPECT_THAT(error_with("/state/0/step", "nan"), HasSubstr("\"step\" is"));
  EXPECT_THAT(error_with("/state/0/step", uint64_t{1} << 63), HasSubstr("\"step\" is"));
  EXPECT_THAT(error_with("/state/0", ordered_json::object()),
              HasSubstr("state[0] of the state of an optimizer of type Adam has no \"step\""));
  EXPECT_THAT(error_with("/state/7", {{"step", 1}}), HasSubstr("\"7\""));
  EXPECT_THAT(error_with("/state/00", {{"step", 1}}), HasSubstr("\"00\""));
  EXPECT_THAT(error_with("/param_groups", 1), HasSubstr("\"param_groups\" is 1"));
  EXPECT_THAT(error_with("/param_groups/0", 1), HasSubstr("param_groups[0]"));
  EXPECT_THAT(error_with("/param_groups/0/params", {0}),
              HasSubstr("loaded state dict contains a parameter group that doesn't match the size "
                        "of optimizer's group"));
  EXPECT_THAT(error_with("/param_groups/0/params", {0, "x"}), HasSubstr("\"params\" has an item"));
  EXPECT_THAT(error_with("/param_groups/0/lr", "fast"), HasSubstr("\"lr\" is \"fast\""));
  EXPECT_THAT(error_with("/param_groups/0/lr", true), HasSubstr("\"lr\" is true"));
  EXPECT_THAT(error_with("/param_groups/2/betas", {0.9}), HasSubstr("param_groups[2]"));
  EXPECT_THAT(error_with("/param_groups/0/amsgrad", 0), HasSubstr("\"amsgrad\" is 0"));
  EXPECT_THAT(load_error({}), HasSubstr("which is not an object"));
  EXPECT_THAT(error_with([](StateDict& state) { state.values["param_groups"][0].erase("eps"); }),
              HasSubstr("has no \"eps\""));
  EXPECT_THAT(error_with([](StateDict& state) { state.values.erase("state"); }),
              HasSubstr("has no \"state\""));
  EXPECT_THAT(error_with([](StateDict& state) { state.tensors.pop_back(); }),
              HasSubstr("has no \"state.2.exp_avg_sq\""));
  EXPECT_THAT(error_with([](StateDict& state) { state.tensors.push_back(state.tensors[0]); }),
              HasSubstr("has two \"state.0.exp_avg\""));
  EXPECT_THAT(error_with([](StateDict& state) { state.tensors[0].first = "state.0.exp"; }),
              HasSubstr("has no \"state.0.exp_avg\""));
  EXPECT_THAT(
      error_with([](StateDict& state) { state.tensors.emplace_back("more", at::zeros({1})); }),
      HasSubstr("\"more\", which belongs to no state"));
  EXPECT_THAT(error_with([](StateDict& state) { state.tensors[1].second = at::Tensor(); }),
              HasSubstr("\"state.0.exp_avg_sq\" is undefined"));
  EXPECT_THAT(error_with([](StateDict& state) { state.tensors[0].second = at::zeros({2, 3}); }),
              HasSubstr("\"state.0.exp_avg\" has shape [2, 3], which for its parameter would be "
                        "[3, 2]"));
  EXPECT_THAT(
      error_with([](StateDict& state) { state.tensors[0].second = at::zeros({3, 2}, at::kLong); }),
      HasSubstr("\"state.0.exp_avg\" is of dtype Long"));
}

TEST_F(AdamStateDict, FindsParametersByName) {
  const NamedTensors names = {{"a", parameters_[0]}, {"b", parameters_[4]}, {"c", parameters_[1]}};
  StateDict saved = written_and_read(optimizer_state_dict(adam_, {.parameters = names}));
  EXPECT_EQ(saved.values["param_groups"][0]["param_names"], (ordered_json{"a", "b"}));
  // Groups and parameters in another order.
  const std::vector<at::Tensor> others = made_parameters();
  torch::optim::Adam other(
      {OptimizerParamGroup({others[1]}), OptimizerParamGroup({others[4], others[0]}),
       OptimizerParamGroup(std::vector<at::Tensor>{})},
      torch::optim::AdamOptions(0.5));
  const NamedTensors own = {{"b", others[4]}, {"c", others[1]}, {"a", others[0]}};
  load_optimizer_state_dict(other, saved, {.parameters = own});
  EXPECT_EQ(other.param_groups()[0].options().get_lr(), 0.25);
  EXPECT_EQ(other.param_groups()[1].options().get_lr(), 0.1);
  const StateDict now = optimizer_state_dict(other, {.parameters = own});
  EXPECT_EQ(now.values["param_groups"][1]["param_names"], (ordered_json{"b", "a"}));
  EXPECT_EQ(now.tensors[0].first, "state.0.exp_avg");
  EXPECT_TRUE(at::equal(now.tensors[0].second, saved.tensors[2].second));
  EXPECT_EQ(now.tensors[2].first, "state.2.exp_avg");
  EXPECT_TRUE(at::equal(now.tensors[2].second, saved.tensors[0].second));

  const NamedTensors renamed = {{"b", others[4]}, {"c", others[1]}, {"d", others[0]}};
  EXPECT_THAT(
      value_error_of([&] { load_optimizer_state_dict(other, saved, {.parameters = renamed}); }),
      HasSubstr("has no parameter \"d\""));
  // A model in another wrapper: the order counts, in which group 0 has another size.
  const NamedTensors wrapped = {{"m.b", others[4]}, {"m.c", others[1]}, {"m.a", others[0]}};
  EXPECT_THAT(
      value_error_of([&] { load_optimizer_state_dict(other, saved, {.parameters = wrapped}); }),
      HasSubstr("doesn't match the size of optimizer's group: group 0"));
  torch::optim::Adam mixed(
      {OptimizerParamGroup({others[1], others[0]}), OptimizerParamGroup({others[4]}),
       OptimizerParamGroup(std::vector<at::Tensor>{})},
      torch::optim::AdamOptions(0.5));
  EXPECT_THAT(value_error_of([&] { load_optimizer_state_dict(mixed, saved, {.parameters = own}); }),
              HasSubstr("parameter \"a\", which"));
  // Without a name for each, places decide.
  EXPECT_FALSE(optimizer_state_dict(adam_, {.parameters = {names[0]}})
                   .values["param_groups"][0]
                   .contains("param_names"));
}

TEST(OptimizerStateDictTest, AParameterThatComesTwiceHasOneState) {
  const std::vector<at::Tensor> parameters = made_parameters();
  torch::optim::Adam adam(std::vector<at::Tensor>{parameters[0], parameters[0], parameters[1]});
  train(adam, parameters, 0, 1);
  const StateDict saved = written_and_read(optimizer_state_dict(adam));
  EXPECT_EQ(saved.values["param_groups"][0]["params"], (ordered_json{0, 0, 2}));
  EXPECT_EQ(saved.tensors.size(), 4);
  load_optimizer_state_dict(adam, saved);
  EXPECT_EQ(optimizer_state_dict(adam).values, saved.values);
  torch::optim::Adam apart(std::vector<at::Tensor>{parameters[0], parameters[2], parameters[1]});
  train(apart, parameters, 0, 1);
  EXPECT_NE(value_error_of([&] { load_optimizer_state_dict(adam, optimizer_state_dict(apart)); }),
            "no error");
}

TEST(OptimizerStateDictTest, WithoutAnyGroups) {
  torch::optim::Adam adam(std::vector<OptimizerParamGroup>{});
  const StateDict saved = written_and_read(optimizer_state_dict(adam));
  EXPECT_EQ(saved.values, ordered_json::parse(R"({"type": "Adam", "state": {},
                                                   "param_groups": []})"));
  load_optimizer_state_dict(adam, saved);
}

TEST(OptimizerStateDictTest, ScheduleFreeRemembersItsMode) {
  const std::vector<at::Tensor> parameters = made_parameters(), others = made_parameters();
  optim::ScheduleFreeAdamW optimizer(parameters), resumed(others);
  train(optimizer, parameters, 0, 3);
  optimizer.eval();
  copy_parameters(parameters, others);
  load_optimizer_state_dict(resumed, written_and_read(optimizer_state_dict(optimizer)));
  EXPECT_THROW(resumed.step(), c10::Error);
  for (optim::ScheduleFreeAdamW* one : {&optimizer, &resumed}) one->train();
  train(optimizer, parameters, 3, 5);
  train(resumed, others, 3, 5);
  EXPECT_TRUE(at::equal(parameters[0], others[0]));
}

TEST(OptimizerStateDictTest, OwnOptimizersAreArchives) {
  const std::vector<at::Tensor> parameters = made_parameters();
  Sluggish own(parameters);
  const StateDict saved = optimizer_state_dict(own);
  EXPECT_THAT(saved.values["type"].get<std::string>(), HasSubstr("Sluggish"));
  ASSERT_EQ(saved.tensors.size(), 1);
  EXPECT_EQ(saved.tensors[0].first, "archive");
  const auto error_with = [&](at::Tensor archive) {
    return value_error_of(
        [&] { load_optimizer_state_dict(own, {{{"archive", archive}}, saved.values}); });
  };
  EXPECT_THAT(error_with(at::zeros({100}, at::kByte)), HasSubstr("cannot be loaded"));
  EXPECT_THAT(error_with(at::zeros({0}, at::kByte)), HasSubstr("cannot be loaded"));
  EXPECT_THAT(error_with(at::zeros({4})), HasSubstr("not a vector of bytes"));
  EXPECT_THAT(value_error_of([&] { load_optimizer_state_dict(own, {{}, saved.values}); }),
              HasSubstr("has no \"archive\""));
  Forgetful forgetful(parameters);
  EXPECT_THAT(value_error_of([&] { optimizer_state_dict(forgetful); }), HasSubstr("saves nothing"));
}

TEST(OptimizerStateDictTest, LbfgsListsAreChecked) {
  const std::vector<at::Tensor> parameters = made_parameters();
  torch::optim::LBFGS optimizer({parameters[0]}, torch::optim::LBFGSOptions(0.1).max_iter(4));
  train(optimizer, {parameters[0], parameters[4]}, 0, 2);
  const StateDict saved = written_and_read(optimizer_state_dict(optimizer));
  ASSERT_GT(saved.values["state"]["0"]["old_dirs"], 0);
  for (const ordered_json& length :
       {ordered_json(-1), ordered_json(int64_t{1} << 40), ordered_json("2"), ordered_json(100)}) {
    StateDict bad = saved;
    bad.values["state"]["0"]["old_dirs"] = length;
    EXPECT_NE(value_error_of([&] { load_optimizer_state_dict(optimizer, bad); }), "no error")
        << length;
  }
  StateDict shorter = saved;
  shorter.values["state"]["0"]["old_dirs"] = 0;
  EXPECT_THAT(value_error_of([&] { load_optimizer_state_dict(optimizer, shorter); }),
              HasSubstr("belongs to no state"));
}

TEST(OptimizerStateDictTest, SparseStateIsRefused) {
  at::Tensor weight = at::ones({4, 2}).requires_grad_(true);
  torch::optim::SGD sgd({weight}, torch::optim::SGDOptions(0.1).momentum(0.9));
  weight.mutable_grad() = at::ones({4, 2}).to_sparse();
  sgd.step();
  EXPECT_THAT(value_error_of([&] { optimizer_state_dict(sgd); }), HasSubstr("Sparse"));
}

class PackedMoments : public ::testing::Test {
 protected:
  struct Run {
    explicit Run(at::ScalarType dtype) : parameters(made_parameters(dtype)) {
      adam = std::make_shared<torch::optim::Adam>(parameters, torch::optim::AdamOptions(0.1));
      prepared = std::make_unique<AcceleratedOptimizer>(adam, gradient_state,
                                                        OptimizerPolicy{.packs_moments = true});
    }
    void train(int64_t from, int64_t to) {
      for (int64_t step = from; step < to; ++step) {
        prepared->zero_grad();
        loss_of(parameters, step).backward();
        prepared->step();
      }
    }
    std::vector<at::Tensor> parameters;
    GradientState gradient_state;
    std::shared_ptr<torch::optim::Adam> adam;
    std::unique_ptr<AcceleratedOptimizer> prepared;
  };
};

TEST_F(PackedMoments, GoOnBitEqual) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    Run run(dtype), resumed(dtype);
    run.train(0, 3);
    const StateDict state = internal::Access::to(*run.prepared)->state_dict();
    EXPECT_GT(internal::Access::to(*run.prepared)->moments->packed_bytes(), 0);
    // The moments are the state dict's own, and still there.
    EXPECT_EQ(state.tensors.size(), 8);
    EXPECT_GT(state.tensors[0].second.abs().sum().item<double>(), 0);
    copy_parameters(run.parameters, resumed.parameters);
    internal::Access::to(*resumed.prepared)->load_state_dict(written_and_read(state));
    EXPECT_GT(internal::Access::to(*resumed.prepared)->moments->packed_bytes(), 0);
    run.train(3, 6);
    resumed.train(3, 6);
    for (size_t i = 0; i < run.parameters.size(); ++i) {
      EXPECT_TRUE(at::equal(run.parameters[i], resumed.parameters[i])) << dtype << " " << i;
    }
  }
}

TEST_F(PackedMoments, AreInThePreparedOptimizersState) {
  Run run(at::kFloat), resumed(at::kFloat);
  run.train(0, 3);
  const StateDict state = run.prepared->state_dict();
  EXPECT_EQ(state.tensors.size(), 8);
  copy_parameters(run.parameters, resumed.parameters);
  resumed.prepared->load_state_dict(written_and_read(state));
  run.train(3, 6);
  resumed.train(3, 6);
  for (size_t i = 0; i < run.parameters.size(); ++i) {
    EXPECT_TRUE(at::equal(run.parameters[i], resumed.parameters[i])) << i;
  }
}

struct Reader : OptimizerStateReader {
  void finish() noexcept override { finished = true; }
  bool finished = false;
};

TEST(PreparedOptimizer, HasTheStateOfItsOptimizer) {
  std::vector<at::Tensor> parameters = made_parameters();
  GradientState gradient_state;
  const auto made = [&] {
    return AcceleratedOptimizer(
        std::make_shared<torch::optim::Adam>(parameters, torch::optim::AdamOptions(0.1)),
        gradient_state);
  };
  AcceleratedOptimizer first = made(), second = made();
  train(*first, parameters, 0, 2);
  const StateDict state = first.state_dict();
  EXPECT_EQ(state.values, optimizer_state_dict(*first).values);
  EXPECT_EQ(state.values.at("type"), "Adam");
  const auto reader = std::make_shared<Reader>();
  internal::Access::to(second)->readers.push_back(reader);
  second.load_state_dict(written_and_read(state));
  EXPECT_TRUE(reader->finished) << "a save was still reading";
  EXPECT_EQ(second.state_dict().values, state.values);
  for (size_t i = 0; i < state.tensors.size(); ++i) {
    EXPECT_TRUE(at::equal(second.state_dict().tensors[i].second, state.tensors[i].second)) << i;
  }
  EXPECT_THAT(value_error_of([&] { second.load_state_dict({}); }),
              HasSubstr("the state of an optimizer of type Adam"));
  second.reset();
  EXPECT_THROW(second.state_dict(), c10::Error);
  EXPECT_THROW(second.load_state_dict(state), c10::Error);
}

TEST_F(PackedMoments, LoadOverOthers) {
  Run run(at::kFloat);
  run.train(0, 2);
  const StateDict state = written_and_read(internal::Access::to(*run.prepared)->state_dict());
  run.train(2, 4);
  internal::Access::to(*run.prepared)->load_state_dict(state);
  const StateDict now = internal::Access::to(*run.prepared)->state_dict();
  EXPECT_EQ(now.values, state.values);
  for (size_t i = 0; i < now.tensors.size(); ++i) {
    EXPECT_TRUE(at::equal(now.tensors[i].second, state.tensors[i].second));
  }
}

}  // namespace
}  // namespace accelerate
