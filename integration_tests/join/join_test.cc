// Ranks with unequal amounts of data train to what one process computes from the same sums.
#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "accelerate/parallel/replicated/ddp.h"
#include "simulator/cluster/cluster.h"
#include "simulator/testing/topology_suite.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::Rank;
using torch::Tensor;

// ---- The figures of HF Accelerate's documentation of join_uneven_inputs' gradients.

struct Figures {
  const char* spec;
  std::vector<std::vector<std::vector<float>>> batches;  // by rank
  std::vector<std::vector<float>> gradients;             // by rank: weight, bias
};

class PeerFigures : public ::testing::TestWithParam<Figures> {};

TEST_P(PeerFigures, GradientsAreDividedByTheNumberOfAllRanks) {
  const Figures& figures = GetParam();
  Cluster cluster(figures.spec);
  cluster.run_on_every_rank([&](Rank& rank) {
    Accelerator accelerator;
    torch::nn::Linear line(1, 1);
    {
      torch::NoGradGuard no_grad;
      line->weight.fill_(1);
      line->bias.zero_();
    }
    auto model = accelerator.prepare(line);
    {
      JoinScope join({find_technique<DistributedDataParallel>(model)}, true);
      for (const std::vector<float>& batch : figures.batches[rank.index()]) {
        model(torch::tensor(batch).unsqueeze(1).to(accelerator.device())).mean().backward();
      }
    }
    rank.report("gradients", torch::cat({line->weight.grad().flatten(), line->bias.grad()}));
  });
  for (int rank = 0; rank < cluster.world_size(); ++rank) {
    EXPECT_TRUE(torch::allclose(cluster.reports("gradients")[rank],
                                torch::tensor(figures.gradients[rank]), 1e-6, 0))
        << "rank " << rank << ": " << cluster.reports("gradients")[rank];
  }
}

const std::vector<std::vector<std::vector<float>>> kTwoRanks = {{{0, 1}, {4, 5}, {8, 9}},
                                                                {{2, 3}, {6, 7}}};
const std::vector<std::vector<std::vector<float>>> kThreeRanks = {
    {{0, 1}, {6, 7}}, {{2, 3}, {8, 9}}, {{4, 5}}};
const std::vector<std::vector<float>> kTwoGradients = {{7.75, 1.5}, {7, 2}};
const std::vector<std::vector<float>> kThreeGradients = {
    {20.0f / 3, 4.0f / 3}, {20.0f / 3, 4.0f / 3}, {2.5, 1}};

INSTANTIATE_TEST_SUITE_P(Join, PeerFigures,
                         ::testing::Values(Figures{"1x2", kTwoRanks, kTwoGradients},
                                           Figures{"1x3", kThreeRanks, kThreeGradients},
                                           Figures{"1x2:h100", kTwoRanks, kTwoGradients},
                                           Figures{"1x3:h100", kThreeRanks, kThreeGradients}));

// ---- Training against one process.

// The wide layers exceed the first bucket, so that a small bucket_cap_mb makes several.
struct NetImpl : torch::nn::Module {
  explicit NetImpl(bool sparse)
      : wide(register_module("wide", torch::nn::Linear(8, 520))),
        square(register_module("square", torch::nn::Linear(520, 520))),
        table(register_module(
            "table", torch::nn::Embedding(torch::nn::EmbeddingOptions(6, 8).sparse(sparse)))),
        sometimes(register_module("sometimes", torch::nn::Linear(520, 8))),
        output(register_module("output", torch::nn::Linear(520, 1))) {}
  Tensor forward(const Tensor& tokens, bool all) {
    Tensor x = torch::tanh(square(torch::tanh(wide(table(tokens)))));
    return all ? output(x) + sometimes(x) : output(x);
  }

  torch::nn::Linear wide, square;
  torch::nn::Embedding table;
  torch::nn::Linear sometimes, output;
};
TORCH_MODULE(Net);

struct Case {
  const char* name;
  DistributedDataParallelKwargs options = {};
  bool sparse = false;
  bool skips_a_layer = false;
  int accumulate = 1;
};

constexpr int kEpochs = 3;
constexpr double kRate = 0.05;

