// Rates step by step, against values worked out by hand or in closed form.
#include "accelerate/optim/schedulers/schedulers.h"

#include <cmath>
#include <functional>
#include <memory>
#include <numbers>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/sgd.h>
#include <nlohmann/json.hpp>

namespace accelerate::optim {
namespace {

using nlohmann::ordered_json;
using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pointwise;

constexpr double kRounding = 1e-14;

torch::optim::SGD made_sgd(double lr = 1.0) {
  return torch::optim::SGD({at::zeros({1})}, torch::optim::SGDOptions(lr));
}

// Groups with these rates.
torch::optim::SGD made_sgd(const std::vector<double>& rates) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const double rate : rates) {
    groups.emplace_back(std::vector<at::Tensor>{at::zeros({1})},
                        std::make_unique<torch::optim::SGDOptions>(rate));
  }
  return torch::optim::SGD(groups, torch::optim::SGDOptions(1.0));
}

double rate(torch::optim::Optimizer& optimizer, size_t group = 0) {
  return optimizer.param_groups().at(group).options().get_lr();
}

double momentum(torch::optim::SGD& sgd) {
  return static_cast<torch::optim::SGDOptions&>(sgd.param_groups()[0].options()).momentum();
}

// The rates from construction on.
std::vector<double> rates(Scheduler& scheduler, int64_t steps) {
  std::vector<double> all{rate(scheduler.optimizer())};
  for (int64_t i = 0; i < steps; ++i) {
    scheduler.step();
    all.push_back(rate(scheduler.optimizer()));
    EXPECT_EQ(scheduler.get_last_lr()[0], all.back());
    EXPECT_EQ(scheduler.last_epoch(), i + 1);
    EXPECT_EQ(scheduler.step_count(), i + 2);
  }
  return all;
}

template <typename Kind>
std::vector<double> rates_of(const typename Kind::Options& options, int64_t steps,
                             double lr = 1.0) {
  torch::optim::SGD sgd = made_sgd(lr);
  Kind scheduler(sgd, options);
  EXPECT_EQ(scheduler.last_epoch(), 0);
  EXPECT_EQ(scheduler.step_count(), 1);
  return rates(scheduler, steps);
}

auto are(const std::vector<double>& expected) { return Pointwise(DoubleNear(kRounding), expected); }

