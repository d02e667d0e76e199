// Training shards gives what training whole parameters on the mean over ranks gives.
#include "accelerate/parallel/residency/shards.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/base/shard_rows.h"
#include "accelerate/operators/managed_storage.h"
#include "accelerate/testing/fake_runtime.h"
#include "accelerate/testing/threaded_group.h"
#include "accelerate/testing/value_error.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using torch::Tensor;
namespace nn = torch::nn;

// Rows that divide and do not, fewer rows than ranks, none at all, a number, and parameters that
// are not trained, not used, and used twice.
struct NetImpl : nn::Module {
  NetImpl() {
    first = register_module("first", nn::Linear(6, 5));
    second = register_module("second", nn::Linear(5, 5));
    last = register_module("last", nn::Linear(5, 2));
    frozen = register_module("frozen", nn::Linear(5, 5));
    for (Tensor& each : frozen->parameters()) each.set_requires_grad(false);
    unused = register_module("unused", nn::Linear(3, 3));
    scale = register_parameter("scale", torch::ones({}));
    empty = register_parameter("empty", torch::ones({0, 3}));
    const torch::NoGradGuard no_grad;
    for (Tensor& each : parameters()) {
      each.copy_(torch::cos(torch::arange(1. * each.numel())).view_as(each) / 2);
    }
  }
  Tensor forward(const Tensor& x) {
    const Tensor y = torch::tanh(second(torch::tanh(first(x))));
    return last(torch::tanh(second(frozen(y)))) * scale;
  }
  nn::Linear first{nullptr}, second{nullptr}, last{nullptr}, frozen{nullptr}, unused{nullptr};
  Tensor scale, empty;
};
TORCH_MODULE(Net);

Tensor loss_of(Net& net, int step, int rank) {
  const Tensor x = torch::sin(torch::arange(24.).reshape({4, 6}) * (1 + rank) + step);
  return net->forward(x.to(net->first->weight.scalar_type())).square().mean();
}

void on_ranks(int ranks, const std::function<void(const ProcessGroupPtr&)>& body) {
  run_ranks(ranks, [&body](const ProcessGroupPtr& group) {
    FakeRuntime runtime({.rank = group->getRank(), .world_size = group->getSize()});
    const RuntimeScope scope(runtime);
    body(group);
  });
}

std::vector<Tensor> shards_of(const ShardedParameters& sharded) {
  std::vector<Tensor> shards;
  for (const auto& each : sharded.shards()) shards.push_back(each.shard);
  return shards;
}

Tensor sharded_loss(ShardedParameters& sharded, Net& net, int step, int rank) {
  sharded.begin_step();
  const Residency::Pass pass(*sharded.residency());
  return loss_of(net, step, rank);
}

using MakeOptimizer =
    std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<Tensor> parameters)>;

std::unique_ptr<torch::optim::Optimizer> sgd(std::vector<Tensor> parameters) {
  return std::make_unique<torch::optim::SGD>(std::move(parameters),
                                             torch::optim::SGDOptions(0.1).momentum(0.9));
}
std::unique_ptr<torch::optim::Optimizer> adam(std::vector<Tensor> parameters) {
  return std::make_unique<torch::optim::Adam>(std::move(parameters),
                                              torch::optim::AdamOptions(0.01));
}

