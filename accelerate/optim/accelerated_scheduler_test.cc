// When a prepared scheduler moves, and by how much.
#include "accelerate/optim/accelerated_scheduler.h"

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/optim/sgd.h>
#include <nlohmann/json.hpp>

#include "accelerate/optim/schedulers/schedulers.h"
#include "accelerate/optim/shared_objects.h"
#include "accelerate/testing/fake_runtime.h"
#include "accelerate/testing/recorded_warnings.h"
#include "accelerate/testing/value_error.h"

namespace accelerate {
namespace {

using ::testing::DoubleEq;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

torch::optim::SGD made_sgd() {
  return torch::optim::SGD({at::zeros({1})}, torch::optim::SGDOptions(1.0));
}

AcceleratedOptimizer prepared(torch::optim::SGD& sgd, GradientState& state) {
  return AcceleratedOptimizer(
      std::shared_ptr<torch::optim::Optimizer>(std::shared_ptr<void>(), &sgd), state);
}

struct PreparedSchedule : testing::Test {
  AcceleratedScheduler prepare(SchedulerPolicy policy) { return {schedule, state, policy}; }

  GradientState state;
  torch::optim::SGD sgd = made_sgd();
  optim::LambdaLR schedule{sgd, [](int64_t step) { return 1 - static_cast<double>(step) / 10; }};
};

TEST_F(PreparedSchedule, AdvancesOncePerProcess) {
  AcceleratedScheduler scheduler = prepare({.num_shares = 3});
  scheduler.step();
  EXPECT_DOUBLE_EQ(scheduler.get_last_lr()[0], 1 - 3 / 10.0);
}

TEST_F(PreparedSchedule, AdvancesOnceWhereBatchesAreSplit) {
  AcceleratedScheduler scheduler = prepare({.num_shares = 3, .split_batches = true});
  scheduler.step();
  EXPECT_EQ(schedule.last_epoch(), 1);
}

TEST_F(PreparedSchedule, AdvancesOnceWhereItCountsOptimizerSteps) {
  AcceleratedScheduler scheduler =
      prepare({.num_shares = 3, .unit = SchedulerUnit::kPerOptimizerStep});
  scheduler.step();
  EXPECT_EQ(schedule.last_epoch(), 1);
}

TEST_F(PreparedSchedule, StandsStillWhileGradientsAccumulate) {
  AcceleratedScheduler scheduler = prepare({.num_shares = 2});
  state.set_sync_gradients(false);
  scheduler.step();
  EXPECT_EQ(schedule.last_epoch(), 0);
  state.set_plugin({.num_steps = 2, .adjust_scheduler = true});
  scheduler.step();
  EXPECT_EQ(schedule.last_epoch(), 2);
}

TEST_F(PreparedSchedule, ForwardsEveryCallWhereItIsNotTiedToOptimizers) {
  AcceleratedScheduler scheduler = prepare({.num_shares = 3, .step_with_optimizer = false});
  state.set_sync_gradients(false);
  scheduler.step();
  EXPECT_EQ(schedule.last_epoch(), 1);
}

TEST_F(PreparedSchedule, FollowsTheStepsOfItsOwnOptimizer) {
  torch::optim::SGD other_sgd = made_sgd();
  torch::optim::StepLR any(sgd, 1, 0.5);
  const AcceleratedOptimizer own = prepared(sgd, state), other = prepared(other_sgd, state);
  AcceleratedScheduler scheduler(schedule, state, {}, {other, own});
  AcceleratedScheduler of_any(any, state, {}, {other, own});
  internal::Access::to(other)->step_was_skipped = true;
  scheduler.step();
  EXPECT_EQ(schedule.last_epoch(), 1);
  of_any.step();
  EXPECT_EQ(internal::Access::to(of_any)->steps, 0) << "LibTorch's do not say which they drive";
  internal::Access::to(other)->step_was_skipped = false;
  internal::Access::to(own)->step_was_skipped = true;
  scheduler.step();
  EXPECT_EQ(schedule.last_epoch(), 1);
}

TEST_F(PreparedSchedule, KeepsNoOptimizerAlive) {
  auto owned = std::make_shared<torch::optim::SGD>(std::vector<at::Tensor>{at::zeros({1})}, 0.1);
  const std::weak_ptr<torch::optim::SGD> watched = owned;
  AcceleratedOptimizer optimizer(std::move(owned), state);
  torch::optim::StepLR step(*optimizer, 1);
  AcceleratedScheduler scheduler(step, state, {}, {optimizer});
  optimizer.reset();
  EXPECT_TRUE(watched.expired());
}

TEST_F(PreparedSchedule, ForwardsItsState) {
  AcceleratedScheduler scheduler = prepare({.num_shares = 4});
  scheduler.step();
  const nlohmann::ordered_json saved = scheduler.state_dict();
  EXPECT_EQ(saved.at("last_epoch"), 4);
  scheduler.step();
  scheduler.load_state_dict(saved);
  EXPECT_EQ(schedule.last_epoch(), 4);
}

TEST_F(PreparedSchedule, TellsTheRatesThatTrainingUses) {
  AcceleratedScheduler scheduler = prepare({.num_shares = 2});
  scheduler.step();
  EXPECT_THAT(scheduler.get_lr(), ElementsAre(DoubleEq(0.8)));
  sgd.param_groups()[0].options().set_lr(0.3);
  EXPECT_THAT(scheduler.get_lr(), ElementsAre(0.3));
  EXPECT_THAT(scheduler.get_last_lr(), ElementsAre(DoubleEq(0.8)));
  scheduler.reset();
  EXPECT_THROW(scheduler.get_lr(), c10::Error);
  EXPECT_THROW(scheduler.get_last_lr(), c10::Error);
  EXPECT_THROW(scheduler.state_dict(), c10::Error);
}

// LibTorch's: the rate halves after every second step.
TEST(PreparedStepLr, OfLibTorchHasRatesAndAState) {
  GradientState state;
  torch::optim::SGD sgd = made_sgd(), resumed_sgd = made_sgd();
  torch::optim::StepLR step(sgd, 2, 0.5), resumed_step(resumed_sgd, 2, 0.5);
  AcceleratedScheduler scheduler(step, state, {}), resumed(resumed_step, state, {});
  std::vector<double> rates;
  for (int i = 0; i < 3; ++i) {
    scheduler.step();
    rates.push_back(scheduler.get_last_lr().at(0));
  }
  EXPECT_THAT(rates, ElementsAre(1.0, 1.0, 0.5));
  EXPECT_EQ(scheduler.get_lr(), scheduler.get_last_lr());
  const nlohmann::ordered_json saved = scheduler.state_dict();
  EXPECT_EQ(saved.dump(), "{\"_step_count\":3}");
  resumed.load_state_dict(saved);
  optim::set_rates(resumed_sgd, scheduler.get_last_lr());
  for (int i = 0; i < 4; ++i) {
    scheduler.step();
    resumed.step();
    EXPECT_EQ(resumed.get_last_lr(), scheduler.get_last_lr()) << i;
  }
  EXPECT_THAT(value_error_of([&] { resumed.load_state_dict({{"_step_count", -1}}); }),
              HasSubstr("\"_step_count\" is -1"));
  EXPECT_THAT(value_error_of([&] { resumed.load_state_dict({{"last_epoch", 1}}); }),
              HasSubstr("_step_count"));
  EXPECT_EQ(resumed.state_dict(), scheduler.state_dict());
}

class ConsoleRuntime final : public FakeRuntime {
 public:
  using FakeRuntime::FakeRuntime;
  void write_console(ConsoleStream, std::string_view text) override { written += text; }
  std::string written;
};

TEST_F(PreparedSchedule, PrintsARateOncePerNode) {
  const AcceleratedScheduler scheduler = prepare({});
  ConsoleRuntime first, second(Topology::uniform(1, 1, 2));
  {
    const RuntimeScope scope(first);
    scheduler.print_lr(/*is_verbose=*/true, 0, 0.1);
    scheduler.print_lr(/*is_verbose=*/true, 1, 0.05, /*epoch=*/3);
    scheduler.print_lr(/*is_verbose=*/false, 2, 0.1);
  }
  const RuntimeScope scope(second);
  scheduler.print_lr(/*is_verbose=*/true, 0, 0.1);
  EXPECT_EQ(first.written,
            "Adjusting learning rate of group 0 to 1.0000e-01.\n"
            "Epoch 00003: adjusting learning rate of group 1 to 5.0000e-02.\n");
  EXPECT_EQ(second.written, "");
}

TEST(PreparedOneCycle, IsNotSteppedBeyondItsLength) {
  GradientState state;
  torch::optim::SGD sgd = made_sgd();
  optim::OneCycleLR cycle(sgd, {.max_lr = 1, .total_steps = 5});
  AcceleratedScheduler scheduler(cycle, state, {.num_shares = 2});
  for (int i = 0; i < 4; ++i) scheduler.step();
  EXPECT_EQ(cycle.last_epoch(), 5);
  AcceleratedScheduler untied(cycle, state, {.step_with_optimizer = false});
  EXPECT_THAT(value_error_of([&] { untied.step(); }), HasSubstr("total_steps is 5"));
}

TEST(PreparedPlateau, GoesByEachMetricOnce) {
  GradientState state;
  torch::optim::SGD sgd = made_sgd();
  optim::ReduceLROnPlateau plateau(sgd, {.factor = 0.5, .patience = 1});
  const AcceleratedOptimizer optimizer = prepared(sgd, state);
  AcceleratedScheduler scheduler(plateau, state, {.num_shares = 4}, {optimizer});
  scheduler.step(1.0);
  state.set_sync_gradients(false);
  internal::Access::to(optimizer)->step_was_skipped = true;
  scheduler.step(1.0);
  EXPECT_EQ(plateau.num_bad_epochs(), 1);
  scheduler.step(1.0);
  EXPECT_THAT(scheduler.get_last_lr(), ElementsAre(0.5));
  EXPECT_THAT(value_error_of([&] { scheduler.step(); }), HasSubstr("stepped with the metric"));
  optim::StepLR step(sgd, {.step_size = 1});
  AcceleratedScheduler other(step, state, {});
  EXPECT_THAT(value_error_of([&] { other.step(1.0); }), HasSubstr("this scheduler takes none"));
}

// ---- The warning about a schedule that is over too early.

constexpr int64_t kSteps = 20;

// What is warned of when a schedule of `length` steps is used for kSteps optimizer steps.
std::vector<std::string> warnings_of(int64_t length, SchedulerPolicy policy,
                                     int64_t optimizer_steps = kSteps) {
  const RecordedWarnings warnings;
  GradientState state;
  torch::optim::SGD sgd = made_sgd();
  optim::LambdaLR schedule = optim::get_linear_schedule_with_warmup(sgd, 2, length);
  AcceleratedScheduler scheduler(schedule, state, policy);
  for (int64_t i = 0; i < optimizer_steps; ++i) scheduler.step();
  return warnings.texts();
}

TEST(PreparedScheduleThatIsOver, SaysSoOnce) {
  const auto texts = warnings_of(kSteps, {.num_shares = 4});
  ASSERT_THAT(texts, SizeIs(1));
  EXPECT_THAT(texts[0], HasSubstr("over after its 20 steps, which 4 data-parallel processes "
                                  "used up in 5 optimizer steps, and training goes on"));
  EXPECT_THAT(warnings_of(kSteps, {.num_shares = 4}, 8), IsEmpty());
  EXPECT_THAT(warnings_of(kSteps, {.num_shares = 4}, 9), SizeIs(1));
}

TEST(PreparedScheduleThatIsOver, CountsABegunOptimizerStepAndSpeaksOnTheFirstRankAlone) {
  for (const int rank : {0, 1}) {
    FakeRuntime runtime(Topology::uniform(rank, 1, 2));
    const RuntimeScope scope(runtime);
    const auto texts = warnings_of(kSteps - 2, {.num_shares = 4});
    ASSERT_THAT(texts, SizeIs(rank == 0 ? 1 : 0));
    if (rank == 0) {
      EXPECT_THAT(texts[0], HasSubstr("its 18 steps, which 4 data-parallel processes used up in "
                                      "5 optimizer steps"));
    }
  }
}

TEST(PreparedScheduleThatIsOver, IsNoneWhereItsUnitIsRight) {
  EXPECT_THAT(warnings_of(4 * kSteps, {.num_shares = 4}), IsEmpty());
  // Padding makes epochs a little longer.
  EXPECT_THAT(warnings_of(4 * kSteps, {.num_shares = 4}, kSteps + 4), IsEmpty());
  EXPECT_THAT(warnings_of(kSteps, {.num_shares = 4, .unit = SchedulerUnit::kPerOptimizerStep}),
              IsEmpty());
  EXPECT_THAT(warnings_of(kSteps, {.num_shares = 4, .split_batches = true}), IsEmpty());
  // Without other processes the schedule was not changed.
  EXPECT_THAT(warnings_of(3, {}), IsEmpty());
}

}  // namespace
}  // namespace accelerate
