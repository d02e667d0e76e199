// join_uneven_inputs as users call it: loaders, optimizers and schedulers of an Accelerator.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::ClusterError;
using simulator::Rank;
using ::testing::HasSubstr;

TEST(AcceleratorJoin, BringsModelsOptimizersAndSchedulersUpToDate) {
  std::vector<double> rates(2);
  std::vector<at::Tensor> weights(2);
  std::vector<int> batches(2);
  Cluster("1x2", {.seed = 1}).run_on_every_rank([&](Rank& rank) {
    const auto r = static_cast<size_t>(rank.index());
    Accelerator accelerator;
    torch::manual_seed(1);
    torch::nn::Linear net(1, 1);
    torch::optim::Adam adam(net->parameters(), torch::optim::AdamOptions(0.1));
    torch::optim::StepLR step_lr(adam, 5, 0.5);
    DataLoader data(make_tensor_dataset(torch::arange(3.0).reshape({3, 1})), {.batch_size = 1});
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
    weights[r] = model->weight.detach().clone();
  });
  EXPECT_EQ(batches[0], 4 * 2 + 2);
  EXPECT_EQ(batches[1], 4 * 1 + 2);
  EXPECT_EQ(rates[0], rates[1]);
  EXPECT_TRUE(torch::equal(weights[0], weights[1]));
}

TEST(AcceleratorJoin, ThrowsWhatFollowingTheOthersThrows) {
  std::string message;
  try {
    Cluster("1x3", {.seed = 1}).run_on_every_rank([](Rank& rank) {
      Accelerator accelerator;
      torch::nn::Linear first(1, 1);
      torch::nn::Linear second(1, 1);
      auto [a, b] = accelerator.prepare(first, second);
      auto join = accelerator.join_uneven_inputs({.even_batches = false}, a, b);
      if (rank.index() == 1) a(torch::ones({1, 1}));
      if (rank.index() == 2) b(torch::ones({1, 1}));
    });
  } catch (const ClusterError& error) {
    message = error.what();
  }
  EXPECT_THAT(message, HasSubstr("rank 1 begins a forward pass of model 0"));
}

TEST(AcceleratorJoin, LeavesOptimizersOfOtherModelsAlone) {
  std::vector<double> rates(2);
  Cluster("1x2", {.seed = 1}).run_on_every_rank([&](Rank& rank) {
    Accelerator accelerator;
    torch::nn::Linear joined(1, 1);
    torch::nn::Linear own(1, 1);
    torch::optim::SGD sgd(joined->parameters(), 0.1);
    torch::optim::SGD other(own->parameters(), 0.1 * (rank.index() + 1));
    auto [model, optimizer, own_optimizer] = accelerator.prepare(joined, sgd, other);
    {
      auto join = accelerator.join_uneven_inputs({.even_batches = false}, model);
      if (rank.index() == 0) accelerator.backward(model(torch::ones({1, 1})).mean());
    }
    rates[static_cast<size_t>(rank.index())] = other.param_groups()[0].options().get_lr();
  });
  EXPECT_THAT(rates, ::testing::ElementsAre(0.1, 0.2));
}

}  // namespace
}  // namespace accelerate