// Steps of `micro_steps` backward passes each; the last of them synchronises, or all do.
void expect_training_of_the_mean(int ranks, const MakeOptimizer& make, int micro_steps,
                                 bool each_synchronises, double tolerance) {
  constexpr int kSteps = 4;
  Net whole;
  auto optimizer = make(whole->parameters());
  for (int step = 0; step < kSteps * micro_steps; ++step) {
    for (int rank = 0; rank < ranks; ++rank) {
      (loss_of(whole, step, rank) / ranks).backward();
    }
    if ((step + 1) % micro_steps != 0) continue;
    optimizer->step();
    optimizer->zero_grad();
  }
  on_ranks(ranks, [&](const ProcessGroupPtr& group) {
    Net net;
    ShardedParameters sharded(*net, {.shards = group}, c10::kCPU, {.group_bytes = 1});
    auto own = make(shards_of(sharded));
    for (int step = 0; step < kSteps * micro_steps; ++step) {
      const bool steps = (step + 1) % micro_steps == 0;
      sharded.set_synchronises(steps || each_synchronises);
      sharded_loss(sharded, net, step, group->getRank()).backward();
      EXPECT_EQ(sharded.residency()->bytes_in_memory(), 0);
      EXPECT_EQ(is_absent(net->first->weight.grad()), steps || each_synchronises);
      if (!steps) continue;
      EXPECT_FALSE(net->unused->weight.grad().defined());
      own->step();
      own->zero_grad();
    }
    const WholeParameters scope(sharded.residency());
    for (const auto& item : net->named_parameters()) {
      EXPECT_TRUE(torch::allclose(item.value(), whole->named_parameters()[item.key()], tolerance,
                                  tolerance))
          << item.key() << " on rank " << group->getRank() << " of " << ranks;
    }
  });
}

TEST(ShardedParameters, TrainAsWholeOnes) {
  for (const int ranks : {1, 2, 3, 4}) {
    expect_training_of_the_mean(ranks, &sgd, 1, false, 1e-6);
    expect_training_of_the_mean(ranks, &adam, 1, false, 1e-5);
  }
}

TEST(ShardedParameters, AccumulateWithAndWithoutSynchronisation) {
  for (const bool each_synchronises : {false, true}) {
    expect_training_of_the_mean(3, &sgd, 3, each_synchronises, 1e-6);
  }
}

TEST(ShardedParameters, HaveTheirRowsAndNoMore) {
  EXPECT_EQ(shard_rows(5, 3, 0), (ShardRows{0, 2}));
  EXPECT_EQ(shard_rows(5, 3, 2), (ShardRows{4, 1}));
  EXPECT_EQ(shard_rows(4, 3, 2), (ShardRows{4, 0}));
  EXPECT_EQ(shard_rows(1, 3, 1), (ShardRows{1, 0}));
  on_ranks(3, [](const ProcessGroupPtr& group) {
    Net net;
    const Tensor before = net->second->weight.detach().clone();
    const ShardedParameters sharded(*net, {.shards = group}, c10::kCPU);
    const int rank = group->getRank();
    for (const auto& each : sharded.shards()) {
      const int64_t rows = each.parameter.dim() == 0 ? 1 : each.parameter.size(0);
      EXPECT_EQ(each.shard.size(0), shard_rows(rows, 3, rank).count) << each.name;
      EXPECT_EQ(each.shard.requires_grad(), each.parameter.requires_grad());
      EXPECT_TRUE(each.shard.is_leaf());
      EXPECT_EQ(each.shard.storage().nbytes(),
                (rows + 2) / 3 * (each.parameter.numel() / rows) * sizeof(float));
      EXPECT_TRUE(is_absent(each.parameter));
      if (each.name == "second.weight") {
        EXPECT_TRUE(torch::equal(each.shard, before.narrow(0, 2 * rank, rank == 2 ? 1 : 2)));
      }
    }
    // There are eleven with elements, and one without.
    EXPECT_EQ(sharded.shards().size(), 11);
    EXPECT_FALSE(is_absent(net->empty));
  });
}

TEST(ShardedParameters, BeginWithTheValuesOfRank0) {
  on_ranks(2, [](const ProcessGroupPtr& group) {
    Net net, same;
    {
      const torch::NoGradGuard no_grad;
      for (Tensor& each : net->parameters()) each.add_(group->getRank());
    }
    const ShardedParameters sharded(*net, {.shards = group, .all = group}, c10::kCPU);
    const WholeParameters scope(sharded.residency());
    EXPECT_TRUE(torch::equal(net->first->weight, same->first->weight));
  });
}