template <typename Function>
std::string error_of(Function&& function) {
  try {
    function();
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "no ValueError";
}

double half_cosine(double part) { return (1 + std::cos(std::numbers::pi * part)) / 2; }

// ---- One kind after the other.

TEST(StepLR, FallsEveryFewSteps) {
  EXPECT_THAT(rates_of<StepLR>({.step_size = 2, .gamma = 0.5}, 5, 0.8),
              are({0.8, 0.8, 0.4, 0.4, 0.2, 0.2}));
}

TEST(MultiStepLR, FallsAtMilestonesInAnyOrder) {
  EXPECT_THAT(rates_of<MultiStepLR>({.milestones = {3, 1, 3}, .gamma = 0.5}, 4),
              are({1, 0.5, 0.5, 0.125, 0.125}));
}

TEST(ExponentialLR, FallsAtEveryStep) {
  EXPECT_THAT(rates_of<ExponentialLR>({.gamma = 0.9}, 3), are({1, 0.9, 0.81, 0.729}));
}

TEST(ConstantLR, TakesItsFactorBack) {
  EXPECT_THAT(rates_of<ConstantLR>({.factor = 0.25, .total_iters = 2}, 3), are({0.25, 0.25, 1, 1}));
  EXPECT_THAT(rates_of<ConstantLR>({.factor = 0, .total_iters = 1}, 2), are({0, 1, 1}));
}

TEST(LinearLR, GoesInEqualSteps) {
  EXPECT_THAT(rates_of<LinearLR>({.start_factor = 0.25, .total_iters = 3}, 4),
              are({0.25, 0.5, 0.75, 1, 1}));
  EXPECT_THAT(rates_of<LinearLR>({.start_factor = 1, .end_factor = 0, .total_iters = 2}, 3),
              are({1, 0.5, 0, 0}));
  EXPECT_THAT(rates_of<LinearLR>({.total_iters = 0}, 1), are({1.0 / 3, 1.0 / 3}));
}

TEST(PolynomialLR, GoesToZero) {
  EXPECT_THAT(rates_of<PolynomialLR>({.total_iters = 4, .power = 2}, 5),
              are({1, 0.5625, 0.25, 0.0625, 0, 0}));
}

TEST(LambdaLR, IsOfTheBaseRate) {
  torch::optim::SGD sgd = made_sgd(0.5);
  LambdaLR scheduler(sgd, [](int64_t step) { return 1 - static_cast<double>(step) / 10; });
  EXPECT_THAT(rates(scheduler, 3), are({0.5, 0.45, 0.4, 0.35}));
}

TEST(MultiplicativeLR, IsOfThePresentRate) {
  torch::optim::SGD sgd = made_sgd();
  std::vector<int64_t> asked;
  MultiplicativeLR scheduler(sgd, [&asked](int64_t step) {
    asked.push_back(step);
    return 0.5;
  });
  scheduler.step();
  sgd.param_groups()[0].options().set_lr(8);
  scheduler.step();
  EXPECT_EQ(rate(sgd), 4);
  EXPECT_THAT(asked, ElementsAre(1, 2));
}

TEST(CosineAnnealingLR, GoesDownAndUpAgain) {
  std::vector<double> expected;
  for (int step = 0; step <= 18; ++step) expected.push_back(0.1 + 0.9 * half_cosine(step / 4.0));
  const auto got = rates_of<CosineAnnealingLR>({.T_max = 4, .eta_min = 0.1}, 18);
  EXPECT_THAT(got, are(expected));
  EXPECT_THAT(rates_of<CosineAnnealingLR>({.T_max = 1}, 3), are({1, 0, 1, 0}));
}

TEST(CosineAnnealingWarmRestarts, BeginsAnew) {
  const double half = 0.5;
  EXPECT_THAT(rates_of<CosineAnnealingWarmRestarts>({.T_0 = 2}, 4), are({1, half, 1, half, 1}));
  EXPECT_THAT(rates_of<CosineAnnealingWarmRestarts>({.T_0 = 2, .T_mult = 2}, 6),
              are({1, half, 1, half_cosine(0.25), half, half_cosine(0.75), 1}));
}

TEST(OneCycleLR, RisesAndFallsWithTheMomentumAgainstIt) {
  torch::optim::SGD sgd = made_sgd();
  OneCycleLR scheduler(sgd, {.max_lr = 0.5, .total_steps = 10});
  EXPECT_EQ(scheduler.total_steps(), 10);
  std::vector<double> expected_rates;
  std::vector<double> expected_momenta;
  for (int step = 0; step <= 10; ++step) {
    // The rate peaks at step 0.3 * 10 - 1.
    const double up = half_cosine(step / 2.0);
    const double down = half_cosine((step - 2) / 7.0);
    expected_rates.push_back(step <= 2 ? 0.5 + (0.02 - 0.5) * up : 2e-6 + (0.5 - 2e-6) * down);
    expected_momenta.push_back(step <= 2 ? 0.85 + 0.1 * up : 0.95 - 0.1 * down);
  }
  std::vector<double> got{rate(sgd)};
  std::vector<double> momenta{momentum(sgd)};
  for (int step = 1; step <= 10; ++step) {
    scheduler.step();
    got.push_back(rate(sgd));
    momenta.push_back(momentum(sgd));
  }
  EXPECT_THAT(got, are(expected_rates));
  EXPECT_THAT(momenta, are(expected_momenta));
  EXPECT_THAT(error_of([&] { scheduler.step(); }),
              HasSubstr("tried to step 11 times, but total_steps is 10"));
  EXPECT_EQ(scheduler.last_epoch(), 10);
  EXPECT_EQ(rate(sgd), got.back());
}

TEST(OneCycleLR, InThreePhasesAndLinear) {
  // Peaks at 3, back at 6.
  EXPECT_THAT(rates_of<OneCycleLR>({.max_lr = 1,
                                    .epochs = 2,
                                    .steps_per_epoch = 5,
                                    .pct_start = 0.4,
                                    .anneal_strategy = AnnealStrategy::kLinear,
                                    .cycle_momentum = false,
                                    .div_factor = 4,
                                    .final_div_factor = 10,
                                    .three_phase = true},
                                   9),
              are({0.25, 0.5, 0.75, 1, 0.75, 0.5, 0.25, 0.175, 0.1, 0.025}));
}

TEST(OneCycleLR, APhaseWithoutStepsIsOverAtOnce) {
  EXPECT_THAT(rates_of<OneCycleLR>({.max_lr = 1,
                                    .total_steps = 2,
                                    .pct_start = 0.5,
                                    .anneal_strategy = AnnealStrategy::kLinear,
                                    .cycle_momentum = false,
                                    .final_div_factor = 1},
                                   1),
              are({1, 0.04}));
}

TEST(OneCycleLR, CyclesBeta1OfAdam) {
  torch::optim::AdamW adam({at::zeros({1})}, torch::optim::AdamWOptions(1.0));
  OneCycleLR scheduler(adam, {.max_lr = 0.5, .total_steps = 10});
  const auto& options =
      static_cast<const torch::optim::AdamWOptions&>(adam.param_groups()[0].options());
  EXPECT_EQ(std::get<0>(options.betas()), 0.95);
  EXPECT_EQ(std::get<1>(options.betas()), 0.999);
  scheduler.step();
  scheduler.step();
  EXPECT_DOUBLE_EQ(std::get<0>(options.betas()), 0.85);
}

TEST(CyclicLR, GoesUpAndDown) {
  CyclicLROptions options{.base_lr = 1, .max_lr = 5, .step_size_up = 2, .cycle_momentum = false};
  EXPECT_THAT(rates_of<CyclicLR>(options, 5), are({1, 3, 5, 3, 1, 3}));
  options.step_size_down = 4;
  EXPECT_THAT(rates_of<CyclicLR>(options, 6), are({1, 3, 5, 4, 3, 2, 1}));
  options.step_size_down = std::nullopt;
  options.mode = CyclicMode::kTriangular2;
  EXPECT_THAT(rates_of<CyclicLR>(options, 8), are({1, 3, 5, 3, 1, 2, 3, 2, 1}));
  options.mode = CyclicMode::kExpRange;
  options.gamma = 0.5;
  EXPECT_THAT(rates_of<CyclicLR>(options, 5), are({1, 2, 2, 1.25, 1, 1 + 2.0 / 32}));
  options.scale_fn = [](double cycle) { return cycle; };
  EXPECT_THAT(rates_of<CyclicLR>(options, 6), are({1, 3, 5, 3, 1, 5, 9}));
}

TEST(CyclicLR, CyclesTheMomentum) {
  torch::optim::SGD sgd = made_sgd();
  CyclicLR scheduler(sgd, {.base_lr = 1, .max_lr = 5, .step_size_up = 2});
  EXPECT_EQ(momentum(sgd), 0.9);
  scheduler.step();
  EXPECT_DOUBLE_EQ(momentum(sgd), 0.85);
  scheduler.step();
  EXPECT_DOUBLE_EQ(momentum(sgd), 0.8);
}

// zero_objects_test.cc compares these kinds with DeepSpeed.
TEST(WarmupLR, RisesFromEachGroupsSmallestRateToItsOwn) {
  torch::optim::SGD sgd = made_sgd(std::vector<double>{1, 0.1});
  WarmupLR scheduler(
      sgd, {.warmup_min_lr = {0.5, 0}, .warmup_num_steps = 2, .warmup_type = WarmupType::kLinear});
  EXPECT_EQ(scheduler.last_batch_iteration(), -1);
  EXPECT_THAT(rates(scheduler, 4), are({0.5, 0.5, 0.75, 1, 1}));
  EXPECT_EQ(scheduler.last_batch_iteration(), 3);
  EXPECT_EQ(rate(sgd, 1), 0.1);
  EXPECT_EQ(scheduler.end(), std::nullopt);
}

TEST(OneCycle, StepsInStairsAndDecays) {
  EXPECT_THAT(rates_of<OneCycle>({.cycle_min_lr = 1,
                                  .cycle_max_lr = 5,
                                  .decay_lr_rate = 1,
                                  .cycle_first_step_size = 4,
                                  .cycle_second_step_size = 2,
                                  .cycle_first_stair_count = 2,
                                  .cycle_second_stair_count = 0,
                                  .decay_step_size = 2},
                                 8),
              are({1, 1, 3, 3, 5, 3, 1, 1 / 1.5, 0.5}));
}

TEST(OneCycle, RefusesAMomentumOfOne) {
  torch::optim::AdamW adam({at::zeros({1})}, torch::optim::AdamWOptions(1.0));
  OneCycle scheduler(adam, {.cycle_min_lr = 1,
                            .cycle_max_lr = 2,
                            .cycle_first_step_size = 1,
                            .decay_step_size = 1,
                            .decay_mom_rate = 0.1});
  for (int step = 0; step < 3; ++step) scheduler.step();
  EXPECT_THAT(error_of([&] { scheduler.step(); }), HasSubstr("lower decay_mom_rate"));
  EXPECT_EQ(scheduler.last_batch_iteration(), 2);
  EXPECT_DOUBLE_EQ(
      std::get<0>(
          static_cast<torch::optim::AdamWOptions&>(adam.param_groups()[0].options()).betas()),
      0.99);
}

TEST(SequentialLR, PartsBeginFromTheirOwnStart) {
  const MakeScheduler warm_up = scheduler_of<ConstantLR>({.factor = 0.1, .total_iters = 2});
  EXPECT_THAT(
      rates_of<SequentialLR>(
          {.schedulers = {warm_up, scheduler_of<ExponentialLR>({.gamma = 0.9})}, .milestones = {2}},
          4),
      are({0.1, 0.1, 1, 0.9, 0.81}));
  const MakeScheduler ramp = scheduler_of<LinearLR>({.start_factor = 0.5, .total_iters = 4});
  EXPECT_THAT(rates_of<SequentialLR>(
                  {.schedulers = {ramp, ramp, scheduler_of<CosineAnnealingLR>({.T_max = 2})},
                   .milestones = {2, 3}},
                  5),
              are({0.5, 0.625, 0.5, 1, 0.5, 0}));
}

TEST(SequentialLR, MultiplicativeGoesOnFromThePresentRate) {
  const LrLambda half = [](int64_t /*step*/) { return 0.5; };
  EXPECT_THAT(rates_of<SequentialLR>({.schedulers = {scheduler_of<ConstantLR>({.factor = 0.5}),
                                                     scheduler_with<MultiplicativeLR>(half)},
                                      .milestones = {1}},
                                     3),
              are({0.5, 0.5, 0.25, 0.125}));
}

TEST(SequentialLR, MayBeAPartItself) {
  const MakeScheduler inner = scheduler_of<SequentialLR>(
      {.schedulers = {scheduler_of<ConstantLR>({.factor = 0.5, .total_iters = 9}),
                      scheduler_of<ExponentialLR>({.gamma = 0.5})},
       .milestones = {1}});
  EXPECT_THAT(
      rates_of<SequentialLR>(
          {.schedulers = {scheduler_of<LinearLR>({.start_factor = 0.1, .total_iters = 9}), inner},
           .milestones = {1}},
          4),
      are({0.1, 0.5, 1, 0.5, 0.25}));
}

TEST(ChainedScheduler, AppliesAll) {
  EXPECT_THAT(rates_of<ChainedScheduler>(
                  {.schedulers = {scheduler_of<ConstantLR>({.factor = 0.1, .total_iters = 2}),
                                  scheduler_of<ExponentialLR>({.gamma = 0.5})}},
                  3),
              are({0.1, 0.05, 0.25, 0.125}));
}

TEST(ReduceLROnPlateau, ReducesWhenPatienceIsOver) {
  torch::optim::SGD sgd = made_sgd();
  ReduceLROnPlateau scheduler(
      sgd, {.factor = 0.5, .patience = 1, .threshold = 0.1, .cooldown = 1, .min_lr = 0.3});
  auto after = [&](double metric) {
    scheduler.step(metric);
    return rate(sgd);
  };
  EXPECT_EQ(after(10), 1);
  EXPECT_EQ(after(9.5), 1);    // not by a tenth: bad
  EXPECT_EQ(after(8), 1);      // good
  EXPECT_EQ(after(8), 1);      // bad
  EXPECT_EQ(after(NAN), 0.5);  // bad again
  EXPECT_EQ(after(8), 0.5);    // does not count
  EXPECT_EQ(after(8), 0.5);
  EXPECT_EQ(after(8), 0.3);  // not below min_lr
  EXPECT_EQ(scheduler.best(), 8);
  EXPECT_EQ(scheduler.last_epoch(), 8);
}

TEST(ReduceLROnPlateau, MayWantALargeMetric) {
  torch::optim::SGD sgd = made_sgd();
  ReduceLROnPlateau scheduler(sgd, {.mode = PlateauMode::kMax,
                                    .patience = 0,
                                    .threshold = 1,
                                    .threshold_mode = ThresholdMode::kAbs});
  for (const double metric : {-5.0, -3.5, -2.0}) scheduler.step(metric);
  EXPECT_EQ(rate(sgd), 1);
  scheduler.step(-1.0);
  EXPECT_EQ(rate(sgd), 0.1);
}

TEST(ReduceLROnPlateau, NeedsAMetric) {
  torch::optim::SGD sgd = made_sgd();
  ReduceLROnPlateau plateau(sgd);
  torch::optim::LRScheduler& scheduler = plateau;
  EXPECT_THAT(error_of([&] { scheduler.step(); }), HasSubstr("needs the metric"));
  EXPECT_EQ(plateau.last_epoch(), 0);
}

// ---- With a warm-up.

TEST(WarmUp, ThenWhateverTheNameSays) {
  torch::optim::SGD sgd = made_sgd();
  const auto reset = [&] { sgd.param_groups()[0].options().set_lr(1.0); };
  LambdaLR constant = get_constant_schedule(sgd);
  EXPECT_THAT(rates(constant, 2), are({1, 1, 1}));
  LambdaLR warmed = get_constant_schedule_with_warmup(sgd, 2);
  EXPECT_THAT(rates(warmed, 3), are({0, 0.5, 1, 1}));
  reset();
  LambdaLR linear = get_linear_schedule_with_warmup(sgd, 2, 6);
  EXPECT_THAT(rates(linear, 7), are({0, 0.5, 1, 0.75, 0.5, 0.25, 0, 0}));
  reset();
  LambdaLR cosine = get_cosine_schedule_with_warmup(sgd, 1, 5);
  EXPECT_THAT(rates(cosine, 5), are({0, 1, half_cosine(0.25), 0.5, half_cosine(0.75), 0}));
  reset();
  LambdaLR restarts = get_cosine_with_hard_restarts_schedule_with_warmup(sgd, 0, 4, 2);
  EXPECT_THAT(rates(restarts, 5), are({1, 0.5, 1, 0.5, 0, 0}));
  reset();
  LambdaLR polynomial = get_polynomial_decay_schedule_with_warmup(sgd, 1, 5, 0.2, 2);
  EXPECT_THAT(rates(polynomial, 6), are({0, 1, 0.2 + 0.8 * 0.5625, 0.4, 0.25, 0.2, 0.2}));
  reset();
  LambdaLR root = get_inverse_sqrt_schedule(sgd, 4);
  EXPECT_THAT(rates(root, 16).back(), DoubleNear(0.5, kRounding));
}

TEST(WarmUp, OfTheWholeTraining) {
  torch::optim::SGD sgd = made_sgd();
  LambdaLR scheduler = get_linear_schedule_with_warmup(sgd, 2, 2);
  EXPECT_THAT(rates(scheduler, 3), are({0, 0.5, 0, 0}));
}

// ---- What all have in common.

TEST(Scheduler, DrivesEachGroupFromItsOwnRate) {
  torch::optim::SGD sgd = made_sgd(std::vector<double>{1, 0.1});
  LambdaLR scheduler(sgd, {[](int64_t) { return 0.5; }, [](int64_t step) { return step * 2.0; }});
  scheduler.step();
  EXPECT_THAT(scheduler.get_last_lr(), are({0.5, 0.2}));
  EXPECT_THAT(scheduler.base_lrs(), ElementsAre(1, 0.1));
  torch::optim::SGD other = made_sgd(std::vector<double>{1, 0.1});
  OneCycleLR cycle(other, {.max_lr = {5, 10}, .total_steps = 4, .cycle_momentum = false});
  EXPECT_THAT(cycle.get_last_lr(), are({0.2, 0.4}));
}

TEST(Scheduler, AGroupAddedLaterIsDrivenWhereRatesFollowFromPresentOnes) {
  torch::optim::SGD sgd = made_sgd();
  StepLR chained(sgd, {.step_size = 1, .gamma = 0.5});
  LambdaLR based(sgd, [](int64_t /*step*/) { return 3.0; });
  sgd.add_param_group(torch::optim::OptimizerParamGroup(
      {at::zeros({1})}, std::make_unique<torch::optim::SGDOptions>(8.0)));
  chained.step();
  EXPECT_EQ(rate(sgd, 1), 4);
  based.step();
  EXPECT_EQ(rate(sgd, 0), 3);
  EXPECT_EQ(rate(sgd, 1), 4);
}

TEST(Scheduler, RunsItsCourseWhereGoingOnIsNotMeant) {
  torch::optim::SGD sgd = made_sgd();
  auto end_of = [&]<typename Kind>(std::type_identity<Kind>, typename Kind::Options options) {
    return Kind(sgd, options).end();
  };
  EXPECT_EQ(end_of(std::type_identity<OneCycleLR>(), {.max_lr = 1, .total_steps = 7}), 7);
  EXPECT_EQ(end_of(std::type_identity<CosineAnnealingLR>(), {.T_max = 7}), 7);
  EXPECT_EQ(end_of(std::type_identity<LinearLR>(), {.total_iters = 7}), std::nullopt);
  EXPECT_EQ(end_of(std::type_identity<LinearLR>(),
                   {.start_factor = 1, .end_factor = 0, .total_iters = 7}),
            7);
  EXPECT_EQ(end_of(std::type_identity<StepLR>(), {.step_size = 7}), std::nullopt);
  EXPECT_EQ(end_of(std::type_identity<WarmupDecayLR>(), {.total_num_steps = 7}), 8);
  EXPECT_EQ(end_of(std::type_identity<WarmupCosineLR>(),
                   {.total_num_steps = 7, .last_batch_iteration = 4}),
            3);
  EXPECT_EQ(end_of(std::type_identity<OneCycle>(),
                   {.cycle_min_lr = 1, .cycle_max_lr = 2, .cycle_first_step_size = 3}),
            6);
  EXPECT_EQ(end_of(std::type_identity<SequentialLR>(),
                   {.schedulers = {scheduler_of<LinearLR>({.total_iters = 3}),
                                   scheduler_of<CosineAnnealingLR>({.T_max = 4})},
                    .milestones = {3}}),
            7);
}

// ---- State.

using MakeAny = std::function<std::unique_ptr<Scheduler>(torch::optim::Optimizer&)>;

// A kind, and the same kind made with other arguments, which a state replaces.
struct Kind {
  std::string name;
  MakeAny make, make_otherwise;
};

template <typename Schedule>
Kind kind_of(std::string name, typename Schedule::Options options,
             typename Schedule::Options other) {
  return {std::move(name), scheduler_of<Schedule>(options), scheduler_of<Schedule>(other)};
}

std::vector<Kind> all_kinds() {
  const LrLambda half = [](int64_t step) { return 1.0 / (1.0 + static_cast<double>(step)); };
  const auto line = [](int64_t iters) { return scheduler_of<LinearLR>({.total_iters = iters}); };
  const auto cosine = [](int64_t max) { return scheduler_of<CosineAnnealingLR>({.T_max = max}); };
  const auto falls = [](double gamma) { return scheduler_of<ExponentialLR>({.gamma = gamma}); };
  return {
      kind_of<StepLR>("StepLR", {.step_size = 2, .gamma = 0.5}, {.step_size = 3}),
      kind_of<MultiStepLR>("MultiStepLR", {.milestones = {2, 5}},
                           {.milestones = {1}, .gamma = 0.3}),
      kind_of<ExponentialLR>("ExponentialLR", {.gamma = 0.9}, {.gamma = 0.5}),
      kind_of<ConstantLR>("ConstantLR", {.factor = 0.5, .total_iters = 4}, {.total_iters = 1}),
      kind_of<LinearLR>("LinearLR", {.total_iters = 6}, {.start_factor = 0.5, .total_iters = 2}),
      kind_of<PolynomialLR>("PolynomialLR", {.total_iters = 6}, {.total_iters = 3, .power = 2}),
      {"LambdaLR", scheduler_with<LambdaLR>(half), scheduler_with<LambdaLR>(half)},
      {"MultiplicativeLR", scheduler_with<MultiplicativeLR>(half),
       scheduler_with<MultiplicativeLR>(half)},
      kind_of<CosineAnnealingLR>("CosineAnnealingLR", {.T_max = 5}, {.T_max = 3, .eta_min = 0.1}),
      kind_of<CosineAnnealingWarmRestarts>("CosineAnnealingWarmRestarts", {.T_0 = 2},
                                           {.T_0 = 3, .T_mult = 2, .eta_min = 0.1}),
      kind_of<OneCycleLR>("OneCycleLR", {.max_lr = 1, .total_steps = 9},
                          {.max_lr = 3, .total_steps = 20, .pct_start = 0.5}),
      kind_of<CyclicLR>("CyclicLR", {.base_lr = 1, .max_lr = 2, .step_size_up = 2},
                        {.base_lr = 0.5, .max_lr = 3, .step_size_up = 3, .gamma = 0.5}),
      kind_of<SequentialLR>("SequentialLR", {.schedulers = {line(4), cosine(4)}, .milestones = {4}},
                            {.schedulers = {line(2), cosine(7)}, .milestones = {2}}),
      kind_of<ChainedScheduler>("ChainedScheduler", {.schedulers = {line(4), falls(0.5)}},
                                {.schedulers = {line(2), falls(0.9)}}),
      kind_of<ReduceLROnPlateau>("ReduceLROnPlateau", {.factor = 0.5, .patience = 1},
                                 {.factor = 0.1, .patience = 3}),
      kind_of<WarmupLR>("WarmupLR", {.warmup_num_steps = 4, .last_batch_iteration = 0},
                        {.warmup_num_steps = 9}),
      kind_of<WarmupDecayLR>("WarmupDecayLR", {.total_num_steps = 6, .warmup_num_steps = 3},
                             {.total_num_steps = 20, .last_batch_iteration = 3}),
      kind_of<WarmupCosineLR>("WarmupCosineLR", {.total_num_steps = 6, .warmup_num_steps = 3},
                              {.total_num_steps = 20, .last_batch_iteration = 3}),
      kind_of<OneCycle>("OneCycle",
                        {.cycle_min_lr = 1,
                         .cycle_max_lr = 2,
                         .decay_lr_rate = 1,
                         .cycle_first_step_size = 2,
                         .decay_step_size = 1},
                        {.cycle_min_lr = 0.5, .cycle_max_lr = 3, .last_batch_iteration = 1}),
      kind_of<LRRangeTest>("LRRangeTest", {.lr_range_test_step_size = 2},
                           {.lr_range_test_step_size = 7, .last_batch_iteration = 5}),
  };
}

void step_any(Scheduler& scheduler) {
  if (auto* plateau = dynamic_cast<ReduceLROnPlateau*>(&scheduler)) return plateau->step(1.0);
  scheduler.step();
}

TEST(State, ATrainingThatGoesOnEqualsOneThatNeverStopped) {
  for (const auto& [name, make, make_otherwise] : all_kinds()) {
    for (const auto& make_resumed : {make, make_otherwise}) {
      for (const int stop : {0, 3}) {
        torch::optim::SGD sgd = made_sgd(0.5);
        auto scheduler = make(sgd);
        for (int i = 0; i < stop; ++i) step_any(*scheduler);
        const std::string text = scheduler->state_dict().dump();

        torch::optim::SGD resumed_sgd = made_sgd(0.5);
        auto resumed = make_resumed(resumed_sgd);
        resumed->load_state_dict(ordered_json::parse(text));
        EXPECT_EQ(resumed->get_last_lr(), scheduler->get_last_lr()) << name;
        // The optimizer's own state.
        resumed_sgd.param_groups()[0].options().set_lr(rate(sgd));
        for (int i = 0; i < 5; ++i) {
          step_any(*scheduler);
          step_any(*resumed);
          EXPECT_EQ(rate(sgd), rate(resumed_sgd)) << name << " step " << stop + i + 1;
          EXPECT_EQ(momentum(sgd), momentum(resumed_sgd)) << name;
        }
        EXPECT_EQ(scheduler->state_dict(), resumed->state_dict()) << name;
      }
    }
  }
}

TEST(State, HasPyTorchsNames) {
  torch::optim::SGD sgd = made_sgd(0.5);
  StepLR scheduler(sgd, {.step_size = 3, .gamma = 0.25});
  scheduler.step();
  EXPECT_EQ(scheduler.state_dict(), ordered_json::parse(R"({"step_size": 3, "gamma": 0.25,
      "base_lrs": [0.5], "last_epoch": 1, "_step_count": 2, "_last_lr": [0.5]})"));
}

TEST(State, OneThatDoesNotFitChangesNothing) {
  torch::optim::SGD sgd = made_sgd();
  LinearLR scheduler(sgd, {.total_iters = 9});
  const ordered_json before = scheduler.state_dict();
  auto refusal = [&](const char* name, const ordered_json& value) {
    ordered_json state = before;
    state["total_iters"] = 2;
    if (value.is_null()) {
      state.erase(name);
    } else {
      state[name] = value;
    }
    const std::string error = error_of([&] { scheduler.load_state_dict(state); });
    EXPECT_EQ(scheduler.state_dict(), before);
    return error;
  };
  EXPECT_THAT(refusal("last_epoch", nullptr), HasSubstr("lacks \"last_epoch\""));
  EXPECT_THAT(refusal("last_epoch", 1.5), HasSubstr("1.5 for \"last_epoch\""));
  EXPECT_THAT(refusal("start_factor", "much"), HasSubstr("\"much\" for \"start_factor\""));
  EXPECT_THAT(refusal("start_factor", 7), HasSubstr("start_factor must be"));
  EXPECT_THAT(refusal("base_lrs", {1.0, 2.0}), HasSubstr("for 2 parameter groups"));
  EXPECT_THAT(error_of([&] { scheduler.load_state_dict(ordered_json::array()); }),
              HasSubstr("is an object"));
}

// ---- Mistakes.

TEST(Mistakes, AreNamed) {
  torch::optim::SGD sgd = made_sgd();
  auto refusal = [&]<typename Kind>(std::type_identity<Kind>, typename Kind::Options options) {
    return error_of([&] { Kind(sgd, options); });
  };
  EXPECT_THAT(refusal(std::type_identity<StepLR>(), {}), HasSubstr("step_size must be at least 1"));
  EXPECT_THAT(refusal(std::type_identity<ExponentialLR>(), {}), HasSubstr("gamma"));
  EXPECT_THAT(refusal(std::type_identity<ConstantLR>(), {.factor = 2}), HasSubstr("factor"));
  EXPECT_THAT(refusal(std::type_identity<LinearLR>(), {.start_factor = 0}),
              HasSubstr("start_factor must be greater than 0"));
  EXPECT_THAT(refusal(std::type_identity<LinearLR>(), {.end_factor = NAN}),
              HasSubstr("end_factor must be between"));
  EXPECT_THAT(refusal(std::type_identity<PolynomialLR>(), {.total_iters = -1}),
              HasSubstr("total_iters must not be negative"));
  EXPECT_THAT(refusal(std::type_identity<CosineAnnealingLR>(), {}), HasSubstr("T_max"));
  EXPECT_THAT(refusal(std::type_identity<CosineAnnealingWarmRestarts>(), {.T_0 = 1, .T_mult = 0}),
              HasSubstr("T_mult"));
  EXPECT_THAT(refusal(std::type_identity<ReduceLROnPlateau>(), {.factor = 1}),
              HasSubstr("factor must be less than 1"));
  EXPECT_THAT(
      refusal(std::type_identity<CyclicLR>(), {.base_lr = 1, .max_lr = 2, .step_size_up = 0}),
      HasSubstr("step_size_up"));
  EXPECT_THAT(refusal(std::type_identity<WarmupLR>(), {.warmup_num_steps = -1}),
              HasSubstr("warmup_num_steps must not be negative"));
  EXPECT_THAT(refusal(std::type_identity<WarmupDecayLR>(), {}),
              HasSubstr("total_num_steps must be at least 1, got 0"));
  EXPECT_THAT(refusal(std::type_identity<WarmupCosineLR>(),
                      {.total_num_steps = 1, .last_batch_iteration = -2}),
              HasSubstr("last_batch_iteration must be at least -1, got -2"));
  EXPECT_THAT(refusal(std::type_identity<OneCycle>(),
                      {.cycle_min_lr = 1, .cycle_max_lr = 2, .cycle_first_step_size = 0}),
              HasSubstr("cycle_first_step_size must be at least 1"));
  EXPECT_THAT(refusal(std::type_identity<LRRangeTest>(), {.lr_range_test_step_size = 0}),
              HasSubstr("lr_range_test_step_size must be at least 1"));
  EXPECT_THAT(error_of([&] { LambdaLR(sgd, LrLambda()); }), HasSubstr("a function is empty"));
  EXPECT_THAT(error_of([&] { LambdaLR(sgd, std::vector<LrLambda>(2)); }),
              HasSubstr("expected one function or 1"));
  EXPECT_THAT(error_of([&] { get_linear_schedule_with_warmup(sgd, -1, 2); }),
              HasSubstr("must not be negative"));
  EXPECT_THAT(error_of([&] { get_polynomial_decay_schedule_with_warmup(sgd, 1, 2, 1.0); }),
              HasSubstr("must be smaller than the optimizer's rate"));
  EXPECT_THAT(error_of([&] { get_inverse_sqrt_schedule(sgd, 1, 0); }), HasSubstr("timescale"));
  EXPECT_EQ(rate(sgd), 1);
}

TEST(Mistakes, OfOneCycleAreNamed) {
  torch::optim::SGD sgd = made_sgd();
  auto refusal = [&](const OneCycleLROptions& options) {
    return error_of([&] { OneCycleLR(sgd, options); });
  };
  EXPECT_THAT(refusal({.max_lr = 1}), HasSubstr("give total_steps, or both epochs and"));
  EXPECT_THAT(refusal({.max_lr = 1, .epochs = 3}), HasSubstr("give total_steps, or both"));
  EXPECT_THAT(refusal({.max_lr = 1, .total_steps = 0}), HasSubstr("total_steps must be positive"));
  EXPECT_THAT(refusal({.max_lr = 1, .total_steps = 5, .pct_start = 1.1}), HasSubstr("pct_start"));
  EXPECT_THAT(refusal({.max_lr = {1, 2}, .total_steps = 5}),
              HasSubstr("max_lr: expected one number or 1, one for each parameter group, got 2"));
  torch::optim::LBFGS lbfgs({at::zeros({1})});
  EXPECT_THAT(error_of([&] { OneCycleLR(lbfgs, {.max_lr = 1, .total_steps = 5}); }),
              HasSubstr("set cycle_momentum to false"));
}

TEST(Mistakes, OfCombinationsAreNamed) {
  torch::optim::SGD sgd = made_sgd();
  const MakeScheduler step = scheduler_of<StepLR>({.step_size = 1});
  auto refusal = [&](const SequentialLROptions& options) {
    return error_of([&] { SequentialLR(sgd, options); });
  };
  EXPECT_THAT(refusal({}), HasSubstr("at least one scheduler"));
  EXPECT_THAT(refusal({.schedulers = {step, step}}), HasSubstr("a milestone between any two"));
  EXPECT_THAT(refusal({.schedulers = {step, step, step}, .milestones = {4, 4}}),
              HasSubstr("must be positive and rise, got 4 after 4"));
  EXPECT_THAT(refusal({.schedulers = {step, nullptr}, .milestones = {4}}),
              HasSubstr("scheduler 1 is empty"));
  EXPECT_THAT(error_of([&] {
                ChainedScheduler(sgd, {.schedulers = {scheduler_of<ReduceLROnPlateau>({})}});
              }),
              HasSubstr("scheduler 0 is a ReduceLROnPlateau"));
}

}  // namespace
}  // namespace accelerate::optim
