// Faults in a training: its steps, batches and checkpoints are points, and a crash anywhere in a
// step, inside a backward pass too, ends the run with the death named.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "absl/strings/str_cat.h"
#include "accelerate/accelerate.h"
#include "simulator/cluster/cluster.h"
#include "simulator/disk/sim_disk.h"
#include "simulator/faults/rules.h"
#include "simulator/testing/topology_suite.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::ClusterError;
using simulator::ClusterOptions;
using simulator::FaultRules;
using simulator::Rank;
using simulator::SimDisk;
using simulator::Site;
using ::testing::HasSubstr;

constexpr int64_t kSteps = 4;

struct NetImpl : torch::nn::Module {
  NetImpl()
      : first(register_module("first", torch::nn::Linear(4, 8))),
        second(register_module("second", torch::nn::Linear(8, 1))) {}
  torch::Tensor forward(const torch::Tensor& x) { return second(torch::relu(first(x))); }
  torch::nn::Linear first, second;
};
TORCH_MODULE(Net);

void train(Rank& /*rank*/) {
  Accelerator accelerator;
  Net net;
  torch::optim::SGD sgd(net->parameters(), 0.01);
  const int64_t rows = 2 * kSteps * accelerator.num_processes();
  const auto data = torch::arange(4 * rows).view({rows, 4}).to(torch::kFloat) / 100;
  auto [model, optimizer, loader] = accelerator.prepare(
      net, sgd, DataLoader(make_tensor_dataset(data, data.sum(1, true)), {.batch_size = 2}));
  for (auto& [x, y] : loader) {
    accelerator.backward((model(x) - y).pow(2).mean());
    optimizer.step();
    optimizer.zero_grad();
  }
}

void train_and_save(Rank& rank) {
  train(rank);
  Accelerator accelerator;
  accelerator.save_state("/sim/state");
  accelerator.load_state("/sim/state");
}

void train_until_told(Rank& rank) {
  Accelerator accelerator;
  Net net;
  torch::optim::SGD sgd(net->parameters(), 0.01);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  int64_t steps = 0;
  for (; steps < kSteps; ++steps) {
    if (accelerator.termination()) accelerator.set_trigger();
    if (accelerator.check_trigger()) break;
    accelerator.backward(model(torch::ones({2, 4}, accelerator.device())).sum());
    optimizer.step();
    optimizer.zero_grad();
  }
  rank.report("steps", static_cast<double>(steps));
}

FaultRules rules(const std::string& text) { return FaultRules::parse(text).value(); }

std::string failure_of(Cluster cluster, void (*program)(Rank&)) {
  try {
    cluster.run_on_every_rank(program);
  } catch (const ClusterError& error) {
    return error.what();
  }
  return "";
}

TOPOLOGY_SUITE(FaultsInTraining, .min_ranks = 2, .max_ranks = 4,
               .hardware = simulator::Hardware::kNoTpu);

TEST_P(FaultsInTraining, CountStepsAndBatchesOfEveryRank) {
  Cluster cluster = make_cluster({.seed = 4, .count_sites = true});
  cluster.run_on_every_rank(train);
  for (const simulator::SiteCounts& counts : cluster.sites()) {
    EXPECT_EQ(counts.steps, kSteps);
    EXPECT_EQ(counts.of(Site::kBatch), kSteps + 1);  // the last one finds no more
  }
}

TEST_P(FaultsInTraining, StrikeAtStepsBatchesAndCheckpoints) {
  for (const auto& [plan, words] : std::vector<std::pair<std::string, std::string>>{
           {"rank 1 at step 2: crash", "rank 1 failed: rank 1 was killed at step 2"},
           {"rank 1 every 3 steps: exit(7)", "rank 1 exited with code 7 at step 3"},
           {"rank 1 at batch#3: fail(\"no such shard\")", "no such shard (rank 1 at batch#3"},
           {"rank 1 at step 1: hang", "rank 1 failed: rank 1 hung at step 1"},
           {"rank 0 at save 0: crash", "rank 0 was killed at save 0"},
           {"rank 1 at load 0: crash", "rank 1 was killed at load 0"}}) {
    EXPECT_THAT(
        failure_of(
            make_cluster({.seed = 4, .disk = std::make_shared<SimDisk>(), .faults = rules(plan)}),
            train_and_save),
        HasSubstr(words))
        << plan;
  }
}

TEST_P(FaultsInTraining, EndTogetherWhereOneRankIsToldOfItsEnd) {
  Cluster cluster = make_cluster({.seed = 4, .faults = rules("rank 1 at step 2: terminate(1h)")});
  cluster.run_on_every_rank(train_until_told);
  for (const at::Tensor& steps : cluster.reports("steps")) EXPECT_EQ(steps.item<double>(), 2);
}

// A dozen of each kind, spread over the run.
TEST_P(FaultsInTraining, EndTheRunWithTheDeathNamedWhereverItStrikes) {
  Cluster counting = make_cluster({.seed = 4, .count_sites = true});
  counting.run_on_every_rank(train);
  const simulator::SiteCounts counts = counting.sites()[1];
  for (const Site site : {Site::kOp, Site::kAlloc, Site::kCollective, Site::kStore, Site::kGroup}) {
    const int64_t stride = std::max<int64_t>(1, counts.of(site) / 12);
    for (int64_t number = 0; number < counts.of(site); number += stride) {
      const std::string at = absl::StrCat(to_string(site), "#", number);
      EXPECT_THAT(
          failure_of(
              make_cluster({.seed = 4, .faults = rules(absl::StrCat("rank 1 at ", at, ": crash"))}),
              train),
          HasSubstr(absl::StrCat("rank 1 failed: rank 1 was killed at ", at)));
    }
  }
}

}  // namespace
}  // namespace accelerate