TEST(ShardedParameters, TakeOverWhatAScopeWrites) {
  on_ranks(3, [](const ProcessGroupPtr& group) {
    Net net;
    const ShardedParameters sharded(*net, {.shards = group}, c10::kCPU);
    const Tensor values = torch::arange(25.).reshape({5, 5});
    {
      const WholeParameters scope(sharded.residency());
      const torch::NoGradGuard no_grad;
      net->second->weight.copy_(values);
    }
    const WholeParameters scope(sharded.residency(), {.writeback = false});
    EXPECT_TRUE(torch::equal(net->second->weight, values));
  });
}

TEST(ShardedParameters, ForgetABackwardPassThatFailed) {
  on_ranks(2, [](const ProcessGroupPtr& group) {
    Net net, other;
    ShardedParameters sharded(*net, {.shards = group}, c10::kCPU, {.group_bytes = 1}),
        plain(*other, {.shards = group}, c10::kCPU, {.group_bytes = 1});
    // Its group is complete before the exception.
    const auto reduced =
        std::ranges::find(sharded.shards(), "last.weight", &ShardedParameters::Shard::name);
    // Which has gradients of an earlier pass as well.
    sharded_loss(sharded, net, 0, group->getRank()).backward();
    Tensor loss;
    {
      const Residency::Pass pass(*sharded.residency());
      const Tensor y = net->first(torch::ones({2, 6}));
      y.register_hook([](const Tensor&) { throw std::runtime_error("in backward"); });
      loss = net->last(y).sum();
    }
    EXPECT_ANY_THROW(loss.backward());
    EXPECT_TRUE(reduced->shard.grad().defined());
    net->zero_grad();
    sharded_loss(sharded, net, 1, group->getRank()).backward();
    sharded_loss(plain, other, 1, group->getRank()).backward();
    for (size_t i = 0; i < plain.shards().size(); ++i) {
      const Tensor a = sharded.shards()[i].shard.grad(), b = plain.shards()[i].shard.grad();
      ASSERT_EQ(a.defined(), b.defined()) << plain.shards()[i].name;
      if (a.defined()) EXPECT_TRUE(torch::equal(a, b)) << plain.shards()[i].name;
    }
  });
}

TEST(ShardedParameters, ForgetWhatTheModuleResetsAlsoWhereNoGradientFollows) {
  on_ranks(2, [](const ProcessGroupPtr& group) {
    Net net;
    ShardedParameters sharded(*net, {.shards = group}, c10::kCPU);
    const auto of = [&](const std::string& name) {
      return std::ranges::find(sharded.shards(), name, &ShardedParameters::Shard::name)->shard;
    };
    // Two graphs: one uses all layers, the other only the last one.
    const auto loss_of_last = [&] {
      const Residency::Pass pass(*sharded.residency());
      return net->last(torch::ones({2, 5})).sum();
    };
    sharded_loss(sharded, net, 0, group->getRank()).backward();
    EXPECT_TRUE(of("first.weight").grad().defined());
    net->zero_grad();
    sharded.begin_step();
    EXPECT_FALSE(of("first.weight").grad().defined());
    loss_of_last().backward();
    EXPECT_FALSE(of("first.weight").grad().defined());
    EXPECT_TRUE(of("last.weight").grad().defined());
    // A backward pass notices it as well.
    net->zero_grad();
    sharded.begin_step();
    const Tensor later = loss_of_last();
    sharded_loss(sharded, net, 1, group->getRank()).backward();
    net->zero_grad();
    later.backward();
    EXPECT_FALSE(of("first.weight").grad().defined());
    EXPECT_TRUE(of("last.weight").grad().defined());
  });
}