// Some rank has nothing, and it is another one for another seed.
int count_of(int rank, int epoch, uint64_t seed, int accumulate) {
  return accumulate * static_cast<int>((3 * rank + seed + 2 * epoch) % 5);
}

Tensor tokens_of(int rank, int epoch, int number) {
  auto generator = at::detail::createCPUGenerator(1 + rank + 100 * epoch + 1000 * number);
  return torch::randint(0, 6, {4}, generator, torch::kLong);
}

Tensor loss_of(const Tensor& output) { return output.square().mean(); }

Tensor flat(torch::nn::Module& module) {
  std::vector<Tensor> parts;
  for (const Tensor& parameter : module.parameters()) parts.push_back(parameter.detach().flatten());
  return torch::cat(parts).cpu();
}

void train(Rank& rank, const Case& one, uint64_t seed) {
  Accelerator accelerator({.kwargs_handlers = {one.options}});
  torch::manual_seed(5);
  Net net(one.sparse);
  torch::optim::SGD sgd(net->parameters(), kRate);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    JoinScope join({find_technique<DistributedDataParallel>(model)}, true);
    const int count = count_of(rank.index(), epoch, seed, one.accumulate);
    for (int number = 0; number < count; ++number) {
      const bool steps = (number + 1) % one.accumulate == 0;
      const Tensor tokens = tokens_of(rank.index(), epoch, number).to(accelerator.device());
      auto pass = [&] {
        loss_of(model(tokens, !(one.skips_a_layer && number % 2 == 1))).backward();
      };
      if (!steps) {
        auto scope = accelerator.no_sync(model);
        pass();
        continue;
      }
      pass();
      optimizer.step();
      optimizer.zero_grad();
    }
  }
  rank.report("parameters", flat(*net));
}

// The same in one process: the mean over all ranks of what those that have data computed.
Tensor trained_alone(const Case& one, int ranks, uint64_t seed) {
  torch::manual_seed(5);
  Net net(/*sparse=*/false);
  torch::optim::SGD sgd(net->parameters(), kRate);
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    int rounds = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      rounds = std::max(rounds, count_of(rank, epoch, seed, one.accumulate));
    }
    for (int number = 0; number < rounds; ++number) {
      for (int rank = 0; rank < ranks; ++rank) {
        if (number >= count_of(rank, epoch, seed, one.accumulate)) continue;
        const Tensor tokens = tokens_of(rank, epoch, number);
        (loss_of(net(tokens, !(one.skips_a_layer && number % 2 == 1))) / ranks).backward();
      }
      if ((number + 1) % one.accumulate != 0) continue;
      sgd.step();
      sgd.zero_grad();
    }
  }
  return flat(*net);
}

class Training : public ::testing::TestWithParam<std::tuple<Case, std::string>> {};

TEST_P(Training, LeavesEqualReplicasThatFollowTheSums) {
  const auto& [one, spec] = GetParam();
  // Seeds of the data: of each, another rank has nothing. The run's seed is added for the schedule.
  for (const uint64_t seed : {0, 1, 2, 4}) {
    Cluster cluster(spec, {.seed = simulator::seed_of_run(seed)});
    cluster.run_on_every_rank([&](Rank& rank) { train(rank, one, seed); });
    const std::vector<Tensor> parameters = cluster.reports("parameters");
    for (const Tensor& replica : parameters) EXPECT_TRUE(replica.equal(parameters[0])) << seed;
    const Tensor alone = trained_alone(one, cluster.world_size(), seed);
    EXPECT_TRUE(torch::allclose(parameters[0], alone, 1e-4, 1e-6))
        << seed << ": off by " << (parameters[0] - alone).abs().max();
  }
}

constexpr double kSmall = 1e-4;

