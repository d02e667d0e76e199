// Ranks that share parameters find out where they do not do the same, and go on after passes that
// failed, that use no values, or whose values have changed.
#include "accelerate/parallel/residency/step_comparison.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <initializer_list>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/comm/backends/backend_registry.h"
#include "accelerate/operators/managed_storage.h"
#include "accelerate/parallel/residency/shards.h"
#include "accelerate/testing/fake_runtime.h"
#include "accelerate/testing/threaded_group.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using torch::Tensor;
namespace nn = torch::nn;

template <typename Body>
std::string error_of(Body body) {
  try {
    body();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

void on_ranks(int ranks, const std::function<void(const ProcessGroupPtr&)>& body) {
  run_ranks(ranks, [&body](const ProcessGroupPtr& group) {
    FakeRuntime runtime({.rank = group->getRank(), .world_size = group->getSize()});
    const RuntimeScope scope(runtime);
    try {
      body(group);
    } catch (const std::exception& error) {
      // The process ends now, without a word of why.
      std::fprintf(stderr, "rank %d: %s\n", group->getRank(), error.what());
      throw;
    }
  });
}

// Two layers of the same sizes, a group each.
struct Layers {
  explicit Layers(const ShardGroups& groups)
      : sharded(*net, groups, c10::kCPU, {.group_bytes = 1}) {
    rank = (groups.replicas ? groups.replicas : groups.shards)->getRank();
  }

  nn::LinearImpl& layer(int index) { return net->at<nn::LinearImpl>(index); }
  Tensor shard(const std::string& name) const {
    return std::ranges::find(sharded.shards(), name, &ShardedParameters::Shard::name)->shard;
  }

  // Which of them are used, in what order; a layer without its bias is 10 more.
  Tensor forward(std::initializer_list<int> layers) {
    sharded.begin_step();
    const Residency::Pass pass(*sharded.residency());
    Tensor y = torch::ones({1, 5}) + rank;
    for (const int each : layers) {
      y = each < 10 ? layer(each).forward(y) : torch::linear(y, layer(each % 10).weight);
      y = torch::tanh(y);
    }
    return y.sum();
  }
  void step(std::initializer_list<int> layers) { forward(layers).backward(); }

  std::unique_ptr<torch::optim::Optimizer> adam() const {
    std::vector<Tensor> shards;
    for (const auto& each : sharded.shards()) shards.push_back(each.shard);
    return std::make_unique<torch::optim::Adam>(shards, torch::optim::AdamOptions(0.01));
  }
  void train(torch::optim::Optimizer& optimizer) {
    step({0, 1});
    optimizer.step();
    net->zero_grad();
  }

  static nn::Sequential same_on_all_ranks() {
    nn::Sequential net{nn::Linear(5, 5), nn::Linear(5, 5)};
    const torch::NoGradGuard no_grad;
    for (Tensor& each : net->parameters()) {
      each.copy_(torch::cos(torch::arange(1. * each.numel())).view_as(each) / 2);
    }
    return net;
  }

  nn::Sequential net = same_on_all_ranks();
  ShardedParameters sharded;
  int rank = 0;
};

void expect_same_shards(const Layers& a, const Layers& b) {
  for (size_t i = 0; i < a.sharded.shards().size(); ++i) {
    EXPECT_TRUE(torch::equal(a.sharded.shards()[i].shard, b.sharded.shards()[i].shard))
        << a.sharded.shards()[i].name;
  }
}

constexpr char kFirst[] = "parameters \"0.weight\" to \"0.bias\"";
constexpr char kSecond[] = "parameters \"1.weight\" to \"1.bias\"";

TEST(StepComparison, FindsRanksThatUseParametersInOtherOrders) {
  on_ranks(2, [](const ProcessGroupPtr& group) {
    Layers layers({.shards = group});
    const bool turned = group->getRank() == 1;
    const auto differs =
        HasSubstr(std::string("rank 0 used ") + kFirst + ", and rank 1 used " + kSecond);
    const auto step = [&] { turned ? layers.step({1, 0}) : layers.step({0, 1}); };
    EXPECT_THAT(error_of(step), differs);
    // The order may change in all ranks.
    for (int i = 0; i < 2; ++i) {
      layers.step({0, 1});
      layers.step({1, 0});
      layers.step({1});
    }
    // A rank that departs alone is found when its backward pass ends.
    layers.step({0, 1});
    EXPECT_THAT(error_of(step), differs);
    layers.step({1, 0});
    // A pass without gradients does not reduce any: the next one that does finds it.
    {
      const torch::NoGradGuard no_grad;
      for (int i = 0; i < 2; ++i) layers.forward({0, 1});
      turned ? layers.forward({1, 0}) : layers.forward({0, 1});
      layers.forward({0, 1});
    }
    EXPECT_THAT(error_of([&] { layers.step({1, 0}); }),
                HasSubstr("in a pass before this one, without gradients: rank 1 used other "
                          "parameters than rank 0"));
    layers.step({1, 0});
  });
}

TEST(StepComparison, FindsRanksThatLackGradients) {
  on_ranks(2, [](const ProcessGroupPtr& group) {
    const bool lacks = group->getRank() == 1;
    const auto differs = HasSubstr(
        "differ in the gradient of parameter \"1.bias\": rank 0 has one, and rank 1 has none");
    Layers layers({.shards = group});
    const auto step = [&] { lacks ? layers.step({0, 11}) : layers.step({0, 1}); };
    EXPECT_THAT(error_of(step), differs) << "in the first step";
    layers.net->zero_grad();
    layers.step({0, 1});
    const Tensor bias = layers.shard("1.bias"), expected = bias.grad().clone();
    EXPECT_THAT(error_of(step), differs) << "in a later step";
    // Where all ranks lack it, there are no zeros in its place.
    layers.net->zero_grad();
    layers.step({0, 11});
    EXPECT_FALSE(bias.grad().defined());
    layers.step({0, 1});
    EXPECT_TRUE(torch::equal(bias.grad(), expected));
    // A rank without any gradient of a group.
    Layers others({.shards = group});
    EXPECT_THAT(error_of([&] {
                  Tensor loss;
                  {
                    const Residency::Pass pass(*others.sharded.residency());
                    const Tensor y = others.layer(0).forward(torch::ones({1, 5}));
                    loss = others.layer(1).forward(lacks ? y.detach() : y).sum();
                  }
                  loss.backward();
                }),
                AllOf(HasSubstr("ranks that share parameters"), HasSubstr(kFirst)));
  });
}

// Each replica has all rows.
TEST(StepComparison, FindsReplicasThatLackGradients) {
  on_ranks(2, [](const ProcessGroupPtr& replicas) {
    run_ranks(1, [&](const ProcessGroupPtr& shards) {
      FakeRuntime runtime({.rank = replicas->getRank(), .world_size = 2});
      const RuntimeScope scope(runtime);
      Layers layers({.shards = shards, .replicas = replicas});
      const bool lacks = replicas->getRank() == 1;
      const auto step = [&] { lacks ? layers.step({0, 11}) : layers.step({0, 1}); };
      const auto differs = HasSubstr(
          "differ in the gradient of parameter \"1.bias\": rank 0 has one, and rank 1 has none");
      EXPECT_THAT(error_of(step), differs);
      layers.step({0, 1});
      EXPECT_THAT(error_of(step), differs);
      layers.step({0, 1});
    });
  });
}

// What earlier passes have left goes to the replicas with the pass that adds up over them, also for
// a parameter or a whole group that this pass gives no gradient.
TEST(ShardedParameters, AddUpSumsThatWaitOverReplicasWithoutAGradientInTheLastPass) {
  on_ranks(2, [](const ProcessGroupPtr& replicas) {
    run_ranks(1, [&](const ProcessGroupPtr& shards) {
      FakeRuntime runtime({.rank = replicas->getRank(), .world_size = 2});
      const RuntimeScope scope(runtime);
      Layers plain({.shards = shards, .replicas = replicas});
      plain.step({0, 1});
      for (const auto last : {std::initializer_list<int>{0, 11}, std::initializer_list<int>{0}}) {
        Layers layers({.shards = shards, .replicas = replicas});
        const auto all_reduce = [&](bool all_reduces) {
          for (const int group : {0, 1}) {
            layers.sharded.gradients().set_all_reduces(group, all_reduces);
          }
        };
        all_reduce(false);
        layers.step({0, 1});
        EXPECT_FALSE(layers.shard("1.bias").grad().defined());
        all_reduce(true);
        layers.step(last);
        const Tensor gradient = layers.shard("1.bias").grad();
        ASSERT_TRUE(gradient.defined()) << last.size();
        EXPECT_TRUE(torch::allclose(gradient, plain.shard("1.bias").grad())) << last.size();
      }
    });
  });
}

TEST(ShardedParameters, RefuseABackwardPassThroughValuesThatAStepChanged) {
  on_ranks(2, [](const ProcessGroupPtr& group) {
    Layers layers({.shards = group});
    const auto optimizer = layers.adam();
    const Tensor early = layers.forward({0, 1});
    layers.train(*optimizer);
    EXPECT_THAT(error_of([&] { early.backward(); }), HasSubstr("modified by an inplace operation"));
    layers.net->zero_grad();
    // What only the backward pass computes has the new values, as without shards.
    const Tensor loss = layers.forward({0});
    Tensor seen;
    loss.register_hook([&](const Tensor&) { seen = layers.layer(0).bias.detach().sum(); });
    {
      const torch::NoGradGuard no_grad;
      layers.shard("0.bias").fill_(0.25);
    }
    EXPECT_GT(layers.sharded.residency()->bytes_in_memory(), 0);
    loss.backward();
    EXPECT_EQ(seen.item<float>(), 5 * 0.25);
  });
}

TEST(ShardedParameters, TrainInAScopeThatDoesNotWriteBack) {
  on_ranks(2, [](const ProcessGroupPtr& group) {
    Layers layers({.shards = group}), plain({.shards = group});
    const auto optimizer = layers.adam(), plain_optimizer = plain.adam();
    {
      const WholeParameters scope(layers.sharded.residency(), {.writeback = false});
      for (int i = 0; i < 3; ++i) layers.train(*optimizer);
    }
    for (int i = 0; i < 3; ++i) plain.train(*plain_optimizer);
    expect_same_shards(layers, plain);
  });
}

TEST(ShardedParameters, FollowWhichOnesTheModuleTrains) {
  on_ranks(2, [](const ProcessGroupPtr& group) {
    Layers layers({.shards = group}), plain({.shards = group});
    layers.layer(0).weight.set_requires_grad(false);
    layers.step({0, 1});
    EXPECT_FALSE(layers.shard("0.weight").grad().defined());
    EXPECT_FALSE(layers.shard("0.weight").requires_grad());
    layers.layer(0).weight.set_requires_grad(true);
    layers.layer(1).bias.set_requires_grad(false);
    layers.net->zero_grad();
    layers.step({0, 1});
    plain.step({0, 1});
    EXPECT_FALSE(layers.shard("1.bias").grad().defined());
    for (const char* name : {"0.weight", "0.bias", "1.weight"}) {
      EXPECT_TRUE(layers.shard(name).requires_grad());
      EXPECT_TRUE(torch::equal(layers.shard(name).grad(), plain.shard(name).grad())) << name;
    }
    // One that was frozen when it was divided.
    nn::Linear frozen(5, 5);
    frozen->weight.set_requires_grad(false);
    ShardedParameters sharded(*frozen, {.shards = group}, c10::kCPU);
    frozen->weight.set_requires_grad(true);
    sharded.begin_step();
    Tensor loss;
    {
      const Residency::Pass pass(*sharded.residency());
      loss = frozen(torch::ones({1, 5})).sum();
    }
    loss.backward();
    EXPECT_TRUE(sharded.shards()[0].shard.grad().eq(1).all().item<bool>());
  });
}

// Only the last layer is trained, so the backward pass uses no weights.
TEST(ShardedParameters, GoAfterABackwardPassThatUsesNone) {
  on_ranks(2, [](const ProcessGroupPtr& group) {
    Layers layers({.shards = group});
    for (Tensor& each : layers.layer(0).parameters()) each.set_requires_grad(false);
    const auto& residency = layers.sharded.residency();
    for (int i = 0; i < 3; ++i) {
      layers.step({0, 1});
      EXPECT_EQ(residency->bytes_in_memory(), 0) << i;
      EXPECT_FALSE(residency->with_gradients().is_first());
    }
    EXPECT_FALSE(residency->with_gradients().departed());
  });
}

TEST(ShardedParameters, MakeNoBackwardPassWhereTheyAreAway) {
  on_ranks(2, [](const ProcessGroupPtr& group) {
    for (const bool offload : {false, true}) {
      Layers layers({.shards = group}), plain({.shards = group});
      const Tensor loss = layers.forward({0, 1});
      {
        const WholeParameters scope(
            layers.sharded.residency(),
            {.writeback = false, .rank0_only = true, .offload_to_cpu = offload});
        EXPECT_THAT(error_of([&] { loss.backward(); }), HasSubstr("makes no backward passes"));
      }
      layers.net->zero_grad();
      layers.step({0, 1});
      plain.step({0, 1});
      EXPECT_TRUE(torch::equal(layers.shard("0.weight").grad(), plain.shard("0.weight").grad()));
    }
  });
}

// With gathers and reductions on their way.
TEST(ShardedParameters, GoOnAfterExceptionsInPasses) {
  on_ranks(3, [](const ProcessGroupPtr& group) {
    Layers layers({.shards = group}), plain({.shards = group});
    const auto optimizer = layers.adam(), plain_optimizer = plain.adam();
    for (int i = 0; i < 3; ++i) {
      layers.train(*optimizer);
      plain.train(*plain_optimizer);
      EXPECT_THAT(error_of([&] {
                    layers.sharded.begin_step();
                    const Residency::Pass pass(*layers.sharded.residency());
                    layers.layer(0).forward(torch::ones({1, 5}));
                    throw std::runtime_error("in forward");
                  }),
                  HasSubstr("in forward"));
      layers.train(*optimizer);
      plain.train(*plain_optimizer);
      Tensor loss;
      {
        layers.sharded.begin_step();
        const Residency::Pass pass(*layers.sharded.residency());
        const Tensor y = layers.layer(0).forward(torch::ones({1, 5}));
        y.register_hook([](const Tensor&) { throw std::runtime_error("in backward"); });
        loss = layers.layer(1).forward(y).sum();
      }
      EXPECT_THAT(error_of([&] { loss.backward(); }), HasSubstr("in backward"));
      layers.net->zero_grad();
    }
    layers.train(*optimizer);
    plain.train(*plain_optimizer);
    expect_same_shards(layers, plain);
  });
}

TEST(ShardedParameters, ForgetAReductionThatNeverEnds) {
  on_ranks(2, [](const ProcessGroupPtr& group) {
    Layers layers({.shards = group});
    layers.step({0, 1});
    layers.net->zero_grad();
    // Rank 1 does not take part in the reduction.
    layers.sharded.set_synchronises(group->getRank() == 0);
    layers.sharded.begin_step();
    Tensor loss;
    {
      const Residency::Pass pass(*layers.sharded.residency());
      const Tensor y = layers.layer(0).forward(torch::ones({1, 5}));
      y.register_hook([](const Tensor&) { throw std::runtime_error("in backward"); });
      loss = layers.layer(1).forward(y).sum();
    }
    EXPECT_THAT(error_of([&] { loss.backward(); }), HasSubstr("in backward"));
    if (group->getRank() == 1) return;
    EXPECT_TRUE(is_absent(layers.layer(1).weight.grad())) << "it is on its way";
    dynamic_cast<Interruptible&>(*group->getBackend(c10::kCPU)).interrupt();
    EXPECT_ANY_THROW(layers.sharded.begin_step());
    EXPECT_NO_THROW(layers.sharded.begin_step());
    for (const auto& each : layers.sharded.shards()) EXPECT_FALSE(each.shard.grad().defined());
  });
}

}  // namespace
}  // namespace accelerate