TEST(ShardedParameters, HaveGradientsThatTheModuleResetsAndOthersDoNotRead) {
  on_ranks(2, [](const ProcessGroupPtr& group) {
    Net net;
    ShardedParameters sharded(*net, {.shards = group}, c10::kCPU);
    const Tensor shard = sharded.shards()[1].shard, weight = sharded.shards()[1].parameter;
    const auto gradient = [&] {
      sharded_loss(sharded, net, 0, group->getRank()).backward();
      return shard.grad().clone();
    };
    const Tensor once = gradient();
    EXPECT_TRUE(once.any().item<bool>());
    EXPECT_TRUE(torch::allclose(gradient(), 2 * once));
    net->zero_grad();
    EXPECT_TRUE(torch::equal(gradient(), once));
    EXPECT_EQ(weight.grad().sizes(), weight.sizes());
    try {
      nn::utils::clip_grad_norm_(net->parameters(), 1.0);
      ADD_FAILURE() << "the gradients were read";
    } catch (const c10::Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("uses the gradient of parameter \""));
    }
  });
}

TEST(ShardedParameters, KeepReducedGradientsWhereAutogradReturnsWholeOnes) {
  on_ranks(2, [](const ProcessGroupPtr& group) {
    Net net;
    ShardedParameters sharded(*net, {.shards = group}, c10::kCPU);
    const auto& [name, parameter, shard] = sharded.shards()[1];
    sharded_loss(sharded, net, 0, group->getRank()).backward();
    const Tensor once = shard.grad().clone();
    EXPECT_TRUE(once.any().item<bool>());
    Net whole;
    const Tensor expected = torch::autograd::grad({loss_of(whole, 1, group->getRank())},
                                                  {whole->named_parameters()[name]})[0];
    const Tensor loss = sharded_loss(sharded, net, 1, group->getRank());
    EXPECT_TRUE(torch::allclose(torch::autograd::grad({loss}, {parameter})[0], expected));
    EXPECT_TRUE(torch::equal(shard.grad(), once));
    sharded_loss(sharded, net, 0, group->getRank()).backward({}, false, false, {{parameter}});
    EXPECT_TRUE(torch::allclose(shard.grad(), 2 * once));
  });
}

// Doubles a gradient.
struct Doubling final : torch::autograd::PostAccumulateGradHook {
  void operator()(const Tensor& parameter) override { parameter.mutable_grad().mul_(2); }
};

TEST(ShardedParameters, RunHooksThatParametersHaveOrAreGiven) {
  on_ranks(2, [](const ProcessGroupPtr& group) {
    Net net, other;
    const auto hook = [](const Tensor& parameter) {
      torch::autograd::impl::set_post_acc_grad_hooks(parameter, std::make_unique<Doubling>());
    };
    hook(net->first->weight);
    ShardedParameters sharded(*net, {.shards = group}, c10::kCPU, {.group_bytes = 1}),
        plain(*other, {.shards = group}, c10::kCPU, {.group_bytes = 1});
    hook(net->last->weight);
    for (int step = 0; step < 2; ++step) {
      sharded_loss(sharded, net, step, group->getRank()).backward();
      sharded_loss(plain, other, step, group->getRank()).backward();
      EXPECT_TRUE(is_absent(net->last->weight.grad()));
      for (size_t i = 0; i < plain.shards().size(); ++i) {
        const auto& [name, parameter, shard] = sharded.shards()[i];
        const int factor = name == "first.weight" || name == "last.weight" ? 2 : 1;
        const Tensor expected = plain.shards()[i].shard.grad();
        ASSERT_EQ(shard.grad().defined(), expected.defined()) << name;
        if (expected.defined()) EXPECT_TRUE(torch::equal(shard.grad(), factor * expected)) << name;
      }
      net->zero_grad();
      other->zero_grad();
    }
  });
}

