// Optimizers, schedules and scalers that a DeepSpeed configuration names, beside what DeepSpeed
// itself does: record_deepspeed.py has asked it.
#include "accelerate/optim/zero_objects.h"

#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "accelerate/optim/foreach_optimizers.h"
#include "accelerate/optim/fused_optimizers.h"
#include "accelerate/optim/schedulers/decay.h"
#include "accelerate/optim/schedulers/deepspeed.h"
#include "accelerate/precision/grad_scaler.h"

namespace accelerate::optim {
namespace {

using nlohmann::ordered_json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using torch::Tensor;
using Tensors = std::vector<Tensor>;

ordered_json recorded(const char* what) {
  std::ifstream stream("accelerate/optim/deepspeed_answers.json");
  return ordered_json::parse(stream).at(what);
}

template <typename Function>
std::string error_of(Function&& function) {
  try {
    function();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

Tensor parameter(std::vector<double> values = {0}) {
  return torch::tensor(values, torch::kDouble).requires_grad_();
}

DummyOptim placeholder_of(const std::vector<double>& rates) {
  std::vector<DummyParamGroup> groups;
  for (const double rate : rates) groups.push_back({.params = {parameter()}, .lr = rate});
  return DummyOptim(std::move(groups));
}

std::vector<double> rates_of(torch::optim::Optimizer& optimizer) {
  std::vector<double> rates;
  for (auto& group : optimizer.param_groups()) rates.push_back(group.options().get_lr());
  return rates;
}

// Whether the optimizer's class is exactly `Kind`.
template <typename Kind>
bool is_a(const std::unique_ptr<torch::optim::Optimizer>& optimizer) {
  const torch::optim::Optimizer& object = *optimizer;
  return typeid(object) == typeid(Kind);
}

template <typename Options>
const Options& options_of(const torch::optim::Optimizer& optimizer, size_t group = 0) {
  return static_cast<const Options&>(optimizer.param_groups().at(group).options());
}

std::vector<double> betas_of(const torch::optim::Optimizer& optimizer) {
  const auto [beta1, beta2] = options_of<torch::optim::AdamWOptions>(optimizer).betas();
  return {beta1, beta2};
}

void expect_near(const std::vector<double>& got, const ordered_json& expected) {
  EXPECT_THAT(
      got, ::testing::Pointwise(::testing::DoubleNear(1e-15), expected.get<std::vector<double>>()));
}

TEST(MakeScheduler, EqualsDeepSpeedStepByStep) {
  int cases = 0;
  for (const ordered_json& each : recorded("schedules")) {
    SCOPED_TRACE(each["type"].dump() + " " + each["params"].dump());
    const ZeroConfig zero =
        zero_config({{"optimizer", {{"type", each["optimizer"]}}},
                     {"scheduler", {{"type", each["type"]}, {"params", each["params"]}}}});
    const auto optimizer =
        make_optimizer(*zero.optimizer, placeholder_of(each["lr"].get<std::vector<double>>()));
    const auto schedule = make_scheduler(*zero.scheduler, *optimizer);
    for (size_t step = 0; step < each["rates"].size(); ++step) {
      SCOPED_TRACE(step);
      if (step > 0) schedule->step();
      expect_near(rates_of(*optimizer), each["rates"][step]);
      if (each.contains("betas")) expect_near(betas_of(*optimizer), each["betas"][step]);
    }
    ++cases;
  }
  EXPECT_GT(cases, 20);
}

// A scaler that goes on from its state after each step.
TEST(ZeroGradScaler, EqualsDeepSpeedStepByStep) {
  int cases = 0, failures = 0;
  for (const ordered_json& each : recorded("scales")) {
    SCOPED_TRACE(each["fp16"].dump());
    const ZeroConfig zero = zero_config({{"fp16", each["fp16"]}});
    const auto steps = each["steps"].get<std::string>();
    std::string state;
    for (size_t step = 0; step < steps.size(); ++step) {
      SCOPED_TRACE(step);
      std::optional<GradScaler> scaler = zero_grad_scaler(zero);
      if (step > 0) scaler->load_state_dict(ordered_json::parse(state));
      Tensor weight = torch::zeros({1}).requires_grad_();
      torch::optim::SGD optimizer({weight}, 1.0);
      scaler->scale(weight.sum()).backward();
      const bool overflows = steps[step] == 'x';
      if (overflows) weight.mutable_grad().fill_(std::numeric_limits<float>::infinity());
      EXPECT_EQ(scaler->step(optimizer), !overflows);
      if (step == each["scales"].size()) {
        const double before = scaler->get_scale();
        EXPECT_THAT(error_of([&] { scaler->update(); }),
                    AllOf(HasSubstr("rank 0, step " + std::to_string(step + 1)),
                          HasSubstr("at its minimum of " + std::to_string(1))));
        EXPECT_EQ(scaler->get_scale(), before);
        ++failures;
        break;
      }
      scaler->update();
      EXPECT_EQ(scaler->get_scale(), each["scales"][step].get<double>());
      state = scaler->state_dict().dump();
    }
    ++cases;
  }
  EXPECT_EQ(cases, 7);
  EXPECT_EQ(failures, 1);
}

TEST(ZeroGradScaler, InBf16SkipsStepsOnlyWhereTheConfigurationAsks) {
  EXPECT_FALSE(zero_grad_scaler({}).has_value());
  EXPECT_FALSE(zero_grad_scaler(zero_config({{"bf16", {{"enabled", true}}}})).has_value());
  auto scaler =
      zero_grad_scaler(zero_config({{"bf16", {{"enabled", true}, {"check_grad_overflow", true}}}}));
  ASSERT_TRUE(scaler.has_value());
  Tensor weight = torch::ones({2}, torch::kBFloat16).requires_grad_();
  torch::optim::SGD optimizer({weight}, 1.0);
  for (const bool overflows : {false, true, false}) {
    optimizer.zero_grad();
    scaler->scale(weight.sum()).backward();
    if (overflows) weight.mutable_grad()[0] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_EQ(scaler->step(optimizer), !overflows);
    scaler->update();
    EXPECT_EQ(scaler->get_scale(), 1);
  }
  EXPECT_TRUE(torch::equal(weight, torch::full({2}, -1, torch::kBFloat16)));
}

// ---- Optimizers.

TEST(MakeOptimizer, HasEachGroupsNumbersAndTheConfigurationsElsewhere) {
  const DummyOptim placeholder(
      {{.params = {parameter()}, .lr = 0.3}, {.params = {parameter()}, .weight_decay = 0.5}});
  const auto made = [&](const char* params) {
    return make_optimizer(*zero_config({{"optimizer", ordered_json::parse(params)}}).optimizer,
                          placeholder);
  };
  const auto adam = made(R"({"type": "Adam", "params": {"lr": 0.1, "betas": [0.8, 0.9],
      "eps": 1e-6, "weight_decay": 0.2, "amsgrad": true}})");
  EXPECT_TRUE(is_a<AdamW>(adam));
  for (const size_t group : {0, 1}) {
    const auto& options = options_of<torch::optim::AdamWOptions>(*adam, group);
    EXPECT_EQ(options.lr(), group == 0 ? 0.3 : 0.1);
    EXPECT_EQ(options.weight_decay(), group == 0 ? 0.2 : 0.5);
    EXPECT_EQ(options.betas(), std::make_tuple(0.8, 0.9));
    EXPECT_EQ(options.eps(), 1e-6);
    EXPECT_TRUE(options.amsgrad());
  }
  // As much as the class has without being told: it is given all the same.
  const auto decayed =
      make_optimizer(*zero_config({{"optimizer", ordered_json::parse(R"({"type": "AdamW",
          "params": {"weight_decay": 0.2}})")}})
                          .optimizer,
                     DummyOptim({{.params = {parameter()}, .weight_decay = 0.01}}));
  EXPECT_EQ(options_of<torch::optim::AdamWOptions>(*decayed, 0).weight_decay(), 0.01);
  const auto plain = made(R"({"type": "adam", "params": {"adam_w_mode": false}})");
  EXPECT_TRUE(is_a<Adam>(plain));
  EXPECT_TRUE(is_a<AdamW>(made(R"({"type": "AdamW"})")));
  EXPECT_TRUE(is_a<Lion>(made(R"({"type": "Lion"})")));
  EXPECT_TRUE(is_a<SGD>(made(R"({"type": "SGD"})")));
  const auto adagrad = made(R"({"type": "Adagrad"})");
  EXPECT_TRUE(is_a<Adagrad>(adagrad));
  // PyTorch's defaults.
  EXPECT_EQ(options_of<torch::optim::AdagradOptions>(*adagrad, 1).lr(), 0.01);
  EXPECT_EQ(options_of<torch::optim::AdagradOptions>(*adagrad, 1).eps(), 1e-10);
  const auto lamb = made(R"({"type": "Lamb", "params": {"bias_correction": false}})");
  const auto& options = options_of<LambOptions>(*lamb);
  EXPECT_EQ(options.max_coeff(), 10);
  EXPECT_EQ(options.min_coeff(), 0.01);
  EXPECT_FALSE(options.bias_correction());
}

// Parameters after some steps, the first of which has the largest gradients.
Tensors trained_by(const ZeroOptimizer& asked) {
  const Tensors parameters = {parameter({1, -2, 3}), parameter({0.5})};
  const auto optimizer = make_optimizer(asked, DummyOptim(parameters));
  for (int step = 0; step < 4; ++step) {
    for (const Tensor& each : parameters) {
      each.mutable_grad() = (torch::cos(each.detach() + step) + 0.1) / (1 + step);
    }
    optimizer->step();
  }
  return parameters;
}

bool equal(const Tensors& some, const Tensors& others) {
  for (size_t i = 0; i < some.size(); ++i) {
    if (!torch::equal(some[i], others[i])) return false;
  }
  return true;
}

TEST(MakeOptimizer, EverySettingChangesSomethingOrIsRefused) {
  using enum ZeroOptimizerType;
  const std::vector<std::pair<std::string, std::function<void(ZeroOptimizer&)>>> changes = {
      {"lr", [](auto& asked) { asked.lr = 0.5; }},
      {"betas", [](auto& asked) { asked.betas = {0.6, 0.7}; }},
      {"eps", [](auto& asked) { asked.eps = 0.1; }},
      {"weight_decay", [](auto& asked) { asked.weight_decay = 0.7; }},
      {"momentum", [](auto& asked) { asked.momentum = 0.4; }},
      {"dampening", [](auto& asked) { asked.dampening = 0.5; }},
      {"nesterov", [](auto& asked) { asked.nesterov = true; }},
      {"adam_w_mode", [](auto& asked) { asked.adam_w_mode = false; }},
      {"bias_correction", [](auto& asked) { asked.bias_correction = false; }},
      {"amsgrad", [](auto& asked) { asked.amsgrad = true; }},
      {"max_coeff", [](auto& asked) { asked.max_coeff = 0.05; }},
      {"min_coeff", [](auto& asked) { asked.min_coeff = 5; }},
  };
  // How many settings a type has.
  const std::vector<std::pair<ZeroOptimizerType, int>> kinds = {
      {kAdam, 6}, {kAdamW, 5}, {kAdagrad, 3}, {kLion, 3}, {kLamb, 7}, {kSgd, 5}};
  for (const auto& [type, settings] : kinds) {
    ZeroOptimizer base{.type = type, .lr = 0.1, .weight_decay = 0.2};
    if (type == kSgd) base.momentum = 0.9;
    // Second moments that shrink, so that the largest is not the last.
    if (type == kAdam || type == kAdamW) base.betas = {0.9, 0.5};
    const Tensors expected = trained_by(base);
    EXPECT_FALSE(equal(expected, {parameter({1, -2, 3}), parameter({0.5})}));
    int changed = 0;
    for (const auto& [name, change] : changes) {
      ZeroOptimizer asked = base;
      change(asked);
      ASSERT_NE(asked, base);
      const std::string what = std::string(to_string(type)) + " " + name;
      const std::string error =
          error_of([&] { EXPECT_FALSE(equal(trained_by(asked), expected)) << what; });
      if (error == "no error") {
        ++changed;
      } else {
        EXPECT_THAT(error, AllOf(HasSubstr(to_string(type)), HasSubstr(name)));
      }
    }
    EXPECT_EQ(changed, settings) << to_string(type);
  }
}

TEST(MakeOptimizer, NamesWhatIsWrong) {
  EXPECT_THAT(error_of([] { make_optimizer({}, DummyOptim(Tensors())); }),
              HasSubstr("the DummyOptim has no parameters"));
  EXPECT_THAT(
      error_of([] { trained_by({.type = ZeroOptimizerType::kAdamW, .adam_w_mode = false}); }),
      HasSubstr("say \"Adam\""));
  EXPECT_THAT(error_of([] { trained_by({.betas = {1.5, 0.9}}); }),
              HasSubstr("beta parameter at index 0"));
}

// ---- Schedules.

// Rates and betas from the construction on.
std::vector<double> numbers_of(const ZeroScheduler& asked) {
  torch::optim::AdamW adam({parameter()}, torch::optim::AdamWOptions(0.3));
  const auto schedule = make_scheduler(asked, adam);
  std::vector<double> numbers;
  for (int step = 0; step < 20; ++step) {
    numbers.push_back(rates_of(adam)[0]);
    for (const double beta : betas_of(adam)) numbers.push_back(beta);
    schedule->step();
  }
  return numbers;
}

TEST(MakeScheduler, EverySettingChangesSomethingOrIsRefused) {
  using enum ZeroSchedulerType;
  using Z = ZeroScheduler;
  const std::vector<std::pair<std::string, std::function<void(Z&)>>> changes = {
      {"last_batch_iteration", [](Z& asked) { asked.last_batch_iteration = 2; }},
      {"warmup_min_lr", [](Z& asked) { asked.warmup_min_lr = 0.05; }},
      {"warmup_max_lr", [](Z& asked) { asked.warmup_max_lr = 0.7; }},
      {"warmup_num_steps", [](Z& asked) { asked.warmup_num_steps = 7; }},
      {"warmup_type", [](Z& asked) { asked.warmup_type = ZeroWarmupType::kLinear; }},
      {"total_num_steps", [](Z& asked) { asked.total_num_steps = 17; }},
      {"warmup_min_ratio", [](Z& asked) { asked.warmup_min_ratio = 0.2; }},
      {"cos_min_ratio", [](Z& asked) { asked.cos_min_ratio = 0.3; }},
      {"cycle_min_lr", [](Z& asked) { asked.cycle_min_lr = 0.02; }},
      {"cycle_max_lr", [](Z& asked) { asked.cycle_max_lr = 0.4; }},
      {"decay_lr_rate", [](Z& asked) { asked.decay_lr_rate = 2; }},
      {"cycle_first_step_size", [](Z& asked) { asked.cycle_first_step_size = 3; }},
      {"cycle_second_step_size", [](Z& asked) { asked.cycle_second_step_size = 7; }},
      {"cycle_first_stair_count", [](Z& asked) { asked.cycle_first_stair_count = 2; }},
      {"cycle_second_stair_count", [](Z& asked) { asked.cycle_second_stair_count = 2; }},
      {"decay_step_size", [](Z& asked) { asked.decay_step_size = 5; }},
      {"cycle_momentum", [](Z& asked) { asked.cycle_momentum = false; }},
      {"cycle_min_mom", [](Z& asked) { asked.cycle_min_mom = 0.5; }},
      {"cycle_max_mom", [](Z& asked) { asked.cycle_max_mom = 0.92; }},
      {"decay_mom_rate", [](Z& asked) { asked.decay_mom_rate = 0.005; }},
      {"lr_range_test_min_lr", [](Z& asked) { asked.lr_range_test_min_lr = 0.4; }},
      {"lr_range_test_step_size", [](Z& asked) { asked.lr_range_test_step_size = 9; }},
      {"lr_range_test_step_rate", [](Z& asked) { asked.lr_range_test_step_rate = 3; }},
      {"lr_range_test_staircase", [](Z& asked) { asked.lr_range_test_staircase = true; }},
  };
  const std::vector<std::pair<Z, int>> kinds = {
      {{.type = kWarmupLr, .warmup_num_steps = 5}, 5},
      {{.type = kWarmupDecayLr, .warmup_num_steps = 5, .total_num_steps = 12}, 6},
      {{.type = kWarmupCosineLr, .warmup_num_steps = 5, .total_num_steps = 12}, 6},
      {{.type = kOneCycle,
        .cycle_min_lr = 0.01,
        .cycle_max_lr = 0.1,
        .decay_lr_rate = 0.5,
        .cycle_first_step_size = 4,
        .decay_step_size = 2,
        .decay_mom_rate = 0.01},
       13},
      {{.type = kLrRangeTest, .lr_range_test_step_size = 4}, 5}};
  for (const auto& [base, settings] : kinds) {
    const std::vector<double> expected = numbers_of(base);
    int changed = 0;
    for (const auto& [name, change] : changes) {
      Z asked = base;
      change(asked);
      ASSERT_NE(asked, base);
      const std::string what = std::string(to_string(base.type)) + " " + name;
      const std::string error = error_of([&] { EXPECT_NE(numbers_of(asked), expected) << what; });
      if (error == "no error") {
        ++changed;
      } else {
        EXPECT_THAT(error, AllOf(HasSubstr(to_string(base.type)), HasSubstr(name)));
      }
    }
    EXPECT_EQ(changed, settings) << to_string(base.type);
  }
}

TEST(MakeScheduler, OneCycleCyclesTheBetasOfLionAndLamb) {
  const ZeroScheduler asked{.type = ZeroSchedulerType::kOneCycle,
                            .cycle_min_lr = 0.1,
                            .cycle_max_lr = 0.5,
                            .cycle_first_step_size = 2};
  Lion lion(Tensors{parameter()});
  Lamb lamb(Tensors{parameter()});
  const auto of_lion = make_scheduler(asked, lion);
  const auto of_lamb = make_scheduler(asked, lamb);
  for (const double momentum : {0.8, 0.85, 0.8, 0.85, 0.9}) {
    EXPECT_DOUBLE_EQ(std::get<0>(options_of<LionOptions>(lion).betas()), momentum);
    EXPECT_DOUBLE_EQ(std::get<0>(options_of<LambOptions>(lamb).betas()), momentum);
    EXPECT_EQ(std::get<1>(options_of<LambOptions>(lamb).betas()), 0.99);
    of_lion->step();
    of_lamb->step();
  }
}

TEST(MakeScheduler, OfAPlaceholderIsWhatItsCallableMakes) {
  torch::optim::SGD sgd({parameter()}, 0.5);
  const ZeroScheduler warmup{.warmup_num_steps = 2};
  DummyScheduler placeholder(sgd, {.total_num_steps = 9});
  EXPECT_NE(dynamic_cast<WarmupLR*>(make_scheduler(warmup, placeholder, sgd).get()), nullptr);
  EXPECT_THAT(error_of([&] { make_scheduler(std::nullopt, placeholder, sgd); }),
              HasSubstr("needs a \"scheduler\" in the DeepSpeed configuration"));
  placeholder.lr_scheduler_callable = [](torch::optim::Optimizer& optimizer) {
    return std::make_unique<ExponentialLR>(optimizer, ExponentialLROptions{.gamma = 0.5});
  };
  for (const auto& asked : {std::optional(warmup), std::optional<ZeroScheduler>()}) {
    const auto schedule = make_scheduler(asked, placeholder, sgd);
    EXPECT_NE(dynamic_cast<ExponentialLR*>(schedule.get()), nullptr);
    EXPECT_EQ(&static_cast<Scheduler&>(*schedule).optimizer(), &sgd);
  }
  placeholder.lr_scheduler_callable = [](torch::optim::Optimizer& /*optimizer*/) {
    return nullptr;
  };
  EXPECT_THAT(error_of([&] { make_scheduler(warmup, placeholder, sgd); }),
              HasSubstr("returned no schedule"));
}

// ---- map_pytorch_optim_to_deepspeed

struct Mapping {
  std::function<std::unique_ptr<torch::optim::Optimizer>(Tensors)> make;
  const std::type_info& becomes;
};

void step_by(torch::optim::Optimizer& optimizer, const Tensors& parameters, int step) {
  for (const Tensor& each : parameters) {
    each.mutable_grad() = torch::sin(each.detach() * 3 + step);
  }
  optimizer.step();
}

TEST(MapPytorchOptimToDeepspeed, GoesOnAsTheOneThatIsGiven) {
  using namespace torch::optim;
  const auto of = []<typename Kind, typename Options>(std::type_identity<Kind>, Options options) {
    return [options](Tensors parameters) {
      return std::make_unique<Kind>(std::move(parameters), options);
    };
  };
  const std::vector<Mapping> mappings = {
      {of(std::type_identity<torch::optim::Adam>(), AdamOptions(0.1).betas({0.7, 0.8})),
       typeid(optim::Adam)},
      {of(std::type_identity<torch::optim::AdamW>(), AdamWOptions(0.1).amsgrad(true)),
       typeid(optim::AdamW)},
      {of(std::type_identity<optim::AdamW>(), AdamWOptions(0.1)), typeid(optim::AdamW)},
      {of(std::type_identity<torch::optim::SGD>(), SGDOptions(0.1).momentum(0.9)),
       typeid(optim::SGD)},
      {of(std::type_identity<torch::optim::Adagrad>(),
          AdagradOptions(0.1).initial_accumulator_value(2)),
       typeid(optim::Adagrad)},
      {of(std::type_identity<RMSprop>(), RMSpropOptions(0.1).centered(true)), typeid(RMSprop)},
      {of(std::type_identity<Lion>(), LionOptions(0.1)), typeid(Lion)},
      {of(std::type_identity<Lamb>(), LambOptions(0.1)), typeid(Lamb)},
  };
  for (const Mapping& mapping : mappings) {
    SCOPED_TRACE(mapping.becomes.name());
    const Tensors expected = {parameter({1, 2, 3}), parameter({4})};
    const Tensors parameters = {parameter({1, 2, 3}), parameter({4})};
    const auto uninterrupted = mapping.make(expected);
    const auto first = mapping.make(parameters);
    for (int step = 0; step < 2; ++step) {
      step_by(*uninterrupted, expected, step);
      step_by(*first, parameters, step);
    }
    const auto mapped = map_pytorch_optim_to_deepspeed(*first);
    const torch::optim::Optimizer& object = *mapped;
    EXPECT_EQ(typeid(object), mapping.becomes);
    for (int step = 2; step < 5; ++step) {
      step_by(*uninterrupted, expected, step);
      step_by(*mapped, parameters, step);
    }
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(torch::allclose(parameters[i], expected[i], 1e-12, 1e-12));
    }
  }
}

TEST(MapPytorchOptimToDeepspeed, NamesAClassThatIsBestLeftAsItIs) {
  struct Own : torch::optim::SGD {
    using SGD::SGD;
  };
  EXPECT_THAT(error_of([] { map_pytorch_optim_to_deepspeed(Own({parameter()}, 0.1)); }),
              AllOf(HasSubstr("Own"), HasSubstr("prepare it as it is")));
  EXPECT_THAT(error_of([] { map_pytorch_optim_to_deepspeed(torch::optim::LBFGS({parameter()})); }),
              HasSubstr("LBFGS"));
}

}  // namespace
}  // namespace accelerate::optim
