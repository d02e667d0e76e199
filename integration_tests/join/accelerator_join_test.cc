// join_uneven_inputs as users call it: loaders, optimizers and schedulers of an Accelerator.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "simulator/cluster/cluster.h"
#include "simulator/testing/topology_suite.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::ClusterError;
using simulator::Rank;
using ::testing::HasSubstr;

TOPOLOGY_SUITE(AcceleratorJoin, .min_ranks = 2, .hardware = simulator::Hardware::kNoTpu);

TEST_P(AcceleratorJoin, BringsModelsOptimizersAndSchedulersUpToDate) {
  const auto ranks = static_cast<size_t>(world_size());
  std::vector<double> rates(ranks);
  std::vector<at::Tensor> weights(ranks);
  std::vector<int> batches(ranks);
  make_cluster({.seed = 1}).run_on_every_rank([&](Rank& rank) {
    const auto r = static_cast<size_t>(rank.index());
    Accelerator accelerator;
    torch::manual_seed(1);
    torch::nn::Linear net(1, 1);
    torch::optim::Adam adam(net->parameters(), torch::optim::AdamOptions(0.1));
    torch::optim::StepLR step_lr(adam, 5, 0.5);
    // Two batches for rank 0, one for the others.
    const int64_t samples = accelerator.num_processes() + 1;
    DataLoader data(make_tensor_dataset(torch::arange(1. * samples).reshape({samples, 1})),
                    {.batch_size = 1});
    auto [model, optimizer, scheduler, loader] = accelerator.prepare(net, adam, step_lr, data);
    auto epoch = [&] {
      for (auto& [x] : loader) {
        ++batches[r];
        accelerator.backward(model(x).pow(2).mean());
        optimizer.step();
        scheduler.step();
        optimizer.zero_grad();
      }
    };
    for (int i = 0; i < 4; ++i) {
      auto join = accelerator.join_uneven_inputs({.even_batches = false}, model);
      EXPECT_FALSE(loader.even_batches());
      epoch();
    }
    EXPECT_TRUE(loader.even_batches());
    epoch();
    rates[r] = adam.param_groups()[0].options().get_lr();
    weights[r] = model->weight.detach().cpu();
  });
  for (size_t rank = 0; rank < ranks; ++rank) {
    EXPECT_EQ(batches[rank], rank == 0 ? 4 * 2 + 2 : 4 * 1 + 2);
    EXPECT_EQ(rates[rank], rates[0]);
    EXPECT_TRUE(torch::equal(weights[rank], weights[0]));
  }
}

TOPOLOGY_SUITE(AcceleratorJoinOfThree, .also = {"1x3"}, .min_ranks = 3,
               .hardware = simulator::Hardware::kNoTpu);

TEST_P(AcceleratorJoinOfThree, ThrowsWhatFollowingTheOthersThrows) {
  std::string message;
  try {
    make_cluster({.seed = 1}).run_on_every_rank([](Rank& rank) {
      Accelerator accelerator;
      torch::nn::Linear first(1, 1);
      torch::nn::Linear second(1, 1);
      auto [a, b] = accelerator.prepare(first, second);
      auto join = accelerator.join_uneven_inputs({.even_batches = false}, a, b);
      const torch::Tensor x = torch::ones({1, 1}).to(accelerator.device());
      if (rank.index() == 1) a(x);
      if (rank.index() == 2) b(x);
    });
  } catch (const ClusterError& error) {
    message = error.what();
  }
  EXPECT_THAT(message, HasSubstr("rank 1 begins a forward pass of model 0"));
}

TEST_P(AcceleratorJoin, LeavesOptimizersOfOtherModelsAlone) {
  std::vector<double> rates(static_cast<size_t>(world_size()));
  make_cluster({.seed = 1}).run_on_every_rank([&](Rank& rank) {
    Accelerator accelerator;
    torch::nn::Linear joined(1, 1);
    torch::nn::Linear own(1, 1);
    torch::optim::SGD sgd(joined->parameters(), 0.1);
    torch::optim::SGD other(own->parameters(), 0.1 * (rank.index() + 1));
    auto [model, optimizer, own_optimizer] = accelerator.prepare(joined, sgd, other);
    {
      auto join = accelerator.join_uneven_inputs({.even_batches = false}, model);
      if (rank.index() == 0) {
        accelerator.backward(model(torch::ones({1, 1}).to(accelerator.device())).mean());
      }
    }
    rates[static_cast<size_t>(rank.index())] = other.param_groups()[0].options().get_lr();
  });
  for (size_t rank = 0; rank < rates.size(); ++rank) {
    EXPECT_EQ(rates[rank], 0.1 * static_cast<double>(rank + 1));
  }
}

}  // namespace
}  // namespace accelerate