TEST(ShardedParameters, RefuseToUndoAStepInAScope) {
  on_ranks(2, [](const ProcessGroupPtr& group) {
    Net net;
    ShardedParameters sharded(*net, {.shards = group}, c10::kCPU);
    auto optimizer = adam(shards_of(sharded));
    sharded_loss(sharded, net, 0, group->getRank()).backward();
    const Tensor shard = sharded.shards()[1].shard, before = shard.clone();
    EXPECT_THAT(value_error_of([&] {
                  const WholeParameters scope(sharded.residency());
                  {
                    const torch::NoGradGuard no_grad;
                    net->frozen->weight.zero_();
                  }
                  optimizer->step();
                }),
                AllOf(HasSubstr("the shard of parameter \""),
                      HasSubstr("was changed inside the scope, as by an optimizer's step")));
    const Tensor after = shard.clone();
    EXPECT_FALSE(torch::equal(after, before));
    {
      const WholeParameters scope(sharded.residency(), {.writeback = false});
      EXPECT_TRUE(net->frozen->weight.any().item<bool>());
      optimizer->step();
    }
    EXPECT_FALSE(torch::equal(shard, after));
  });
}

TEST(ShardedParameters, StayFromTheForwardPassUntilTheirGradients) {
  on_ranks(2, [](const ProcessGroupPtr& group) {
    Net net, other;
    ShardedParameters staying(*net, {.shards = group}, c10::kCPU,
                              {.group_bytes = 1, .reshard_after_forward = false}),
        plain(*other, {.shards = group}, c10::kCPU, {.group_bytes = 1});
    const auto bytes = [&] { return staying.residency()->bytes_in_memory(); };
    int64_t used = 0, after_last = 0;
    for (const auto& each : staying.shards()) {
      if (!each.name.starts_with("unused")) used += static_cast<int64_t>(each.parameter.nbytes());
    }
    net->second->weight.register_hook([&](const Tensor&) { after_last = bytes(); });
    constexpr int kSteps = 3;
    for (int step = 0; step < kSteps; ++step) {
      const Tensor loss = sharded_loss(staying, net, step, group->getRank());
      EXPECT_EQ(bytes(), used);
      loss.backward();
      sharded_loss(plain, other, step, group->getRank()).backward();
      const int64_t last = (5 * 2 + 2 + 1) * static_cast<int64_t>(sizeof(float));
      EXPECT_EQ(after_last, used - last);
      EXPECT_EQ(bytes(), 0);
      for (size_t i = 0; i < plain.shards().size(); ++i) {
        const Tensor a = staying.shards()[i].shard.grad(), b = plain.shards()[i].shard.grad();
        ASSERT_EQ(a.defined(), b.defined()) << plain.shards()[i].name;
        if (a.defined()) EXPECT_TRUE(torch::equal(a, b)) << plain.shards()[i].name;
      }
    }
    EXPECT_EQ(staying.residency()->times_brought(), 5 * kSteps);
    EXPECT_GT(plain.residency()->times_brought(), 5 * kSteps);
    // No backward pass follows, so groups take turns.
    const torch::NoGradGuard no_grad;
    const Residency::Pass pass(*staying.residency());
    loss_of(net, 0, group->getRank());
    EXPECT_LT(bytes(), used / 2);
  });
}

// What one process computes that casts its parameters for each pass, with float32 for training.
void train_with_casts(Net& kept, int ranks, int steps, at::ScalarType dtype, bool sends_float) {
  auto optimizer = sgd(kept->parameters());
  for (int step = 0; step < steps; ++step) {
    std::vector<Tensor> sums(kept->parameters().size());
    for (int rank = 0; rank < ranks; ++rank) {
      Net cast;
      cast->to(dtype);
      {
        const torch::NoGradGuard no_grad;
        for (size_t i = 0; i < sums.size(); ++i) cast->parameters()[i].copy_(kept->parameters()[i]);
      }
      loss_of(cast, step, rank).backward();
      for (size_t i = 0; i < sums.size(); ++i) {
        const Tensor gradient = cast->parameters()[i].grad();
        if (!gradient.defined()) continue;
        const Tensor sent = sends_float ? gradient.to(torch::kFloat) : gradient;
        sums[i] = sums[i].defined() ? sums[i] + sent : sent;
      }
    }
    for (size_t i = 0; i < sums.size(); ++i) {
      if (!sums[i].defined()) continue;
      kept->parameters()[i].mutable_grad() = sums[i].to(torch::kFloat) / ranks;
    }
    optimizer->step();
  }
}

