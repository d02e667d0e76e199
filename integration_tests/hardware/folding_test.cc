// Data-parallel training of a folded cluster takes the time and the memory of the whole one.
// Shapes of its own: they are what is compared.
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::ClusterOptions;
using simulator::Folding;
using simulator::Rank;
using torch::Tensor;

// The same data on every rank, so that a folded rank's values are its representative's.
void train(Rank& rank) {
  Accelerator accelerator;
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
  rank.report("losses", torch::tensor(losses, torch::kDouble));
  rank.report("peak", static_cast<double>(rank.device()->memory().peak()));
}

class FoldedTraining : public ::testing::TestWithParam<const char*> {};

TEST_P(FoldedTraining, TakesTheTimeAndTheMemoryOfAllRanks) {
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

INSTANTIATE_TEST_SUITE_P(Shapes, FoldedTraining,
                         ::testing::Values("2x4:h100", "4x8:h100", "8x8:h100"));

}  // namespace
}  // namespace accelerate
