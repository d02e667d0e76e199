// A run that was interrupted anywhere and goes on from its checkpoint has the losses of one that
// was not, bit for bit.
// One shape each: a variant is a whole sweep of stops, and the shape is part of the variant.
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include "integration_tests/checkpoint/training.h"
#include "simulator/cluster/cluster.h"

namespace accelerate::checkpoint_tests {
namespace {

using simulator::Cluster;
using simulator::Rank;
using simulator::SimDisk;

std::vector<TrainingResult> run(const std::string& topology, std::shared_ptr<SimDisk> disk,
                                const TrainingOptions& options, uint64_t seed = 1) {
  Cluster cluster(topology, {.seed = seed, .disk = std::move(disk)});
  std::vector<TrainingResult> results(cluster.world_size());
  cluster.run_on_every_rank([&](Rank& rank) { results[rank.index()] = train(options); });
  return results;
}

struct Variant {
  std::string topology;
  PrecisionType precision;
  int64_t accumulation;
  bool uses_adam;
  bool asynchronous;
  std::optional<ParallelismOptions> parallelism = std::nullopt;
};

class Resume : public testing::TestWithParam<Variant> {};

TEST_P(Resume, GoesOnBitForBit) {
  const Variant& variant = GetParam();
  TrainingOptions options{.precision = variant.precision,
                          .accumulation = variant.accumulation,
                          .uses_adam = variant.uses_adam,
                          .parallelism = variant.parallelism,
                          .asynchronous = variant.asynchronous};
  const auto whole = run(variant.topology, std::make_shared<SimDisk>(), options);
  const int64_t steps = micro_steps(options, static_cast<int>(whole.size()));
  ASSERT_EQ(static_cast<int64_t>(whole[0].losses.size()), steps + 1);
  // Somewhere in an epoch, in a window and at the ends of both, with another order of ranks.
  std::mt19937 random(static_cast<uint32_t>(variant.accumulation));
  std::vector<int64_t> stops = {1, steps / options.epochs, steps - 1};
  for (int i = 0; i < 4; ++i) stops.push_back(1 + static_cast<int64_t>(random() % (steps - 1)));
  for (const int64_t stop : stops) {
    auto disk = std::make_shared<SimDisk>();
    TrainingOptions first = options;
    first.stop_after = stop;
    const auto begun = run(variant.topology, disk, first, 2);
    TrainingOptions second = options;
    second.resumes = true;
    const auto rest = run(variant.topology, disk, second, 3);
    for (size_t rank = 0; rank < whole.size(); ++rank) {
      EXPECT_EQ(rest[rank].resumed_at, stop);
      Losses all = begun[rank].losses;
      for (const auto& [step, loss] : rest[rank].losses) all[step] = loss;
      EXPECT_EQ(all, whole[rank].losses) << "rank " << rank << ", stopped after " << stop;
    }
  }
}

ParallelismOptions shards(int ranks, int replicas = 1) {
  return {.dp_replicate_size = replicas, .dp_shard_size = ranks};
}

constexpr PrecisionType kNo = PrecisionType::kNo;
constexpr PrecisionType kFp16 = PrecisionType::kFp16;

INSTANTIATE_TEST_SUITE_P(Runs, Resume,
                         testing::Values(Variant{"1x1", kNo, 1, false, false},
                                         Variant{"1x1", kFp16, 3, true, false},
                                         Variant{"2x2", kNo, 1, true, true},
                                         Variant{"2x2", kFp16, 3, false, false},
                                         Variant{"2x2:h100", kFp16, 3, true, true},
                                         Variant{"1x4:h100", kNo, 1, true, false, shards(4)},
                                         Variant{"1x3", kNo, 3, true, true, shards(3)},
                                         Variant{"2x2", kFp16, 3, false, false, shards(2, 2)}));

TEST(Resume, WithOtherNumbersOfRanksEverySampleStillComesOnce) {
  auto disk = std::make_shared<SimDisk>();
  run("2x2", disk, {.epochs = 2, .stop_after = 5});
  const auto rest = run("1x2", disk, {.epochs = 2, .resumes = true});
  EXPECT_EQ(rest[0].resumed_at, 5);
  // 52 samples an epoch: 4 rounds of 16, the last padded; then rounds of 8. The fifth step was
  // the first of the second epoch, 36 samples are left.
  EXPECT_EQ(rest[0].losses.size(), 1u + 5u);
}

TEST(LoadState, BetweenAForwardAndItsBackwardPassSaysWhatToDo) {
  Cluster cluster("1x2", {.disk = std::make_shared<SimDisk>()});
  cluster.run_on_every_rank([](Rank&) {
    Accelerator accelerator;
    torch::nn::Linear net(4, 2);
    auto [model, optimizer] = accelerator.prepare(
        net, std::make_shared<torch::optim::SGD>(net->parameters(), /*lr=*/0.1));
    const at::Tensor x = at::ones({3, 4});
    // From the second step on the order of gradients is a part of the state.
    for (int step = 0; step < 2; ++step) {
      accelerator.backward(model(x).sum());
      optimizer.step();
    }
    accelerator.save_state("/sim/state");
    const at::Tensor loss = model(x).sum();
    std::string error;
    try {
      accelerator.load_state("/sim/state");
    } catch (const c10::Error& thrown) {
      error = thrown.what_without_backtrace();
    }
    EXPECT_THAT(error, testing::AllOf(testing::HasSubstr("whose backward pass is still to come"),
                                      testing::HasSubstr("NoGradGuard")));
    // Both of what it says help.
    accelerator.backward(loss);
    accelerator.load_state("/sim/state");
    {
      const torch::NoGradGuard no_grad;
      model(x);
    }
    accelerator.load_state("/sim/state");
  });
}

}  // namespace
}  // namespace accelerate::checkpoint_tests