TEST(ShardedParameters, AreGatheredInTheirDtypeOfPasses) {
  constexpr int kRanks = 2, kSteps = 3;
  for (const bool sends_float : {false, true}) {
    Net reference;
    train_with_casts(reference, kRanks, kSteps, torch::kBFloat16, sends_float);
    on_ranks(kRanks, [&](const ProcessGroupPtr& group) {
      Net net;
      const Tensor weight = net->second->weight;
      ShardingOptions options{.group_bytes = 1, .param_dtype = torch::kBFloat16};
      if (sends_float) options.reduce_dtype = torch::kFloat;
      ShardedParameters sharded(*net, {.shards = group}, c10::kCPU, options);
      EXPECT_TRUE(weight.is_same(net->second->weight));
      auto optimizer = sgd(shards_of(sharded));
      for (int step = 0; step < kSteps; ++step) {
        EXPECT_EQ(weight.scalar_type(), torch::kBFloat16);
        sharded_loss(sharded, net, step, group->getRank()).backward();
        optimizer->step();
        optimizer->zero_grad();
        // Also where a scope was between.
        const WholeParameters scope(sharded.residency(), {.writeback = step == 0});
        EXPECT_EQ(weight.scalar_type(), torch::kFloat);
        EXPECT_THAT(value_error_of([&] { const Residency::Pass pass(*sharded.residency()); }),
                    HasSubstr("computes in another dtype than its shards have"));
      }
      for (const auto& each : sharded.shards()) {
        EXPECT_EQ(each.shard.scalar_type(), torch::kFloat) << each.name;
      }
      const WholeParameters scope(sharded.residency(), {.writeback = false});
      for (const auto& item : net->named_parameters()) {
        EXPECT_TRUE(
            torch::allclose(item.value(), reference->named_parameters()[item.key()], 1e-6, 1e-7))
            << item.key();
      }
    });
  }
}

TEST(ShardedParameters, AddUpWholeGradientsInTheDtypeInWhichTheyAreSent) {
  on_ranks(2, [](const ProcessGroupPtr& group) {
    Net net;
    ShardedParameters sharded(*net, {.shards = group}, c10::kCPU,
                              {.param_dtype = torch::kBFloat16, .reduce_dtype = torch::kFloat});
    sharded.set_synchronises(false);
    const auto backward = [&] { sharded_loss(sharded, net, 0, group->getRank()).backward(); };
    backward();
    const Tensor once = net->first->weight.grad().clone();
    EXPECT_EQ(once.scalar_type(), torch::kFloat);
    // In bf16 the sum would stop where it is 256 times as large as what is added.
    constexpr int kPasses = 300;
    for (int pass = 2; pass < kPasses; ++pass) backward();
    sharded.set_synchronises(true);
    backward();
    std::vector<Tensor> all{torch::empty_like(once), torch::empty_like(once)};
    std::vector<std::vector<Tensor>> outputs{all};
    std::vector<Tensor> inputs{once};
    group->allgather(outputs, inputs)->wait();
    const Tensor mean = (all[0] + all[1]) / 2 * kPasses;
    const auto first =
        std::ranges::find(sharded.shards(), "first.weight", &ShardedParameters::Shard::name);
    const ShardRows rows = shard_rows(5, 2, group->getRank());
    EXPECT_TRUE(torch::allclose(first->shard.grad(), mean.narrow(0, rows.first, rows.count), 1e-4));
  });
}

