// Schedules that go on from a state, in schedulers that were made alike or otherwise.
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <nlohmann/json.hpp>

#include "accelerate/optim/schedulers/schedulers.h"
#include "accelerate/testing/value_error.h"

namespace accelerate::optim {
namespace {

using nlohmann::ordered_json;
using ::testing::HasSubstr;

torch::optim::SGD made_sgd(double lr = 1.0) {
  return torch::optim::SGD({at::zeros({1})}, torch::optim::SGDOptions(lr));
}

double rate(torch::optim::Optimizer& optimizer) {
  return optimizer.param_groups().at(0).options().get_lr();
}

double momentum(torch::optim::SGD& sgd) {
  return static_cast<torch::optim::SGDOptions&>(sgd.param_groups()[0].options()).momentum();
}

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
  const auto reciprocal = [](double x) { return 1 / (1 + x); };
  return {
      kind_of<StepLR>("StepLR", {.step_size = 2, .gamma = 0.5}, {.step_size = 3}),
      kind_of<MultiStepLR>("MultiStepLR", {.milestones = {2, 5}},
                           {.milestones = {1}, .gamma = 0.3}),
      kind_of<ExponentialLR>("ExponentialLR", {.gamma = 0.9}, {.gamma = 0.5}),
      kind_of<ConstantLR>("ConstantLR", {.factor = 0.5, .total_iters = 4}, {.total_iters = 1}),
      kind_of<LinearLR>("LinearLR", {.total_iters = 6},
                        {.start_factor = 0.5, .end_factor = 0.75, .total_iters = 2}),
      kind_of<PolynomialLR>("PolynomialLR", {.total_iters = 6}, {.total_iters = 3, .power = 2}),
      {"LambdaLR", scheduler_with<LambdaLR>(half), scheduler_with<LambdaLR>(half)},
      {"MultiplicativeLR", scheduler_with<MultiplicativeLR>(half),
       scheduler_with<MultiplicativeLR>(half)},
      kind_of<CosineAnnealingLR>("CosineAnnealingLR", {.T_max = 5}, {.T_max = 3, .eta_min = 0.1}),
      kind_of<CosineAnnealingWarmRestarts>("CosineAnnealingWarmRestarts", {.T_0 = 2},
                                           {.T_0 = 3, .T_mult = 2, .eta_min = 0.1}),
      kind_of<OneCycleLR>("OneCycleLR", {.max_lr = 1, .total_steps = 9},
                          {.max_lr = 3, .total_steps = 20, .pct_start = 0.5}),
      kind_of<OneCycleLR>("OneCycleLR with all arguments",
                          {.max_lr = 1,
                           .total_steps = 9,
                           .anneal_strategy = AnnealStrategy::kLinear,
                           .base_momentum = 0.5,
                           .max_momentum = 0.7,
                           .div_factor = 4,
                           .final_div_factor = 10,
                           .three_phase = true},
                          {.max_lr = 3, .total_steps = 20, .cycle_momentum = false}),
      kind_of<CyclicLR>("CyclicLR", {.base_lr = 1, .max_lr = 2, .step_size_up = 2},
                        {.base_lr = 0.5, .max_lr = 3, .step_size_up = 3, .gamma = 0.5}),
      kind_of<CyclicLR>("CyclicLR with all arguments",
                        {.base_lr = 1,
                         .max_lr = 2,
                         .step_size_up = 2,
                         .step_size_down = 3,
                         .mode = CyclicMode::kExpRange,
                         .gamma = 0.5,
                         .base_momentum = 0.5,
                         .max_momentum = 0.7},
                        {.base_lr = 0.5, .max_lr = 3, .step_size_up = 3, .cycle_momentum = false}),
      kind_of<CyclicLR>("CyclicLR with a function",
                        {.base_lr = 1,
                         .max_lr = 2,
                         .step_size_up = 2,
                         .scale_fn = reciprocal,
                         .scale_mode = CyclicScaleMode::kIterations},
                        {.base_lr = 1, .max_lr = 2, .step_size_up = 2, .scale_fn = reciprocal}),
      kind_of<SequentialLR>("SequentialLR", {.schedulers = {line(4), cosine(4)}, .milestones = {4}},
                            {.schedulers = {line(2), cosine(7)}, .milestones = {2}}),
      kind_of<ChainedScheduler>("ChainedScheduler", {.schedulers = {line(4), falls(0.5)}},
                                {.schedulers = {line(2), falls(0.9)}}),
      kind_of<ReduceLROnPlateau>("ReduceLROnPlateau", {.factor = 0.5, .patience = 1},
                                 {.factor = 0.1, .patience = 3}),
      kind_of<ReduceLROnPlateau>("ReduceLROnPlateau with all arguments",
                                 {.mode = PlateauMode::kMax,
                                  .factor = 0.5,
                                  .patience = 1,
                                  .threshold = 0.5,
                                  .threshold_mode = ThresholdMode::kAbs,
                                  .cooldown = 2,
                                  .min_lr = 0.4,
                                  .eps = 0.2},
                                 {}),
      kind_of<WarmupLR>("WarmupLR", {.warmup_num_steps = 4, .last_batch_iteration = 0},
                        {.warmup_num_steps = 9}),
      kind_of<WarmupLR>("WarmupLR with all arguments",
                        {.warmup_min_lr = 0.1,
                         .warmup_max_lr = 0.4,
                         .warmup_num_steps = 5,
                         .warmup_type = WarmupType::kLinear},
                        {.warmup_num_steps = 9}),
      kind_of<WarmupDecayLR>("WarmupDecayLR", {.total_num_steps = 6, .warmup_num_steps = 3},
                             {.total_num_steps = 20, .last_batch_iteration = 3}),
      kind_of<WarmupCosineLR>("WarmupCosineLR", {.total_num_steps = 6, .warmup_num_steps = 3},
                              {.total_num_steps = 20, .last_batch_iteration = 3}),
      kind_of<WarmupCosineLR>("WarmupCosineLR with all arguments",
                              {.total_num_steps = 6,
                               .warmup_min_ratio = 0.2,
                               .cos_min_ratio = 0.3,
                               .warmup_num_steps = 3,
                               .warmup_type = WarmupType::kLinear},
                              {.total_num_steps = 20}),
      kind_of<OneCycle>("OneCycle",
                        {.cycle_min_lr = 1,
                         .cycle_max_lr = 2,
                         .decay_lr_rate = 1,
                         .cycle_first_step_size = 2,
                         .decay_step_size = 1},
                        {.cycle_min_lr = 0.5, .cycle_max_lr = 3, .last_batch_iteration = 1}),
      kind_of<LRRangeTest>("LRRangeTest", {.lr_range_test_step_size = 2},
                           {.lr_range_test_step_size = 7, .last_batch_iteration = 5}),
      kind_of<LRRangeTest>("LRRangeTest with all arguments",
                           {.lr_range_test_min_lr = 0.01,
                            .lr_range_test_step_size = 2,
                            .lr_range_test_step_rate = 3,
                            .lr_range_test_staircase = true},
                           {.lr_range_test_step_size = 7}),
  };
}

void step_any(Scheduler& scheduler) {
  if (auto* plateau = dynamic_cast<ReduceLROnPlateau*>(&scheduler)) {
    // Too slow a rise for one threshold, and a good one for another.
    return plateau->step(1.0 + 0.2 * static_cast<double>(scheduler.last_epoch()));
  }
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

// As the kinds above, with the betas that SGD lacks.
TEST(State, OfAOneCycleBringsItsStairsAndMomenta) {
  const auto betas = [](const torch::optim::AdamW& adam) {
    return static_cast<const torch::optim::AdamWOptions&>(adam.param_groups()[0].options()).betas();
  };
  torch::optim::AdamW adam({at::zeros({1})}, torch::optim::AdamWOptions(1.0));
  torch::optim::AdamW resumed_adam({at::zeros({1})}, torch::optim::AdamWOptions(1.0));
  OneCycle schedule(adam, {.cycle_min_lr = 1,
                           .cycle_max_lr = 5,
                           .decay_lr_rate = 0.5,
                           .cycle_first_step_size = 4,
                           .cycle_second_step_size = 3,
                           .cycle_first_stair_count = 2,
                           .cycle_second_stair_count = 3,
                           .decay_step_size = 2,
                           .cycle_min_mom = 0.5,
                           .cycle_max_mom = 0.7,
                           .decay_mom_rate = 0.01});
  OneCycle resumed(resumed_adam, {.cycle_min_lr = 0.5,
                                  .cycle_max_lr = 3,
                                  .cycle_first_step_size = 9,
                                  .cycle_momentum = false});
  schedule.step();
  resumed.load_state_dict(ordered_json::parse(schedule.state_dict().dump()));
  EXPECT_TRUE(resumed.cycles_momentum());
  for (int step = 2; step < 14; ++step) {
    schedule.step();
    resumed.step();
    EXPECT_EQ(rate(resumed_adam), rate(adam)) << step;
    EXPECT_EQ(betas(resumed_adam), betas(adam)) << step;
  }
  EXPECT_EQ(resumed.state_dict(), schedule.state_dict());
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
    const std::string error = value_error_of([&] { scheduler.load_state_dict(state); });
    EXPECT_EQ(scheduler.state_dict(), before);
    return error;
  };
  EXPECT_THAT(refusal("last_epoch", nullptr), HasSubstr("lacks \"last_epoch\""));
  EXPECT_THAT(refusal("last_epoch", 1.5), HasSubstr("1.5 for \"last_epoch\""));
  EXPECT_THAT(refusal("start_factor", "much"), HasSubstr("\"much\" for \"start_factor\""));
  EXPECT_THAT(refusal("start_factor", 7), HasSubstr("start_factor must be"));
  EXPECT_THAT(refusal("base_lrs", {1.0, 2.0}), HasSubstr("for 2 parameter groups"));
  EXPECT_THAT(value_error_of([&] { scheduler.load_state_dict(ordered_json::array()); }),
              HasSubstr("is an object"));
}

}  // namespace
}  // namespace accelerate::optim
