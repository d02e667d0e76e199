#include "accelerate/checkpoint/objects/training_state_dict.h"

#include <functional>
#include <limits>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/optim/sgd.h>
#include <nlohmann/json.hpp>

#include "accelerate/optim/accelerated_scheduler.h"
#include "accelerate/optim/optimizer_state_dict.h"
#include "accelerate/optim/schedulers/schedulers.h"
#include "accelerate/optim/shared_objects.h"
#include "accelerate/testing/value_error.h"

namespace accelerate {
namespace {

using nlohmann::ordered_json;
using ::testing::HasSubstr;
using torch::optim::LRScheduler;
using torch::optim::Optimizer;

StateDict through_text(const StateDict& state) {
  return {{}, ordered_json::parse(state.values.dump())};
}

torch::optim::SGD made_sgd() {
  return torch::optim::SGD({at::zeros({1})}, torch::optim::SGDOptions(0.3).momentum(0.9));
}

// A user's own.
class Halving final : public LRScheduler {
 public:
  using LRScheduler::LRScheduler;

 private:
  std::vector<double> get_lrs() override {
    std::vector<double> rates = get_current_lrs();
    for (double& rate : rates) rate /= step_count_ % 2 == 1 ? 2.0 : 1.0;
    return rates;
  }
};

struct Kind {
  std::string name;
  std::function<std::unique_ptr<LRScheduler>(Optimizer&)> make;
};

void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

template <typename Scheduler, typename... Arguments>
Kind kind_of(std::string name, Arguments... arguments) {
  return {std::move(name), [=](Optimizer& optimizer) {
            return std::make_unique<Scheduler>(optimizer, arguments...);
          }};
}

std::vector<Kind> kinds() {
  using namespace optim;
  const LrLambda falling = [](int64_t epoch) { return 1.0 / (1.0 + 0.7 * double(epoch)); };
  return {
      kind_of<torch::optim::StepLR>("TorchStepLR", 3u, 0.7),
      kind_of<Halving>("Own"),
      kind_of<optim::StepLR>("StepLR", StepLROptions{.step_size = 3}),
      kind_of<MultiStepLR>("MultiStepLR", MultiStepLROptions{.milestones = {2, 5, 5}}),
      kind_of<ExponentialLR>("ExponentialLR", ExponentialLROptions{.gamma = 0.9}),
      kind_of<ConstantLR>("ConstantLR", ConstantLROptions{}),
      kind_of<LinearLR>("LinearLR", LinearLROptions{.total_iters = 7}),
      kind_of<PolynomialLR>("PolynomialLR", PolynomialLROptions{.total_iters = 9, .power = 1.7}),
      kind_of<CosineAnnealingLR>("CosineAnnealingLR", CosineAnnealingLROptions{.T_max = 7}),
      kind_of<CosineAnnealingWarmRestarts>(
          "WarmRestarts", CosineAnnealingWarmRestartsOptions{.T_0 = 3, .T_mult = 2}),
      kind_of<CyclicLR>("CyclicLR",
                        CyclicLROptions{.base_lr = 0.1, .max_lr = 0.9, .step_size_up = 3}),
      kind_of<OneCycleLR>("OneCycleLR", OneCycleLROptions{.max_lr = 0.9, .total_steps = 20}),
      kind_of<LambdaLR>("LambdaLR", falling),
      kind_of<MultiplicativeLR>("MultiplicativeLR", falling),
      kind_of<SequentialLR>(
          "SequentialLR",
          SequentialLROptions{.schedulers = {scheduler_of<LinearLR>({.total_iters = 3}),
                                             scheduler_of<CosineAnnealingLR>({.T_max = 7})},
                              .milestones = {3}}),
      kind_of<ChainedScheduler>(
          "ChainedScheduler",
          ChainedSchedulerOptions{.schedulers = {scheduler_of<ConstantLR>({}),
                                                 scheduler_of<ExponentialLR>({.gamma = 0.9})}}),
      kind_of<ReduceLROnPlateau>("ReduceLROnPlateau", ReduceLROnPlateauOptions{.patience = 1})};
}

struct Training {
  explicit Training(const Kind& kind)
      : sgd(made_sgd()), schedule(kind.make(sgd)), scheduler(*schedule, state, {}) {}

  // The rates and momenta of some steps.
  std::vector<double> steps(int from, int to) {
    std::vector<double> all;
    for (int i = from; i < to; ++i) {
      if (internal::Access::to(scheduler)->plateau != nullptr) {
        scheduler.step(1.0 + 0.1 * i);
      } else {
        scheduler.step();
      }
      const auto& options =
          static_cast<const torch::optim::SGDOptions&>(sgd.param_groups()[0].options());
      all.insert(all.end(), {options.lr(), options.momentum()});
    }
    return all;
  }