TEST(ShardedParameters, AreWidenedWhereTheyAreTrained) {
  on_ranks(2, [](const ProcessGroupPtr& group) {
    Net net;
    net->to(torch::kBFloat16);
    const ShardedParameters sharded(*net, {.shards = group}, c10::kCPU,
                                    {.param_dtype = torch::kBFloat16});
    for (const auto& each : sharded.shards()) {
      EXPECT_EQ(each.shard.scalar_type(),
                each.parameter.requires_grad() ? torch::kFloat : torch::kBFloat16)
          << each.name;
    }
    // A scope that changes nothing loses no digits.
    const Tensor& shard = sharded.shards()[1].shard;
    const torch::NoGradGuard no_grad;
    shard.add_(1e-5);
    const Tensor before = shard.clone();
    {
      const WholeParameters scope(sharded.residency());
    }
    EXPECT_TRUE(torch::equal(shard, before));
  });
}

TEST(ShardedParameters, KeepThePrecisionOfModulesWithRunningStatistics) {
  on_ranks(2, [](const ProcessGroupPtr& group) {
    nn::Sequential net(nn::Linear(4, 6), nn::BatchNorm1d(6), nn::Linear(6, 2));
    ShardedParameters sharded(*net, {.shards = group}, c10::kCPU,
                              {.param_dtype = torch::kBFloat16});
    const auto dtype_of = [&](const char* name) {
      return net->named_parameters()[name].scalar_type();
    };
    EXPECT_EQ(dtype_of("0.weight"), torch::kBFloat16);
    EXPECT_EQ(dtype_of("1.weight"), torch::kFloat);
    for (int step = 0; step < 2; ++step) {
      sharded.begin_step();
      Tensor loss;
      {
        const Residency::Pass pass(*sharded.residency());
        loss = net->forward(torch::randn({5, 4}, torch::kBFloat16)).square().mean();
      }
      loss.backward();
      for (const auto& each : sharded.shards()) {
        EXPECT_EQ(each.shard.grad().scalar_type(), torch::kFloat) << each.name;
        EXPECT_TRUE(each.shard.grad().isfinite().all().item<bool>()) << each.name;
      }
    }
  });
}

TEST(ShardedParameters, FormTheGroupsOfTheirOptions) {
  on_ranks(2, [](const ProcessGroupPtr& group) {
    Net net;
    ShardedParameters sharded(
        *net, {.shards = group}, c10::kCPU,
        {.groups = {{.name = "ends",
                     .parameters = {"last.bias", "first.weight", "last.weight", "first.bias"},
                     .reshard_after_forward = false}},
         .ignored = {"frozen.weight", "frozen.bias"}});
    EXPECT_FALSE(is_absent(net->frozen->weight));
    EXPECT_EQ(sharded.shards().size(), 9);
    for (int step = 0; step < 2; ++step) {
      const Tensor loss = sharded_loss(sharded, net, step, group->getRank());
      // The rest is one group.
      EXPECT_EQ(sharded.residency()->times_brought(), 2 * (step + 1));
      EXPECT_FALSE(is_absent(net->first->weight));
      loss.backward();
      EXPECT_TRUE(is_absent(net->first->weight));
    }
    const auto error_of_groups = [&](std::vector<ShardingGroup> groups) {
      Net other;
      const std::string error = value_error_of([&] {
        ShardedParameters(*other, {.shards = group}, c10::kCPU, {.groups = std::move(groups)});
      });
      EXPECT_FALSE(is_absent(other->first->weight));
      return error;
    };
    EXPECT_THAT(error_of_groups({{.name = "ends", .parameters = {"first.wait"}}}),
                HasSubstr("group \"ends\" of the sharding options has parameter \"first.wait\""));
    EXPECT_THAT(error_of_groups({{.name = "a", .parameters = {"scale"}},
                                 {.name = "b", .parameters = {"scale"}}}),
                HasSubstr("parameter \"scale\" is in two groups"));
  });
}

TEST(ShardedParameters, DivideSumsByAFactor) {
  on_ranks(2, [](const ProcessGroupPtr& group) {
    Net net, other;
    ShardedParameters sum(*net, {.shards = group}, c10::kCPU, {.gradient_divide_factor = 1}),
        mean(*other, {.shards = group}, c10::kCPU);
    sharded_loss(sum, net, 0, group->getRank()).backward();
    sharded_loss(mean, other, 0, group->getRank()).backward();
    EXPECT_TRUE(torch::equal(sum.shards()[1].shard.grad(), 2 * mean.shards()[1].shard.grad()));
  });
}

