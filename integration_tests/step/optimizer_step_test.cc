// Optimizers behind the Accelerator: the user's own, those that step during the backward pass, and
// those with other values for training than for evaluation.
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "accelerate/optim/foreach_optimizers.h"
#include "accelerate/optim/lomo.h"
#include "simulator/cluster/cluster.h"
#include "simulator/testing/topology_suite.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::Rank;
using ::testing::HasSubstr;

template <typename Function>
std::string error_of(Function function) {
  try {
    function();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

torch::nn::Linear made_net(uint64_t seed) {
  torch::manual_seed(seed);
  return torch::nn::Linear(3, 2);
}

torch::Tensor input_of(int rank, int step, torch::Device device) {
  torch::manual_seed(100 * step + rank);
  return torch::randn({4, 3}).to(device);
}

torch::Tensor loss_of(const torch::Tensor& output) { return output.square().mean(); }

// Ranks average; one rank that takes the mean over all ranks' inputs must come out the same.
TOPOLOGY_SUITE(LomoOnRanks, .also = {"1x2:h100"}, .min_ranks = 2,
               .hardware = simulator::Hardware::kNoTpu);

TEST_P(LomoOnRanks, StepsDuringTheBackwardPassOnAllRanksAlike) {
  torch::nn::Linear expected = made_net(0);
  torch::optim::SGD sgd(expected->parameters(), 0.1);
  for (int step = 0; step < 3; ++step) {
    torch::Tensor loss = torch::zeros({});
    for (int rank = 0; rank < world_size(); ++rank) {
      loss = loss + loss_of(expected(input_of(rank, step, torch::kCPU))) / world_size();
    }
    sgd.zero_grad();
    loss.backward();
    sgd.step();
  }
  for (const bool model_first : {true, false}) {
    make_cluster().run_on_every_rank([&](Rank& rank) {
      Accelerator accelerator;
      torch::nn::Linear net = made_net(rank.index());
      // Moved by hand, because preparing the optimizer first is to be tried as well.
      net->to(accelerator.device());
      optim::Lomo lomo(net->parameters(), 0.1);
      auto train = [&](auto model, auto optimizer) {
        EXPECT_TRUE(accelerator.has_lomo_optimizer());
        for (int step = 0; step < 3; ++step) {
          const torch::Tensor x = input_of(rank.index(), step, accelerator.device());
          accelerator.backward(loss_of(model(x)), {.learning_rate = 0.1});
          EXPECT_FALSE(net->weight.grad().defined());
          optimizer.step();
          optimizer.zero_grad();
        }
      };
      if (model_first) {
        auto [model, optimizer] = accelerator.prepare(net, lomo);
        train(model, optimizer);
      } else {
        auto [optimizer, model] = accelerator.prepare(lomo, net);
        train(model, optimizer);
      }
      EXPECT_TRUE(torch::allclose(net->weight.cpu(), expected->weight, 1e-5, 1e-6));
      EXPECT_TRUE(torch::allclose(net->bias.cpu(), expected->bias, 1e-5, 1e-6));
    });
  }
}

// One rank: each of these mistakes is a rank's own, before anything is collective.
TEST(Lomo, FollowsItsGroupsRatesAndMistakesAreNamed) {
  Cluster("1x1").run_on_every_rank([](Rank&) {
    Accelerator accelerator;
    torch::nn::Linear net = made_net(0);
    EXPECT_THAT(error_of([&] { accelerator.lomo_backward(net(torch::ones({1, 3})).sum()); }),
                HasSubstr("was a LOMO optimizer passed to prepare?"));
    optim::Lomo lomo(net->parameters(), 0.5), second(net->parameters(), 0.5);
    auto [model, optimizer] = accelerator.prepare(net, lomo);
    const torch::Tensor before = net->bias.detach().clone();
    accelerator.backward(model(torch::ones({1, 3})).sum());
    EXPECT_TRUE(torch::allclose(net->bias, before - 0.5));
    EXPECT_THAT(error_of([&] {
                  accelerator.backward(model(torch::ones({1, 3})).sum(), {.create_graph = true});
                }),
                HasSubstr("none of autograd's options"));
    EXPECT_THAT(error_of([&] {
                  accelerator.backward(model(torch::ones({1, 3})).sum(),
                                       {.learning_rate = std::numeric_limits<double>::quiet_NaN()});
                }),
                HasSubstr("learning rate"));
    auto other = accelerator.prepare(second);
    EXPECT_THAT(error_of([&] { accelerator.backward(model(torch::ones({1, 3})).sum()); }),
                HasSubstr("2 prepared optimizers step"));
  });
  Cluster("1x1:h100").run_on_every_rank([](Rank&) {
    Accelerator accelerator({.mixed_precision = PrecisionType::kFp16});
    torch::nn::Linear net = made_net(0);
    optim::AdaLomo adalomo(net->parameters(), 0.5);
    EXPECT_THAT(error_of([&] { accelerator.prepare(net, adalomo); }), HasSubstr("use bf16"));
  });
}

TEST(PreparedOptimizer, ShowsAndExtendsTheUsersOwn) {
  Cluster("1x2").run_on_every_rank([](Rank& rank) {
    Accelerator accelerator;
    torch::nn::Linear net = made_net(0);
    using Tensors = std::vector<torch::Tensor>;
    torch::optim::SGD sgd(Tensors{net->weight}, torch::optim::SGDOptions(0.1).momentum(0.9));
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    EXPECT_EQ(optimizer->defaults().get_lr(), 0.1);
    optimizer->add_param_group(torch::optim::OptimizerParamGroup(
        Tensors{net->bias}, std::make_unique<torch::optim::SGDOptions>(0.5)));
    EXPECT_EQ(optimizer->param_groups().size(), 2u);
    const torch::Tensor before = net->bias.detach().clone();
    accelerator.backward(loss_of(model(input_of(rank.index(), 0, accelerator.device()))));
    const torch::Tensor gradient = net->bias.grad().clone();
    optimizer.step();
    EXPECT_TRUE(torch::allclose(net->bias, before - 0.5 * gradient));
    EXPECT_EQ(optimizer->state().size(), 1u) << "only the first group has momentum";
    EXPECT_EQ(optimizer.state_dict().values.at("param_groups").size(), 2u);
  });
}

TOPOLOGY_SUITE(ScheduleFree, .hardware = simulator::Hardware::kNoTpu);

TEST_P(ScheduleFree, TrainsAndEvaluatesThroughThePreparedOptimizer) {
  make_cluster().run_on_every_rank([](Rank&) {
    Accelerator accelerator;
    torch::nn::Linear net = made_net(0);
    optim::ScheduleFreeAdamW adamw(net->parameters(), optim::ScheduleFreeAdamWOptions(0.1));
    auto [model, optimizer] = accelerator.prepare(net, adamw);
    optimizer.train();
    const torch::Tensor x = torch::ones({4, 3}).to(accelerator.device());
    for (int step = 0; step < 4; ++step) {
      accelerator.backward(loss_of(model(x * step)));
      optimizer.step();
      optimizer.zero_grad();
    }
    const torch::Tensor training = net->weight.detach().clone();
    optimizer.eval();
    EXPECT_FALSE(net->weight.equal(training));
    accelerator.backward(loss_of(model(x)));
    EXPECT_THAT(error_of([&] { optimizer.step(); }), HasSubstr("train()"));
    optimizer.train();
    EXPECT_TRUE(torch::allclose(net->weight, training, 1e-6, 1e-7));
    // Optimizers without such modes accept eval() and do nothing.
    torch::optim::SGD sgd(net->parameters(), 0.1);
    EXPECT_NO_THROW(accelerator.prepare(sgd).eval());
  });
}

}  // namespace
}  // namespace accelerate
