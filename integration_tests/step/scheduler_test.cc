// Prepared schedulers in a job: how far ranks advance them, and that they agree.
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "accelerate/optim/schedulers/schedulers.h"
#include "accelerate/optim/shared_objects.h"
#include "simulator/cluster/cluster.h"
#include "simulator/testing/topology_suite.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::Rank;

// A training whose rate is 1 - n / 10 after n steps of the schedule.
class Job {
 public:
  explicit Job(const AcceleratorOptions& options)
      : accelerator(options), prepared_model(accelerator.prepare(net)) {}

  void micro_step(double value = 1.0) {
    auto scope = accelerator.accumulate(prepared_model);
    const auto x = torch::full({1, 1}, value, torch::TensorOptions(accelerator.device()));
    accelerator.backward(prepared_model(x).sum());
    optimizer.step();
    scheduler.step();
    optimizer.zero_grad();
  }

  double rate() { return sgd.param_groups()[0].options().get_lr(); }

  Accelerator accelerator;
  torch::nn::Linear net{1, 1};
  torch::optim::SGD sgd{net->parameters(), 1.0};
  optim::LambdaLR schedule{sgd, [](int64_t step) { return 1 - static_cast<double>(step) / 10; }};
  PreparedModel<torch::nn::LinearImpl> prepared_model;
  AcceleratedOptimizer optimizer = accelerator.prepare(sgd);
  AcceleratedScheduler scheduler = accelerator.prepare(schedule);
};

TOPOLOGY_SUITE(Schedules, .also = {"2x4"});

TEST_P(Schedules, AdvanceByTheirUnit) {
  auto rate_after_one_step = [](const AcceleratorOptions& options) {
    double rate = 0;
    Cluster cluster = make_cluster();
    cluster.run_on_every_rank([&](Rank& rank) {
      Job job(options);
      job.micro_step();
      if (rank.index() == 0) rate = job.rate();
      EXPECT_EQ(job.rate(), job.scheduler.get_last_lr()[0]);
    });
    return rate;
  };
  EXPECT_DOUBLE_EQ(rate_after_one_step({}), 1 - world_size() / 10.0);
  EXPECT_DOUBLE_EQ(rate_after_one_step({.split_batches = true}), 0.9);
  EXPECT_DOUBLE_EQ(rate_after_one_step({.dataloader_config = {.split_batches = true}}), 0.9);
  EXPECT_DOUBLE_EQ(rate_after_one_step({.step_scheduler_with_optimizer = false}), 0.9);
  EXPECT_DOUBLE_EQ(rate_after_one_step({.scheduler_unit = SchedulerUnit::kPerOptimizerStep}), 0.9);
}

TEST_P(Schedules, WaitForTheOptimizer) {
  make_cluster().run_on_every_rank([](Rank&) {
    Job job({.gradient_accumulation_steps = 3});
    for (int micro_steps = 1; micro_steps <= 6; ++micro_steps) {
      job.micro_step();
      EXPECT_DOUBLE_EQ(job.rate(), 1 - micro_steps / 3 * world_size() / 10.0) << micro_steps;
    }
  });
}

// What takes a torch::optim::Optimizer& takes a prepared one.
TEST_P(Schedules, OfLibTorchTakeAPreparedOptimizer) {
  make_cluster().run_on_every_rank([](Rank&) {
    Job job({});
    torch::optim::StepLR own(job.optimizer, /*step_size=*/1, /*gamma=*/0.5);
    const torch::optim::Optimizer& users = job.optimizer;
    EXPECT_EQ(&users, &*job.optimizer);
    own.step();  // LibTorch's first step leaves the rate
    own.step();
    EXPECT_DOUBLE_EQ(job.rate(), 0.5);
  });
}

TOPOLOGY_SUITE(Fp16Schedules, .hardware = simulator::Hardware::kNoTpu);

TEST_P(Fp16Schedules, DoNotCountSkippedSteps) {
  make_cluster().run_on_every_rank([](Rank& rank) {
    Job job({.mixed_precision = PrecisionType::kFp16});
    const bool is_last = rank.index() == world_size() - 1;
    job.micro_step(is_last ? std::numeric_limits<double>::infinity() : 1.0);
    EXPECT_TRUE(job.optimizer.step_was_skipped());
    EXPECT_EQ(job.rate(), 1.0);
    job.micro_step(1e-4);
    EXPECT_FALSE(job.optimizer.step_was_skipped());
    EXPECT_DOUBLE_EQ(job.rate(), 1 - world_size() / 10.0);
  });
}

TOPOLOGY_SUITE(UnevenSchedules, .min_ranks = 2);

// All data but rank 0's ended early: the others have seen fewer metrics.
TEST_P(UnevenSchedules, OfMetricsCatchUpWithTheState) {
  make_cluster().run_on_every_rank([](Rank& rank) {
    Accelerator accelerator;
    torch::nn::Linear net(1, 1);
    torch::optim::SGD sgd(net->parameters(), 1.0);
    optim::ReduceLROnPlateau plateau(sgd, {.factor = 0.5, .patience = 0});
    AcceleratedScheduler scheduler = accelerator.prepare(plateau);
    scheduler.step(1.0);
    if (rank.index() == 0) {
      scheduler.step(1.0);
      scheduler.step(0.5);
    }
    internal::Access::to(scheduler)->synchronise(accelerator.state().group(), /*source=*/0);
    EXPECT_EQ(sgd.param_groups()[0].options().get_lr(), 0.5);
    EXPECT_EQ(plateau.best(), 0.5);
    EXPECT_EQ(plateau.last_epoch(), 3);
  });
}

}  // namespace
}  // namespace accelerate