INSTANTIATE_TEST_SUITE_P(
    Join, Training,
    ::testing::Combine(
        ::testing::Values(
            Case{.name = "plain"},
            Case{.name = "small_buckets", .options = {.bucket_cap_mb = kSmall}},
            Case{.name = "bucket_views",
                 .options = {.bucket_cap_mb = kSmall, .gradient_as_bucket_view = true}},
            Case{.name = "unused_parameters",
                 .options = {.bucket_cap_mb = kSmall, .find_unused_parameters = true},
                 .skips_a_layer = true},
            Case{.name = "unused_parameters_in_views",
                 .options = {.find_unused_parameters = true, .gradient_as_bucket_view = true},
                 .skips_a_layer = true},
            Case{.name = "sparse_gradients", .options = {.bucket_cap_mb = kSmall}, .sparse = true},
            Case{.name = "accumulation", .accumulate = 2}),
        ::testing::ValuesIn(simulator::topologies({.also = {"1x3", "2x4", "1x3:h100"},
                                                   .min_ranks = 2,
                                                   .hardware = simulator::Hardware::kNoTpu}))),
    [](const auto& info) {
      std::string name = std::get<0>(info.param).name;
      return name + "_" + simulator::topology_name({std::get<1>(info.param), info.index});
    });

// ---- What else belongs to a replica.

// One shape each: every one of three ranks has a part of its own.
TEST(Join, BuffersComeFromTheRankThatTrainedLongest) {
  Cluster cluster("1x3");
  cluster.run_on_every_rank([](Rank& rank) {
    Accelerator accelerator;
    torch::manual_seed(5);
    torch::nn::Sequential net(torch::nn::BatchNorm1d(3), torch::nn::Linear(3, 1));
    auto model = accelerator.prepare(net);
    for (int epoch = 0; epoch < 2; ++epoch) {
      JoinScope join({find_technique<DistributedDataParallel>(model)}, true);
      // Rank 1 goes on alone after rank 2, the highest, has ended.
      const int count = std::vector<int>{1, 5, 3}[rank.index()];
      for (int number = 0; number < count; ++number) {
        model(torch::full({4, 3}, 10.0 * rank.index() + number)).mean().backward();
        if (epoch == 1 && number + 1 == count) rank.report("own", net->buffers()[0].clone());
      }
    }
    rank.report("mean", net->buffers()[0].clone());
    rank.report("batches", net->buffers()[2].clone());
  });
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_TRUE(cluster.reports("mean")[rank].equal(cluster.reports("own")[1])) << rank;
    EXPECT_EQ(cluster.reports("batches")[rank].item<int64_t>(), 10);
  }
}

// Rank 0's last pass in the scope only accumulates gradients, rank 1's synchronises them: left to
// themselves, rank 1 alone would refresh its buffers in the next pass.
TEST(Join, AfterTheScopeAllRefreshTheirBuffers) {
  Cluster cluster("1x2");
  cluster.run_on_every_rank([](Rank& rank) {
    Accelerator accelerator;
    torch::manual_seed(5);
    torch::nn::Sequential net(torch::nn::BatchNorm1d(3), torch::nn::Linear(3, 1));
    auto model = accelerator.prepare(net);
    auto pass = [&](double value) { model(torch::full({4, 3}, value)).mean().backward(); };
    {
      JoinScope join({find_technique<DistributedDataParallel>(model)}, true);
      {
        auto scope = accelerator.no_sync(model);
        pass(rank.index());
      }
      if (rank.index() == 1) pass(2);
    }
    pass(3);
    rank.report("mean", net->buffers()[0].clone());
  });
  EXPECT_TRUE(cluster.reports("mean")[0].equal(cluster.reports("mean")[1]));
}

TEST(Join, TheHookLetsTheOptimizerCatchUp) {
  Cluster cluster("1x3:h100", {.seed = 3});
  cluster.run_on_every_rank([](Rank& rank) {
    Accelerator accelerator;
    torch::manual_seed(5);
    torch::nn::Linear line(4, 1);
    auto model = accelerator.prepare(line);
    torch::optim::Adam adam(line->parameters(), 0.1);
    auto step = [&](int number) {
      auto generator = at::detail::createCPUGenerator(rank.index() + 10 * number);
      const Tensor x = torch::randn({2, 4}, generator).to(accelerator.device());
      model(x).square().mean().backward();
      adam.step();
      adam.zero_grad();
    };
    auto catch_up = [&](int source) {
      rank.report("source", source);
      for (const Tensor& parameter : line->parameters()) {
        auto& state = static_cast<torch::optim::AdamParamState&>(
            *adam.state().at(parameter.unsafeGetTensorImpl()));
        state.step(5);
        for (const Tensor& moment : {state.exp_avg(), state.exp_avg_sq()}) {
          std::vector<Tensor> tensors{moment};
          accelerator.state().group()->broadcast(tensors, {.rootRank = source})->wait();
        }
      }
    };
    {
      JoinScope join({find_technique<DistributedDataParallel>(model)}, true, catch_up);
      const int count = std::vector<int>{5, 5, 2}[rank.index()];
      for (int number = 0; number < count; ++number) step(number);
    }
    // Without it the simulator would find the replicas apart at the second of these.
    for (int number = 10; number < 13; ++number) step(number);
    rank.report("parameters", flat(*line));
  });
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(cluster.reports("source")[rank].item<double>(), 1);
    EXPECT_TRUE(cluster.reports("parameters")[rank].equal(cluster.reports("parameters")[0]));
  }
}