// One rank's shards are the same, to the bit, as those of a group of one rank.
TEST(ShardedParameters, OfOneRankNeedNoGroup) {
  const std::vector<ShardingOptions> ways = {
      {},
      {.keeps_parameters = true},
      {.param_dtype = torch::kBFloat16, .reduce_dtype = torch::kFloat},
      {.param_dtype = torch::kBFloat16, .keeps_cast_shards = true},
      {.gradient_divide_factor = 3, .gradient_predivide_factor = 2},
      {.offload = true, .pin_memory = false},
  };
  on_ranks(1, [&](const ProcessGroupPtr& group) {
    const auto train = [](const ShardGroups& groups, ShardingOptions options) {
      Net net;
      options.group_bytes = 1;
      ShardedParameters sharded(*net, groups, c10::kCPU, options);
      auto own = adam(shards_of(sharded));
      std::vector<Tensor> results;
      for (int step = 0; step < 3; ++step) {
        sharded_loss(sharded, net, step, /*rank=*/0).backward();
        EXPECT_TRUE(is_absent(net->first->weight.grad()));
        for (const Tensor& each : shards_of(sharded)) {
          if (each.grad().defined()) results.push_back(each.grad().clone());
        }
        own->step();
        for (const Tensor& each : shards_of(sharded)) each.unsafeGetTensorImpl()->bump_version();
        own->zero_grad();
        const torch::NoGradGuard no_grad;
        const WholeParameters scope(sharded.residency());
        net->last->weight.add_(1);
      }
      for (const Tensor& each : shards_of(sharded)) results.push_back(each.detach().clone());
      return results;
    };
    for (size_t way = 0; way < ways.size(); ++way) {
      const std::vector<Tensor> alone = train({}, ways[way]);
      const std::vector<Tensor> expected = train({.shards = group}, ways[way]);
      ASSERT_EQ(alone.size(), expected.size());
      for (size_t i = 0; i < alone.size(); ++i) {
        EXPECT_TRUE(torch::equal(alone[i], expected[i])) << i << ", way " << way;
      }
    }
  });
}

TEST(ShardedParameters, RefuseWhatCannotBeDivided) {
  on_ranks(1, [](const ProcessGroupPtr& group) {
    struct Aliased : nn::Module {
      Aliased() {
        const Tensor a = register_parameter("a", torch::ones({4}));
        register_parameter("b", a.detach());
      }
    };
    const auto aliased = std::make_shared<Aliased>();
    const nn::Linear linear(2, 2);
    const auto holder = std::make_shared<nn::Module>();
    holder->register_module("first", linear.ptr());
    holder->register_module("second", aliased);
    EXPECT_THAT(value_error_of([&] {
                  ShardedParameters(*holder, {.shards = group}, c10::kCPU, {.group_bytes = 1});
                }),
                HasSubstr("parameters \"second.a\" and \"second.b\" share memory"));
    // What was checked before stays as it was.
    EXPECT_FALSE(is_absent(linear->weight));
    Net net;
    const ShardedParameters sharded(*net, {.shards = group}, c10::kCPU);
    EXPECT_THAT(value_error_of([&] { ShardedParameters(*net, {.shards = group}, c10::kCPU); }),
                HasSubstr("divided among ranks already"));
    nn::Embedding table(nn::EmbeddingOptions(4, 2).sparse(true));
    ShardedParameters rows(*table, {.shards = group}, c10::kCPU);
    const Residency::Pass pass(*rows.residency());
    EXPECT_THAT(value_error_of([&] { table(torch::tensor({1, 2})).sum().backward(); }),
                HasSubstr("gradient of parameter \"weight\" is sparse"));
  });
}

}  // namespace
}  // namespace accelerate
