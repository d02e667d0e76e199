// Rates step by step, against values worked out by hand or in closed form.
#include "accelerate/optim/schedulers/schedulers.h"
#include "accelerate/testing/value_error.h"

#include <cmath>
#include <memory>
#include <numbers>
#include <tuple>
#include <vector>

#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

namespace accelerate::optim {
namespace {

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
  EXPECT_THAT(value_error_of([&] { scheduler.step(); }),
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

TEST(OneCycleLR, CyclesWhatEachKindOfOptimizerHas) {
  torch::optim::Adam adam({at::zeros({1})}, torch::optim::AdamOptions(1.0));
  torch::optim::RMSprop rmsprop({at::zeros({1})}, torch::optim::RMSpropOptions(1.0));
  OneCycleLR of_adam(adam, {.max_lr = 0.5, .total_steps = 10});
  OneCycleLR of_rmsprop(rmsprop, {.max_lr = 0.5, .total_steps = 10});
  const auto& betas =
      static_cast<const torch::optim::AdamOptions&>(adam.param_groups()[0].options());
  EXPECT_EQ(betas.betas(), std::make_tuple(0.95, 0.999));
  const auto& options =
      static_cast<const torch::optim::RMSpropOptions&>(rmsprop.param_groups()[0].options());
  EXPECT_EQ(options.momentum(), 0.95);
  EXPECT_EQ(options.alpha(), 0.99);
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
  options.scale_mode = CyclicScaleMode::kIterations;
  EXPECT_THAT(rates_of<CyclicLR>(options, 6), are({1, 3, 9, 7, 1, 11, 25}));
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

// The momentum swings as little as the rate does.
TEST(CyclicLR, ScalesTheMomentumWithTheRate) {
  torch::optim::SGD sgd = made_sgd();
  CyclicLR scheduler(
      sgd, {.base_lr = 1, .max_lr = 5, .step_size_up = 2, .mode = CyclicMode::kTriangular2});
  for (int step = 0; step < 6; ++step) scheduler.step();
  EXPECT_DOUBLE_EQ(rate(sgd), 3);
  EXPECT_DOUBLE_EQ(momentum(sgd), 0.85);
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
  EXPECT_THAT(value_error_of([&] { scheduler.step(); }), HasSubstr("lower decay_mom_rate"));
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

// Each mode with each threshold: what is just better than the best of 10, and what is just not.
TEST(ReduceLROnPlateau, ComparesByModeAndThreshold) {
  struct Case {
    PlateauMode mode;
    ThresholdMode threshold_mode;
    double better, not_better;
  };
  for (const auto& [mode, threshold_mode, better, not_better] :
       {Case{PlateauMode::kMin, ThresholdMode::kRel, 8.9, 9.1},
        Case{PlateauMode::kMin, ThresholdMode::kAbs, 9.8, 9.95},
        Case{PlateauMode::kMax, ThresholdMode::kRel, 11.1, 10.9},
        Case{PlateauMode::kMax, ThresholdMode::kAbs, 10.2, 10.05}}) {
    for (const bool is_better : {true, false}) {
      const double metric = is_better ? better : not_better;
      torch::optim::SGD sgd = made_sgd();
      ReduceLROnPlateau scheduler(
          sgd, {.mode = mode, .threshold = 0.1, .threshold_mode = threshold_mode});
      scheduler.step(10);
      scheduler.step(metric);
      EXPECT_EQ(scheduler.num_bad_epochs(), is_better ? 0 : 1) << metric;
      EXPECT_EQ(scheduler.best(), is_better ? metric : 10);
    }
  }
}

TEST(ReduceLROnPlateau, HasAMinimumForEachGroupAndLeavesTinyReductionsOut) {
  torch::optim::SGD sgd = made_sgd(std::vector<double>{1, 0.1, 0.8});
  ReduceLROnPlateau scheduler(sgd,
                              {.factor = 0.5, .patience = 0, .min_lr = {0.7, 0, 0}, .eps = 0.06});
  scheduler.step(1);
  scheduler.step(1);
  EXPECT_THAT(scheduler.get_last_lr(), ElementsAre(0.7, 0.1, 0.4));
}

TEST(ReduceLROnPlateau, NeedsAMetric) {
  torch::optim::SGD sgd = made_sgd();
  ReduceLROnPlateau plateau(sgd);
  torch::optim::LRScheduler& scheduler = plateau;
  EXPECT_THAT(value_error_of([&] { scheduler.step(); }), HasSubstr("needs the metric"));
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

// What the first test has in one value only: cycles, a warm-up before restarts, and timescales.
TEST(WarmUp, TakesItsFurtherArguments) {
  torch::optim::SGD sgd = made_sgd();
  const auto reset = [&] { sgd.param_groups()[0].options().set_lr(1.0); };
  LambdaLR cosine = get_cosine_schedule_with_warmup(sgd, 1, 5, 1.0);
  EXPECT_THAT(rates(cosine, 5), are({0, 1, 0.5, 0, 0.5, 1}));
  reset();
  LambdaLR restarts = get_cosine_with_hard_restarts_schedule_with_warmup(sgd, 2, 6, 2);
  EXPECT_THAT(rates(restarts, 6), are({0, 0.5, 1, 0.5, 1, 0.5, 0}));
  reset();
  LambdaLR scaled = get_inverse_sqrt_schedule(sgd, 2, 4);
  const std::vector<double> slow = rates(scaled, 14);
  EXPECT_THAT((std::vector<double>{slow[1], slow[2], slow[3], slow[14]}),
              are({0.5, 1, 1 / std::sqrt(5.0 / 4), 0.5}));
  reset();
  LambdaLR unwarmed = get_inverse_sqrt_schedule(sgd, 0);
  EXPECT_THAT(rates(unwarmed, 1), are({1, 1 / std::sqrt(10'001.0 / 10'000)}));
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
  // The longest of parts that run side by side decides, wherever it stands.
  EXPECT_EQ(end_of(std::type_identity<ChainedScheduler>(),
                   {.schedulers = {scheduler_of<CosineAnnealingLR>({.T_max = 4}),
                                   scheduler_of<PolynomialLR>({.total_iters = 9}),
                                   scheduler_of<StepLR>({.step_size = 20}),
                                   scheduler_of<CosineAnnealingLR>({.T_max = 3})}}),
            9);
  EXPECT_EQ(end_of(std::type_identity<CosineAnnealingWarmRestarts>(), {.T_0 = 7}), std::nullopt);
  // A decay goes on for good, but only where it has a rate and a step size.
  for (const bool has_steps : {false, true}) {
    EXPECT_EQ(end_of(std::type_identity<OneCycle>(), {.cycle_min_lr = 1,
                                                      .cycle_max_lr = 2,
                                                      .decay_lr_rate = 1,
                                                      .cycle_first_step_size = 3,
                                                      .cycle_second_step_size = 1,
                                                      .decay_step_size = has_steps ? 2 : 0}),
              has_steps ? std::nullopt : std::optional<int64_t>(4));
  }
  EXPECT_EQ(get_constant_schedule_with_warmup(sgd, 2).end(), std::nullopt);
  EXPECT_EQ(get_cosine_schedule_with_warmup(sgd, 2, 7).end(), 7);
  EXPECT_EQ(get_cosine_with_hard_restarts_schedule_with_warmup(sgd, 2, 7).end(), 7);
  EXPECT_EQ(get_polynomial_decay_schedule_with_warmup(sgd, 2, 7).end(), 7);
  EXPECT_EQ(get_inverse_sqrt_schedule(sgd, 2).end(), std::nullopt);
}

// ---- Mistakes.

TEST(Mistakes, AreNamed) {
  torch::optim::SGD sgd = made_sgd();
  auto refusal = [&]<typename Kind>(std::type_identity<Kind>, typename Kind::Options options) {
    return value_error_of([&] { Kind(sgd, options); });
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
  EXPECT_THAT(value_error_of([&] { LambdaLR(sgd, LrLambda()); }), HasSubstr("a function is empty"));
  EXPECT_THAT(value_error_of([&] { LambdaLR(sgd, std::vector<LrLambda>(2)); }),
              HasSubstr("expected one function or 1"));
  EXPECT_THAT(value_error_of([&] { get_linear_schedule_with_warmup(sgd, -1, 2); }),
              HasSubstr("must not be negative"));
  EXPECT_THAT(value_error_of([&] { get_polynomial_decay_schedule_with_warmup(sgd, 1, 2, 1.0); }),
              HasSubstr("must be smaller than the optimizer's rate"));
  EXPECT_THAT(value_error_of([&] { get_inverse_sqrt_schedule(sgd, 1, 0); }),
              HasSubstr("timescale"));
  EXPECT_EQ(rate(sgd), 1);
}

TEST(Mistakes, OfOneCycleAreNamed) {
  torch::optim::SGD sgd = made_sgd();
  auto refusal = [&](const OneCycleLROptions& options) {
    return value_error_of([&] { OneCycleLR(sgd, options); });
  };
  EXPECT_THAT(refusal({.max_lr = 1}), HasSubstr("give total_steps, or both epochs and"));
  EXPECT_THAT(refusal({.max_lr = 1, .epochs = 3}), HasSubstr("give total_steps, or both"));
  EXPECT_THAT(refusal({.max_lr = 1, .total_steps = 0}), HasSubstr("total_steps must be positive"));
  EXPECT_THAT(refusal({.max_lr = 1, .total_steps = 5, .pct_start = 1.1}), HasSubstr("pct_start"));
  EXPECT_THAT(refusal({.max_lr = {1, 2}, .total_steps = 5}),
              HasSubstr("max_lr: expected one number or 1, one for each parameter group, got 2"));
  torch::optim::LBFGS lbfgs({at::zeros({1})});
  EXPECT_THAT(value_error_of([&] { OneCycleLR(lbfgs, {.max_lr = 1, .total_steps = 5}); }),
              HasSubstr("set cycle_momentum to false"));
}

TEST(Mistakes, OfCombinationsAreNamed) {
  torch::optim::SGD sgd = made_sgd();
  const MakeScheduler step = scheduler_of<StepLR>({.step_size = 1});
  auto refusal = [&](const SequentialLROptions& options) {
    return value_error_of([&] { SequentialLR(sgd, options); });
  };
  EXPECT_THAT(refusal({}), HasSubstr("at least one scheduler"));
  EXPECT_THAT(refusal({.schedulers = {step, step}}), HasSubstr("a milestone between any two"));
  EXPECT_THAT(refusal({.schedulers = {step, step, step}, .milestones = {4, 4}}),
              HasSubstr("must be positive and rise, got 4 after 4"));
  EXPECT_THAT(refusal({.schedulers = {step, nullptr}, .milestones = {4}}),
              HasSubstr("scheduler 1 is empty"));
  EXPECT_THAT(value_error_of([&] {
                ChainedScheduler(sgd, {.schedulers = {scheduler_of<ReduceLROnPlateau>({})}});
              }),
              HasSubstr("scheduler 0 is a ReduceLROnPlateau"));
}

}  // namespace
}  // namespace accelerate::optim