TOPOLOGY_SUITE(JoinScopes, .also = {"2x4"}, .min_ranks = 2,
               .hardware = simulator::Hardware::kNoTpu);

TEST_P(JoinScopes, NobodyCatchesUpIfAllTrainedEquallyLong) {
  Cluster cluster = make_cluster({.seed = 1});
  cluster.run_on_every_rank([](Rank& rank) {
    Accelerator accelerator;
    torch::nn::Linear line(4, 1);
    auto model = accelerator.prepare(line);
    for (int count : {0, 3}) {
      JoinScope join({find_technique<DistributedDataParallel>(model)}, true,
                     [](int) { FAIL() << "nobody is ahead"; });
      const Tensor x = torch::ones({2, 4}).to(accelerator.device());
      for (int number = 0; number < count; ++number) model(x).sum().backward();
    }
    rank.report("gradient", line->bias.grad());
  });
  for (const Tensor& gradient : cluster.reports("gradient")) {
    EXPECT_EQ(gradient.item<float>(), 6);
  }
}

TEST_P(JoinScopes, ADisabledScopeChangesNothing) {
  Cluster cluster = make_cluster();
  cluster.run_on_every_rank([](Rank& rank) {
    Accelerator accelerator;
    torch::nn::Linear line(4, 1);
    auto model = accelerator.prepare(line);
    auto hook = [](int) { FAIL() << "it is disabled"; };
    JoinScope join({find_technique<DistributedDataParallel>(model)}, false, hook);
    EXPECT_FALSE(find_technique<DistributedDataParallel>(model)->joined());
    // Nothing is registered, so that a second one is not nested.
    JoinScope another({find_technique<DistributedDataParallel>(model)}, false, hook);
    JoinScope empty({}, true, hook);
    model(torch::ones({2, 4}).to(accelerator.device())).sum().backward();
    rank.report("gradient", line->bias.grad());
  });
  for (const Tensor& gradient : cluster.reports("gradient")) {
    EXPECT_EQ(gradient.item<float>(), 2);
  }
}

TEST_P(JoinScopes, AScopeCanBeMovedAndRepeated) {
  Cluster cluster = make_cluster();
  cluster.run_on_every_rank([](Rank& rank) {
    Accelerator accelerator;
    torch::nn::Linear line(4, 1);
    auto model = accelerator.prepare(line);
    auto enter = [&] { return JoinScope({find_technique<DistributedDataParallel>(model)}, true); };
    for (int epoch = 0; epoch < 3; ++epoch) {
      JoinScope join = enter();
      JoinScope moved = std::move(join);
      EXPECT_TRUE(find_technique<DistributedDataParallel>(model)->joined());
      // The one with more data alternates.
      const int count = (rank.index() + epoch) % 2 == 0 ? 3 : 1;
      const Tensor x = torch::ones({2, 4}).to(accelerator.device());
      for (int number = 0; number < count; ++number) model(x).sum().backward();
    }
    EXPECT_FALSE(find_technique<DistributedDataParallel>(model)->joined());
    model(torch::ones({2, 4}).to(accelerator.device())).sum().backward();
    rank.report("weight", line->weight);
  });
  for (const Tensor& weight : cluster.reports("weight")) {
    EXPECT_TRUE(weight.equal(cluster.reports("weight")[0]));
  }
}

}  // namespace
}  // namespace accelerate
