// Data-parallel training of a folded cluster takes the time and the memory of the whole one.
// Shapes of its own: they are what is compared.
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "accelerate/mesh/mesh.h"
#include "simulator/cluster/cluster.h"

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
  const auto train = [](Rank& rank) { accelerate::train(rank); };
  Cluster whole(GetParam(), {.seed = 2});
  whole.run_on_every_rank(train);
  ClusterOptions options{.seed = 2};
  options.fold = Folding{.spot_checks = 2, .with_real_numerics = true};
  Cluster part(GetParam(), options);
  EXPECT_EQ(part.executed().num_tasks(), 3);
  part.run_on_every_rank(train);
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

INSTANTIATE_TEST_SUITE_P(Shapes, FoldedTraining,
                         ::testing::Values("2x4:h100", "4x8:h100", "8x8:h100",
                                           "4x8:h100,efficiency=ideal"));

}  // namespace
}  // namespace accelerate
