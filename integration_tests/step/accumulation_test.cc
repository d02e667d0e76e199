// Accumulated gradients give the step of one large batch, whatever the windows and ranks.
#include <algorithm>
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
using simulator::Rank;
using ::testing::FloatNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;

template <typename Function>
std::string error_of(Function function) {
  try {
    function();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

// Its gradient with respect to the weight is the mean of the batch.
struct DotImpl : torch::nn::Module {
  DotImpl() { weight = register_parameter("weight", torch::zeros({1})); }
  torch::Tensor forward(const torch::Tensor& x) { return x * weight; }
  torch::Tensor weight;
};
TORCH_MODULE(Dot);

float gradient(const Dot& net) { return net->weight.grad().cpu().item<float>(); }

// The gradients of each optimizer step over the batches 1, 2, 3, ..., one number each per rank.
std::vector<float> gradients_of_steps(Accelerator& accelerator, int64_t batches) {
  Dot net;
  torch::optim::SGD sgd(net->parameters(), 1.0);
  auto data = torch::arange(1, batches * accelerator.num_processes() + 1).to(torch::kFloat);
  auto [model, optimizer, loader] =
      accelerator.prepare(net, sgd, DataLoader(make_tensor_dataset(data, data), {.batch_size = 1}));
  std::vector<float> steps;
  for (auto& [x, y] : loader) {
    auto scope = accelerator.accumulate(model);
    accelerator.backward(model(x).mean());
    if (accelerator.sync_gradients()) steps.push_back(gradient(net));
    optimizer.step();
    optimizer.zero_grad();
  }
  return steps;
}

TOPOLOGY_SUITE(Accumulation, .hardware = simulator::Hardware::kNoTpu);

// The same numbers without anything of ours: with W ranks, micro-step n takes the W numbers from
// n W + 1 on. A window's gradient is the sum of its micro-steps' means, divided by `num_steps`, or,
// normalised, by as many as there were.
std::vector<float> expected_gradients(int64_t num_steps, int64_t batches, bool normalised) {
  const double ranks = simulator::TopologyTest::world_size();
  std::vector<float> steps;
  for (int64_t begin = 0; begin < batches; begin += num_steps) {
    const int64_t end = std::min(begin + num_steps, batches);
    double sum = 0;
    for (int64_t n = begin; n < end; ++n) sum += static_cast<double>(n) * ranks + (ranks + 1) / 2;
    steps.push_back(
        static_cast<float>(sum / static_cast<double>(normalised ? end - begin : num_steps)));
  }
  return steps;
}

TEST_P(Accumulation, TheLastWindowWeighsLessUnlessNormalised) {
  for (const bool normalised : {false, true}) {
    make_cluster().run_on_every_rank([&](Rank&) {
      Accelerator accelerator({.gradient_accumulation_plugin = GradientAccumulationPlugin{
                                   .num_steps = 4, .normalize_partial_window = normalised}});
      for (const int64_t batches : {1, 5, 6, 7, 8}) {
        EXPECT_THAT(gradients_of_steps(accelerator, batches),
                    Pointwise(FloatNear(1e-4f), expected_gradients(4, batches, normalised)))
            << batches << " batches";
      }
    });
  }
}

TEST_P(Accumulation, SeveralLossesShareANormalisedWindow) {
  make_cluster().run_on_every_rank([](Rank&) {
    Accelerator accelerator({.gradient_accumulation_plugin = GradientAccumulationPlugin{
                                 .num_steps = 4, .normalize_partial_window = true}});
    Dot net, other;
    // Two numbers for each rank.
    auto data = torch::arange(1, 2 * world_size() + 1).to(torch::kFloat);
    auto [model, second, loader] = accelerator.prepare(
        net, other, DataLoader(make_tensor_dataset(data, data), {.batch_size = 1}));
    for (auto& [x, y] : loader) {
      auto scope = accelerator.accumulate(model, second);
      accelerator.backward(model(x).mean());
      accelerator.backward(second(x).mean() * 10);
    }
    const float mean = data.mean().item<float>();
    EXPECT_NEAR(gradient(net), mean, 1e-4);
    EXPECT_NEAR(gradient(other), 10 * mean, 1e-3);
  });
}

TEST_P(Accumulation, SynchronisingEachBatchGivesTheSame) {
  for (const bool each : {false, true}) {
    make_cluster().run_on_every_rank([&](Rank&) {
      Accelerator accelerator({.gradient_accumulation_plugin = GradientAccumulationPlugin{
                                   .num_steps = 2, .sync_each_batch = each}});
      // With W ranks, each step takes the next 2 W numbers.
      const float ranks = static_cast<float>(accelerator.num_processes());
      EXPECT_EQ(gradients_of_steps(accelerator, 4),
                (std::vector<float>{ranks + 0.5f, 3 * ranks + 0.5f}));
    });
  }
}

TEST_P(Accumulation, ALoopThatIsLeftEarlyKeepsItsWindowAndTheNextBatchGoesOn) {
  make_cluster().run_on_every_rank([](Rank&) {
    Accelerator accelerator({.gradient_accumulation_steps = 2});
    Dot net;
    auto data = torch::arange(5 * world_size()).to(torch::kFloat);
    auto [model, loader] =
        accelerator.prepare(net, DataLoader(make_tensor_dataset(data, data), {.batch_size = 1}));
    std::vector<bool> synchronised;
    for (int epoch = 0; epoch < 2; ++epoch) {
      for ([[maybe_unused]] auto& batch : loader) {
        auto scope = accelerator.accumulate(model);
        synchronised.push_back(accelerator.sync_gradients());
        if (epoch == 0 && synchronised.size() == 3) break;
      }
    }
    EXPECT_EQ(synchronised,
              (std::vector<bool>{false, true, false, true, false, true, false, true}));
  });
}

// ---- Losses normalised by tokens.

// Ranks and micro-steps have different numbers of tokens, some of them none.
torch::Tensor tokens_of(int64_t step, int64_t rank, torch::Device device) {
  constexpr int64_t kTokens[4][2] = {{3, 1}, {0, 5}, {2, 2}, {7, 0}};
  torch::manual_seed(10 * step + rank);
  return torch::rand({kTokens[step][rank % 2]}).to(device);
}

TOPOLOGY_SUITE(BackwardTokens, .also = {"1x2:h100"}, .min_ranks = 2,
               .hardware = simulator::Hardware::kNoTpu);

TEST_P(BackwardTokens, GivesTheMeanOverAllTokensOfTheWindow) {
  for (const auto precision : {PrecisionType::kNo, PrecisionType::kFp16}) {
    make_cluster().run_on_every_rank([&](Rank& rank) {
      for (const int64_t window : {1, 2, 4}) {
        Accelerator accelerator({.mixed_precision = precision});
        accelerator.set_gradient_accumulation_steps(window);
        Dot net;
        torch::optim::SGD sgd(net->parameters(), 1.0);
        auto [model, optimizer] = accelerator.prepare(net, sgd);
        for (int64_t begin = 0; begin < 4; begin += window) {
          torch::Tensor sum = torch::zeros({}, torch::kDouble);
          int64_t count = 0;
          for (int64_t step = begin; step < begin + window; ++step) {
            auto scope = accelerator.accumulate(model);
            const auto x = tokens_of(step, rank.index(), accelerator.device());
            const auto total = accelerator.backward_tokens(model(x).sum(), x.numel());
            for (int r = 0; r < accelerator.num_processes(); ++r) {
              const auto tokens = tokens_of(step, r, torch::kCPU);
              sum += tokens.to(torch::kDouble).sum();
              count += tokens.numel();
            }
            EXPECT_EQ(total.defined(), step == begin + window - 1);
            if (total.defined()) EXPECT_EQ(total.item<int64_t>(), count);
          }
          accelerator.unscale_gradients();
          EXPECT_NEAR(gradient(net), sum.item<double>() / count, 1e-5) << window;
          net->weight.mutable_grad().zero_();
          if (accelerator.scaler()) accelerator.scaler()->update();
        }
        accelerator.free_memory();
      }
    });
  }
}

TOPOLOGY_SUITE(TokensOnRanks, .hardware = simulator::Hardware::kNoTpu);

TEST_P(TokensOnRanks, AWindowWithoutTokensHasNoGradient) {
  make_cluster().run_on_every_rank([](Rank&) {
    Accelerator accelerator;
    Dot net;
    auto model = accelerator.prepare(net);
    accelerator.backward_tokens(model(torch::zeros({0}).to(accelerator.device())).sum(), 0);
    EXPECT_EQ(gradient(net), 0.0);
  });
}

// One rank: its calls contradict each other, before anything is collective.
TEST(BackwardTokens, MistakesAreNamed) {
  Cluster("1x1").run_on_every_rank([](Rank&) {
    Accelerator accelerator({.gradient_accumulation_steps = 2});
    Dot net;
    auto model = accelerator.prepare(net);
    auto loss = [&] { return model(torch::ones({2})).sum(); };
    EXPECT_THAT(error_of([&] { accelerator.backward_tokens(loss(), -1); }), HasSubstr("-1 tokens"));
    {
      auto scope = accelerator.accumulate(model);
      accelerator.backward_tokens(loss(), 2);
      EXPECT_THAT(error_of([&] { accelerator.backward(loss()); }), HasSubstr("same accumulation"));
    }
    {
      auto scope = accelerator.accumulate(model);
      accelerator.backward_tokens(loss(), 2);
      EXPECT_THAT(error_of([&] { accelerator.backward_tokens(loss(), 2); }),
                  HasSubstr("summed already"));
    }
    {
      auto scope = accelerator.accumulate(model);
      accelerator.backward(loss());
      EXPECT_THAT(error_of([&] { accelerator.backward_tokens(loss(), 2); }),
                  HasSubstr("after backward()"));
    }
  });
}

// One rank: autograd's own arguments, and no model that ranks share.
TEST(Backward, PassesAutogradsArgumentsOn) {
  Cluster("1x1").run_on_every_rank([](Rank&) {
    Accelerator accelerator;
    torch::Tensor x = torch::tensor({2.f, 3.f}, torch::requires_grad());
    torch::Tensor y = torch::ones({2}, torch::requires_grad());
    torch::Tensor cube = x * x * x * y;
    accelerator.backward(cube, {.gradient = torch::tensor({1.f, 10.f}),
                                .retain_graph = true,
                                .create_graph = true,
                                .inputs = std::vector<torch::Tensor>{x}});
    EXPECT_TRUE(x.grad().equal(torch::tensor({12.f, 270.f})));
    EXPECT_FALSE(y.grad().defined());
    EXPECT_TRUE(x.grad().requires_grad());
    EXPECT_NO_THROW(accelerator.backward(cube.sum()));
  });
}

}  // namespace
}  // namespace accelerate
