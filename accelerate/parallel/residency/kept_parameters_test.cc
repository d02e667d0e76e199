// Parameters that stay in memory between passes train as those that are gathered for each pass.
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/operators/managed_storage.h"
#include "accelerate/parallel/residency/shards.h"
#include "accelerate/testing/fake_runtime.h"
#include "accelerate/testing/threaded_group.h"

namespace accelerate {
namespace {

using torch::Tensor;
namespace nn = torch::nn;

// Rows that divide and do not, fewer rows than ranks, a number, and parameters that are not used
// and not trained.
struct NetImpl : nn::Module {
  NetImpl() {
    first = register_module("first", nn::Linear(6, 8));
    second = register_module("second", nn::Linear(8, 5));
    last = register_module("last", nn::Linear(5, 2));
    unused = register_module("unused", nn::Linear(3, 3));
    scale = register_parameter("scale", torch::ones({}));
    const torch::NoGradGuard no_grad;
    for (Tensor& each : parameters()) {
      each.copy_(torch::cos(torch::arange(1. * each.numel())).view_as(each) / 2);
    }
    second->bias.set_requires_grad(false);
  }
  Tensor forward(const Tensor& x) {
    return last(torch::tanh(second(torch::tanh(first(x))))) * scale;
  }
  nn::Linear first{nullptr}, second{nullptr}, last{nullptr}, unused{nullptr};
  Tensor scale;
};
TORCH_MODULE(Net);

void on_ranks(int ranks, const std::function<void(const ProcessGroupPtr&)>& body) {
  run_ranks(ranks, [&body](const ProcessGroupPtr& group) {
    FakeRuntime runtime({.rank = group->getRank(), .world_size = group->getSize()});
    const RuntimeScope scope(runtime);
    body(group);
  });
}

Tensor loss_of(ShardedParameters& sharded, Net& net, int step, int rank) {
  sharded.begin_step();
  const Residency::Pass pass(*sharded.residency());
  const Tensor x = torch::sin(torch::arange(24.).reshape({4, 6}) * (1 + rank) + step);
  return net->forward(x.to(net->first->weight.scalar_type())).square().mean();
}

std::vector<Tensor> shards_of(const ShardedParameters& sharded) {
  std::vector<Tensor> shards;
  for (const auto& each : sharded.shards()) shards.push_back(each.shard);
  return shards;
}

using Optimizers =
    std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<Tensor> parameters)>;

std::unique_ptr<torch::optim::Optimizer> sgd(std::vector<Tensor> parameters) {
  return std::make_unique<torch::optim::SGD>(std::move(parameters),
                                             torch::optim::SGDOptions(0.1).momentum(0.9));
}
std::unique_ptr<torch::optim::Optimizer> adam(std::vector<Tensor> parameters) {
  return std::make_unique<torch::optim::Adam>(std::move(parameters),
                                              torch::optim::AdamOptions(0.01));
}

// Shards after steps of `micro_steps` passes each, and the losses.
std::vector<Tensor> train(const ProcessGroupPtr& group, ShardingOptions options,
                          const Optimizers& make, int micro_steps, bool each_synchronises) {
  Net net;
  options.group_bytes = 1;
  ShardedParameters sharded(*net, {.shards = group}, c10::kCPU, options);
  const auto optimizer = make(shards_of(sharded));
  std::vector<Tensor> results;
  for (int step = 0; step < 4 * micro_steps; ++step) {
    const bool steps = (step + 1) % micro_steps == 0;
    sharded.set_synchronises(steps || each_synchronises);
    const Tensor loss = loss_of(sharded, net, step, group->getRank());
    loss.backward();
    results.push_back(loss.detach());
    if (!steps) continue;
    // LibTorch's SGD leaves versions as they are; see SharedOptimizer.
    optimizer->step();
    for (const auto& each : sharded.shards()) each.shard.unsafeGetTensorImpl()->bump_version();
    optimizer->zero_grad();
  }
  const WholeParameters scope(sharded.residency());
  for (const Tensor& each : net->parameters()) results.push_back(each.detach().clone());
  return results;
}

// The options' ways to keep parameters.
ShardingOptions keeps_parameters(ShardingOptions options = {}) {
  options.keeps_parameters = true;
  return options;
}
ShardingOptions keeps_gathered(ShardingOptions options = {}) {
  options.reshard_after_backward = false;
  return options;
}
ShardingOptions keeps_cast(ShardingOptions options = {}) {
  options.keeps_cast_shards = true;
  return options;
}

TEST(KeptParameters, TrainAsThoseThatAreGatheredForEachPass) {
  const std::vector<ShardingOptions> precisions = {{}, {.param_dtype = torch::kBFloat16}};
  for (const int ranks : {1, 2, 3}) {
    on_ranks(ranks, [&](const ProcessGroupPtr& group) {
      for (const ShardingOptions& options : precisions) {
        for (const Optimizers& make : {Optimizers(&sgd), Optimizers(&adam)}) {
          for (const auto& [micro_steps, each] :
               std::vector<std::pair<int, bool>>{{1, true}, {2, false}, {2, true}}) {
            const auto expected = train(group, options, make, micro_steps, each);
            for (const ShardingOptions& kept :
                 {keeps_parameters(options), keeps_gathered(options), keeps_cast(options)}) {
              const auto results = train(group, kept, make, micro_steps, each);
              ASSERT_EQ(results.size(), expected.size());
              for (size_t i = 0; i < results.size(); ++i) {
                EXPECT_TRUE(torch::equal(results[i], expected[i]))
                    << i << " on rank " << group->getRank() << " of " << ranks;
              }
            }
          }
        }
      }
    });
  }
}

TEST(KeptParameters, AreGatheredAgainOnlyAfterTheirShardsChanged) {
  on_ranks(2, [](const ProcessGroupPtr& group) {
    for (const ShardingOptions& options : {keeps_parameters(), keeps_gathered()}) {
      Net net;
      ShardedParameters sharded(*net, {.shards = group}, c10::kCPU, options);
      const auto brought = [&] { return sharded.residency()->times_brought(); };
      loss_of(sharded, net, 0, group->getRank()).backward();
      const int64_t first = brought();
      EXPECT_GT(first, 0);
      EXPECT_GT(sharded.residency()->bytes_in_memory(), 0);
      loss_of(sharded, net, 1, group->getRank()).backward();
      {
        const torch::NoGradGuard no_grad;
        loss_of(sharded, net, 2, group->getRank());
      }
      EXPECT_EQ(brought(), first);
      adam(shards_of(sharded))->step();
      loss_of(sharded, net, 3, group->getRank()).backward();
      EXPECT_EQ(brought(), 2 * first);
    }
  });
}

TEST(KeptParameters, StayUntilTheyAreUsedAgainWithinADistance) {
  // How often groups are gathered in the third step, of four groups with 56, 45, 12 and 1 elements.
  const auto gathers = [](ShardingOptions options) {
    int64_t count = 0;
    on_ranks(2, [&](const ProcessGroupPtr& group) {
      Net net;
      options.group_bytes = 1;
      ShardedParameters sharded(*net, {.shards = group}, c10::kCPU, options);
      int64_t before = 0;
      for (int step = 0; step < 3; ++step) {
        before = sharded.residency()->times_brought();
        loss_of(sharded, net, step, group->getRank()).backward();
        EXPECT_EQ(sharded.residency()->bytes_in_memory(), 0);
      }
      if (group->getRank() == 0) count = sharded.residency()->times_brought() - before;
    });
    return count;
  };
  const int64_t all = 1'000'000;
  const int64_t in_turn = gathers({});
  const int64_t once = gathers({.max_reuse_distance = all});
  EXPECT_LT(once, in_turn);
  EXPECT_EQ(gathers({.max_reuse_distance = all, .max_live = 0}), in_turn);
  // What is in memory already counts too. One below, and at, what two of the groups have together,
  // which is no less than each of them has alone.
  EXPECT_EQ(gathers({.max_reuse_distance = all, .max_live = 45 + 12 - 1}), in_turn);
  EXPECT_EQ(gathers({.max_reuse_distance = all, .max_live = 45 + 12}), once);
  const int64_t some = gathers({.max_reuse_distance = 30});
  EXPECT_LE(once, some);
  EXPECT_LE(some, in_turn);
}

TEST(KeptParameters, HaveTheirShardsAsPartOfTheirMemory) {
  on_ranks(2, [](const ProcessGroupPtr& group) {
    Net net;
    ShardedParameters sharded(*net, {.shards = group}, c10::kCPU, keeps_parameters());
    loss_of(sharded, net, 0, group->getRank()).backward();
    for (const auto& each : sharded.shards()) {
      if (each.name.starts_with("unused")) continue;
      const int64_t numel = each.parameter.numel();
      const int64_t rows = each.parameter.dim() == 0 ? 1 : each.parameter.size(0);
      const int64_t padded = (rows + 1) / 2 * (numel / rows);
      EXPECT_EQ(each.shard.data_ptr<float>(),
                each.parameter.data_ptr<float>() + padded * group->getRank())
          << each.name;
      EXPECT_EQ(each.shard.storage().nbytes(), 2 * padded * sizeof(float)) << each.name;
    }
  });
}

TEST(KeptParameters, TakeOverWhatAScopeWritesUnlessItFails) {
  on_ranks(2, [](const ProcessGroupPtr& group) {
    for (const ShardingOptions& options : {keeps_parameters(), keeps_gathered()}) {
      Net net;
      ShardedParameters sharded(*net, {.shards = group}, c10::kCPU, options);
      const auto loss = [&] {
        const torch::NoGradGuard no_grad;
        return loss_of(sharded, net, 0, group->getRank()).item<float>();
      };
      const float before = loss();
      try {
        const WholeParameters scope(sharded.residency());
        const torch::NoGradGuard no_grad;
        net->last->weight.zero_();
        throw std::runtime_error("in the scope");
      } catch (const std::runtime_error&) {
      }
      EXPECT_EQ(loss(), before);
      {
        const WholeParameters scope(sharded.residency());
        const torch::NoGradGuard no_grad;
        // Each rank keeps its own rows.
        net->last->weight.fill_(group->getRank());
        net->last->bias.zero_();
      }
      const WholeParameters scope(sharded.residency(), {.writeback = false});
      EXPECT_TRUE(torch::equal(net->last->weight, torch::tensor({{0.f}, {1.f}}).expand({2, 5})));
    }
  });
}

TEST(KeptParameters, AddUpGradientsInTheDtypeAskedFor) {
  on_ranks(2, [](const ProcessGroupPtr& group) {
    Net net;
    ShardedParameters sharded(
        *net, {.shards = group}, c10::kCPU,
        {.param_dtype = torch::kBFloat16, .gradient_dtype = torch::kBFloat16});
    for (int pass = 0; pass < 2; ++pass) {
      loss_of(sharded, net, pass, group->getRank()).backward();
    }
    for (const auto& each : sharded.shards()) {
      EXPECT_EQ(each.shard.scalar_type(), torch::kFloat);
      if (each.shard.grad().defined()) EXPECT_EQ(each.shard.grad().scalar_type(), torch::kBFloat16);
    }
    EXPECT_TRUE(sharded.shards()[1].shard.grad().any().item<bool>());
  });
}

}  // namespace
}  // namespace accelerate
