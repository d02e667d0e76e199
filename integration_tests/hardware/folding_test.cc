// Data-parallel training of a folded cluster takes the time and the memory of the whole one.
// Shapes of its own: they are what is compared.
#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "accelerate/config/fsdp_plugin.h"
#include "accelerate/mesh/mesh.h"
#include "simulator/cluster/cluster.h"
#include "simulator/disk/sim_disk.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::ClusterOptions;
using simulator::Folding;
using simulator::Rank;
using torch::Tensor;

// The same data on every rank, so that a folded rank's values are its representative's.
void train(Rank& rank, const AcceleratorOptions& accelerator_options = {}) {
  Accelerator accelerator(accelerator_options);
  torch::manual_seed(5);
  torch::nn::Sequential net(torch::nn::Linear(32, 64), torch::nn::ReLU(), torch::nn::Linear(64, 8));
  torch::optim::AdamW adamw(net->parameters(), 0.01);
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  std::vector<double> losses;
  for (int step = 0; step < 3; ++step) {
    const Tensor input = torch::randn({16, 32}).to(accelerator.device());
    Tensor loss = model(input).square().mean();
    accelerator.backward(loss);
    accelerator.clip_grad_norm_(net->parameters(), 1.0);
    optimizer.step();
    optimizer.zero_grad();
    losses.push_back(loss.item<double>());
  }
  accelerator.wait_for_everyone();
  // Without values the losses are NaN, which equals nothing.
  if (!rank.device()->computes_shapes()) {
    rank.report("losses", torch::tensor(losses, torch::kDouble));
  }
  rank.report("peak", static_cast<double>(rank.device()->memory().peak()));
}

class FoldedTraining : public ::testing::TestWithParam<const char*> {};

TEST_P(FoldedTraining, TakesTheTimeAndTheMemoryOfAllRanks) {
  const auto plainly = [](Rank& rank) { train(rank); };
  Cluster whole(GetParam(), {.seed = 2});
  whole.run_on_every_rank(plainly);
  ClusterOptions options{.seed = 2};
  options.fold = Folding{.spot_checks = 2, .with_real_numerics = true};
  Cluster part(GetParam(), options);
  EXPECT_EQ(part.executed().num_tasks(), 3);
  part.run_on_every_rank(plainly);
  EXPECT_EQ(part.elapsed(), whole.elapsed());
  for (const char* name : {"peak", "losses"}) {
    const std::vector<Tensor> expected = whole.reports(name);
    const std::vector<Tensor> actual = part.reports(name);
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(torch::equal(actual[i], expected[i])) << name << " of rank " << i;
    }
  }
}

// The whole and a folded run with shapes alone.
void expect_equal_costs(const char* spec, const Folding& folding,
                        const std::function<void(Rank&)>& train) {
  ClusterOptions options{.seed = 2, .numerics = simulator::Numerics::kShapes};
  options.largest_real_tensor = 4096;
  options.unknown_value = [](const std::string&) { return std::nan(""); };
  Cluster whole(spec, options);
  whole.run_on_every_rank(train);
  options.fold = folding;
  Cluster part(spec, options);
  EXPECT_TRUE(part.executed().folds());
  part.run_on_every_rank(train);
  EXPECT_EQ(part.elapsed(), whole.elapsed());
  for (int rank = 0; rank < whole.world_size(); ++rank) {
    EXPECT_TRUE(torch::equal(part.reports("peak")[rank], whole.reports("peak")[rank])) << rank;
  }
}

TEST_P(FoldedTraining, CostsTheSameWithShapesAlone) {
  expect_equal_costs(GetParam(), Folding{.spot_checks = 2}, [](Rank& rank) { train(rank); });
}

TEST_P(FoldedTraining, CostsTheSameOnAMesh) {
  const Mesh mesh({.dp_replicate = Cluster(GetParam()).world_size()});
  expect_equal_costs(GetParam(), Folding{.mesh = mesh}, [&](Rank& rank) {
    train(rank, {.parallelism_config = ParallelismConfig({.dp_replicate_size = mesh.num_ranks()})});
  });
}

// Trains and saves twice.
void train_and_save(const AcceleratorOptions& options, const std::string& folder) {
  Accelerator accelerator(options);
  torch::nn::Sequential net(torch::nn::Linear(64, 256), torch::nn::ReLU(),
                            torch::nn::Linear(256, 64));
  torch::optim::AdamW adamw(net->parameters(), 0.01);
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  for (int step = 0; step < 2; ++step) {
    const Tensor input = torch::randn({16, 64}).to(accelerator.device());
    accelerator.backward(model(input).square().mean());
    optimizer.step();
    optimizer.zero_grad();
    accelerator.save_state(folder);
    // Labels differ by rank, and one rank may count as another all the same.
    accelerator.gather_for_metrics(torch::full({16}, accelerator.process_index(), torch::kLong));
  }
}

// The disk is so slow that bytes count and latencies hardly do: how long after each other ranks ask
// for it is not simulated, which may cost a latency a file.
TEST(FoldedSaves, TakeTheTimeOfAllRanks) {
  const auto elapsed_us = [](const AcceleratorOptions& job, bool one_disk,
                             std::optional<Folding> folding) {
    ClusterOptions options{.seed = 2, .numerics = simulator::Numerics::kShapes};
    options.unknown_value = [](const std::string&) { return std::nan(""); };
    options.fold = std::move(folding);
    // One for all nodes, or one for each, which holds the machine's files.
    if (one_disk) options.disk = std::make_shared<simulator::SimDisk>();
    options.host_files_take_time = !one_disk;
    Cluster cluster("2x4:h100,disk=100MB/s,disk_latency=1us", options);
    const std::string folder = one_disk ? "/sim/saved" : testing::TempDir() + "/saved";
    cluster.run_on_every_rank([&](Rank&) { train_and_save(job, folder); });
    return absl::ToDoubleMicroseconds(cluster.elapsed());
  };
  FullyShardedDataParallelPlugin whole_dicts;
  whole_dicts.state_dict_type = StateDictType::kFullStateDict;
  FullyShardedDataParallelPlugin hybrid;
  hybrid.sharding_strategy = ShardingStrategy::kHybridShard;
  const Folding replicas{.rank_0_apart = true};
  Folding by_node = replicas;
  by_node.mesh = Mesh({.dp_replicate = 2, .dp_shard = 4});
  const std::pair<AcceleratorOptions, Folding> jobs[] = {
      {{}, replicas},
      {{.fsdp_plugin = FullyShardedDataParallelPlugin()}, replicas},
      {{.fsdp_plugin = whole_dicts}, replicas},
      {{.fsdp_plugin = hybrid}, by_node}};
  for (const bool one_disk : {true, false}) {
    for (const auto& [job, folding] : jobs) {
      const double whole = elapsed_us(job, one_disk, std::nullopt);
      EXPECT_GT(whole, 5000) << "the disk's time counts";
      EXPECT_NEAR(elapsed_us(job, one_disk, folding) / whole, 1, 0.01) << one_disk;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, FoldedTraining,
                         ::testing::Values("2x4:h100", "4x8:h100", "8x8:h100",
                                           "4x8:h100,efficiency=ideal"));

}  // namespace
}  // namespace accelerate