  GradientState state;
  torch::optim::SGD sgd;
  std::unique_ptr<LRScheduler> schedule;
  AcceleratedScheduler scheduler;
};

class EveryScheduler : public ::testing::TestWithParam<Kind> {};

TEST_P(EveryScheduler, GoesOnBitEqualFromAnywhere) {
  for (int at = 0; at < 9; ++at) {
    Training run(GetParam());
    run.steps(0, at);
    const StateDict saved =
        through_text(scheduler_state_dict(*internal::Access::to(run.scheduler)));
    const StateDict optimizer = optimizer_state_dict(run.sgd);
    Training resumed(GetParam());
    load_optimizer_state_dict(resumed.sgd, optimizer);
    load_scheduler_state_dict(*internal::Access::to(resumed.scheduler), saved);
    EXPECT_EQ(scheduler_state_dict(*internal::Access::to(resumed.scheduler)).values, saved.values);
    EXPECT_EQ(internal::Access::to(resumed.scheduler)->steps,
              internal::Access::to(run.scheduler)->steps);
    EXPECT_EQ(resumed.steps(at, 12), run.steps(at, 12)) << "after " << at;
  }
}

INSTANTIATE_TEST_SUITE_P(All, EveryScheduler, ::testing::ValuesIn(kinds()),
                         [](const auto& info) { return info.param.name; });

TEST(SchedulerStateDictTest, HasPyTorchsNames) {
  Training run(kind_of<optim::StepLR>("", optim::StepLROptions{.step_size = 2, .gamma = 0.5}));
  run.steps(0, 3);
  EXPECT_EQ(scheduler_state_dict(*internal::Access::to(run.scheduler)).values,
            ordered_json::parse(R"({
    "step_size": 2, "gamma": 0.5, "base_lrs": [0.3], "last_epoch": 3, "_step_count": 4,
    "_last_lr": [0.15], "accelerate": {"type": "StepLR", "steps": 3, "asked_steps": 3}})"));
}

TEST(SchedulerStateDictTest, KeepsInfiniteMetrics) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const Kind kind = kind_of<optim::ReduceLROnPlateau>("", optim::ReduceLROnPlateauOptions{});
  for (const double metric : {kInfinity, -kInfinity}) {
    Training run(kind), resumed(kind);
    run.scheduler.step(metric);
    load_scheduler_state_dict(
        *internal::Access::to(resumed.scheduler),
        through_text(scheduler_state_dict(*internal::Access::to(run.scheduler))));
    EXPECT_EQ(static_cast<optim::ReduceLROnPlateau&>(*resumed.schedule).best(), metric);
  }
}

TEST(SchedulerStateDictTest, SaysWhatIsWrongAndChangesNothing) {
  Training run(kind_of<optim::StepLR>("", optim::StepLROptions{.step_size = 2}));
  run.steps(0, 3);
  const StateDict saved = scheduler_state_dict(*internal::Access::to(run.scheduler));
  const auto error_with = [&](const std::string& pointer, const ordered_json& value) {
    StateDict bad = saved;
    bad.values[ordered_json::json_pointer(pointer)] = value;
    const std::string error = value_error_of(
        [&] { load_scheduler_state_dict(*internal::Access::to(run.scheduler), bad); });
    EXPECT_EQ(scheduler_state_dict(*internal::Access::to(run.scheduler)).values, saved.values)
        << error;
    return error;
  };
  EXPECT_THAT(error_with("/accelerate/type", "CyclicLR"),
              HasSubstr("of type CyclicLR, this one is of type StepLR"));
  EXPECT_THAT(error_with("/accelerate/steps", -1), HasSubstr("\"steps\" is -1"));
  EXPECT_THAT(error_with("/accelerate/asked_steps", 2), HasSubstr("\"asked_steps\" 2"));
  EXPECT_THAT(error_with("/accelerate/steps", "3"), HasSubstr("another type"));
  EXPECT_THAT(error_with("/accelerate", 3), HasSubstr("not an object"));
  EXPECT_THAT(error_with("/last_epoch", 1.5), HasSubstr("last_epoch"));
  EXPECT_THAT(error_with("/base_lrs", {1, 2}), HasSubstr("parameter groups"));
  EXPECT_THAT(
      value_error_of([&] { load_scheduler_state_dict(*internal::Access::to(run.scheduler), {}); }),
      HasSubstr("not an object"));
  EXPECT_THAT(value_error_of([&] {
                load_scheduler_state_dict(*internal::Access::to(run.scheduler),
                                          {{{"more", at::zeros({1})}}, saved.values});
              }),
              HasSubstr("\"more\""));

  Training torchs(kind_of<torch::optim::StepLR>("", 2u, 0.5));
  const auto torchs_error = [&](const ordered_json& count) {
    StateDict bad = scheduler_state_dict(*internal::Access::to(torchs.scheduler));
    bad.values["_step_count"] = count;
    return value_error_of(
        [&] { load_scheduler_state_dict(*internal::Access::to(torchs.scheduler), bad); });
  };
  EXPECT_THAT(torchs_error(-1), HasSubstr("\"_step_count\" is -1"));
  EXPECT_THAT(torchs_error(int64_t{1} << 40), HasSubstr("\"_step_count\""));
  EXPECT_THAT(torchs_error(nullptr), HasSubstr("\"_step_count\" is null"));
}

}  // namespace
}  // namespace accelerate
