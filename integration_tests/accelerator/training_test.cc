// A training step on many ranks follows one large batch, and names the rank that broke it.
#include <cmath>
#include <functional>
#include <stdexcept>
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
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kSamples = 48;

struct NetImpl : torch::nn::Module {
  explicit NetImpl(uint64_t seed) {
    torch::manual_seed(seed);
    hidden = register_module("hidden", torch::nn::Linear(4, 8));
    output = register_module("output", torch::nn::Linear(8, 1));
    unused = register_module("unused", torch::nn::Linear(1, 1));
  }
  torch::Tensor forward(torch::Tensor x) {
    x = output(torch::tanh(hidden(x)));
    return use_all ? x + 0 * unused(x) : x;
  }
  torch::nn::Linear hidden{nullptr}, output{nullptr}, unused{nullptr};
  bool use_all = true;
};
TORCH_MODULE(Net);

DataLoader<TensorDataset<2>> made_loader(int64_t batch, int64_t samples = kSamples) {
  torch::manual_seed(1);
  auto x = torch::randn({samples, 4});
  return DataLoader(make_tensor_dataset(x, x.sum(1, /*keepdim=*/true)), {.batch_size = batch});
}

struct Training {
  int64_t global_batch = 12;
  int64_t accumulation = 1;
  DistributedDataParallelKwargs ddp = {};
  bool use_all = true;
};

// Trains two epochs and returns the flattened parameters.
torch::Tensor trained(Rank& rank, const Training& setup) {
  Accelerator accelerator(
      {.gradient_accumulation_steps = setup.accumulation, .kwargs_handlers = {setup.ddp}});
  // Ranks begin with different weights; prepare makes them rank 0's.
  Net net(100 + rank.index());
  net->use_all = setup.use_all;
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  const int64_t share = setup.global_batch / setup.accumulation / accelerator.num_processes();
  auto [model, optimizer, loader] = accelerator.prepare(net, sgd, made_loader(share));
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (auto& [x, y] : loader) {
      auto scope = accelerator.accumulate(model);
      accelerator.backward(torch::mse_loss(model(x), y));
      accelerator.clip_grad_norm_(model, 1.0);
      optimizer.step();
      optimizer.zero_grad();
    }
  }
  std::vector<torch::Tensor> flat;
  for (auto& parameter : net->parameters()) flat.push_back(parameter.detach().flatten());
  return torch::cat(flat);
}

std::vector<torch::Tensor> trained_on(const std::string& topology, const Training& setup) {
  Cluster cluster(topology, {.seed = simulator::seed_of_run(4)});
  cluster.run_on_every_rank([&](Rank& rank) { rank.report("parameters", trained(rank, setup)); });
  return cluster.reports("parameters");
}

TOPOLOGY_SUITE(DataParallel, .also = {"2x3"}, .hardware = simulator::Hardware::kNoTpu);
TOPOLOGY_SUITE(Accumulate, .min_ranks = 2, .hardware = simulator::Hardware::kNoTpu);
TOPOLOGY_SUITE(Failure, .min_ranks = 3, .hardware = simulator::Hardware::kNoTpu);
TOPOLOGY_SUITE(Metrics, .also = {"1x3"});
TOPOLOGY_SUITE(Operations, .also = {"1x3"});

void expect_follows_one_rank(const std::string& topology, const Training& setup) {
  const int ranks = simulator::TopologyTest::world_size();
  // Only ranks with equal, whole shares see the same batches.
  if (setup.global_batch / setup.accumulation % ranks != 0) return;
  const torch::Tensor expected = trained_on("1x1", {})[0];
  for (const torch::Tensor& parameters : trained_on(topology, setup)) {
    // SGD in single precision: sums in another order.
    EXPECT_TRUE(torch::allclose(parameters, expected, 1e-5, 1e-6)) << topology;
  }
}

TEST_P(DataParallel, FollowsOneRankWithTheSameGlobalBatch) {
  expect_follows_one_rank(topology(), {});
}

TEST_P(DataParallel, FollowsWithEveryOption) {
  expect_follows_one_rank(topology(), {.ddp = {.bucket_cap_mb = 1e-5}});
  expect_follows_one_rank(topology(), {.ddp = {.gradient_as_bucket_view = true}});
  expect_follows_one_rank(topology(), {.ddp = {.find_unused_parameters = true}});
}

TEST_P(DataParallel, FollowsWhenGradientsAccumulate) {
  expect_follows_one_rank(topology(), {.accumulation = 3});
}

TEST_P(DataParallel, FindsUnusedParametersOnlyWhenAsked) {
  const Training asked{.ddp = {.find_unused_parameters = true}, .use_all = false};
  EXPECT_EQ(trained_on(topology(), asked).size(), static_cast<size_t>(world_size()));
  if (world_size() == 1) return;  // Nothing is reduced.
  try {
    trained_on(topology(), {.use_all = false});
    FAIL() << "the missing gradient went unnoticed";
  } catch (const ClusterError& error) {
    EXPECT_THAT(error.what(), HasSubstr("find_unused_parameters"));
  }
}

TEST_P(DataParallel, AveragesSparseGradients) {
  Cluster cluster = make_cluster();
  cluster.run_on_every_rank([](Rank& rank) {
    Accelerator accelerator;
    const int ranks = accelerator.num_processes();
    auto table = torch::nn::Embedding(torch::nn::EmbeddingOptions(ranks + 2, 2).sparse(true));
    auto model = accelerator.prepare(table);
    model(torch::full({1}, rank.index(), torch::kLong).to(accelerator.device())).sum().backward();
    auto expected = torch::full({ranks + 2, 2}, 1. / ranks);
    expected.slice(0, ranks).zero_();
    EXPECT_TRUE(torch::equal(table->weight.grad().to_dense().cpu(), expected));
  });
}

TEST_P(DataParallel, KeepsBuffersOfRankZero) {
  Cluster cluster = make_cluster();
  cluster.run_on_every_rank([](Rank& rank) {
    Accelerator accelerator;
    torch::nn::BatchNorm1d norm(1);
    auto model = accelerator.prepare(norm);
    for (int step = 0; step < 2; ++step) {
      model((torch::randn({8, 1}) + 10 * rank.index()).to(accelerator.device())).sum().backward();
    }
    model(torch::zeros({8, 1}).to(accelerator.device()));  // Buffers are sent before the pass.
    rank.report("batches", norm->num_batches_tracked.to(torch::kDouble));
    rank.report("mean", norm->running_mean.clone());
  });
  auto means = cluster.reports("mean");
  for (const torch::Tensor& mean : means) EXPECT_TRUE(torch::equal(mean, means[0]));
}

TEST_P(Accumulate, SynchronisesOnEveryKthAndOnTheLastBatch) {
  make_cluster().run_on_every_rank([](Rank&) {
    Accelerator accelerator({.gradient_accumulation_steps = 2});
    torch::nn::Linear net(4, 1);
    torch::optim::SGD sgd(net->parameters(), 0.1);
    torch::optim::StepLR step_lr(sgd, 1, 0.5);
    auto [model, optimizer, scheduler, loader] =
        accelerator.prepare(net, sgd, step_lr, made_loader(1, 5 * world_size()));
    std::vector<int> synced;
    int batch = 0;
    for (auto& [x, y] : loader) {
      ++batch;
      auto scope = accelerator.accumulate(model);
      accelerator.backward(torch::mse_loss(model(x), y));
      optimizer.step();
      scheduler.step();
      optimizer.zero_grad();
      if (accelerator.sync_gradients()) synced.push_back(batch);
      EXPECT_EQ(net->weight.grad().defined(), !accelerator.sync_gradients());
    }
    EXPECT_THAT(synced, ::testing::ElementsAre(2, 4, 5));
    // A schedule step of each rank for each of three optimizer steps. LibTorch's StepLR halves on
    // all but its first.
    EXPECT_DOUBLE_EQ(sgd.param_groups()[0].options().get_lr(),
                     0.1 * std::pow(0.5, 3 * world_size() - 1));
  });
}

TEST_P(Accumulate, WakesTheModelWhenTheScopeEndsByAnException) {
  make_cluster().run_on_every_rank([](Rank&) {
    Accelerator accelerator;
    auto model = accelerator.prepare(torch::nn::Linear(1, 1));
    try {
      auto outer = accelerator.no_sync(model);
      auto inner = accelerator.no_sync();
      EXPECT_FALSE(find_technique<DistributedDataParallel>(model)->require_sync());
      throw std::runtime_error("leave");
    } catch (const std::runtime_error&) {
    }
    EXPECT_TRUE(find_technique<DistributedDataParallel>(model)->require_sync());
  });
}

TEST_P(Metrics, CountEachSampleOnce) {
  for (int64_t samples : {1, 5, 8, 13}) {
    for (int64_t batch : {1, 2, 4}) {
      SCOPED_TRACE(::testing::Message() << samples << " by " << batch);
      make_cluster().run_on_every_rank([&](Rank&) {
        Accelerator accelerator;
        auto loader = accelerator.prepare(
            DataLoader(make_tensor_dataset(torch::arange(samples)), {.batch_size = batch}));
        std::vector<torch::Tensor> seen;
        for (auto& [x] : loader) seen.push_back(accelerator.gather_for_metrics(x).cpu());
        auto all = std::get<0>(torch::cat(seen).sort());
        EXPECT_TRUE(torch::equal(all, torch::arange(samples))) << all;
      });
    }
  }
}

TEST_P(Operations, GatherAndReduceTrees) {
  Cluster cluster = make_cluster();
  cluster.run_on_every_rank([](Rank& rank) {
    Accelerator accelerator;
    const double index = rank.index();
    const int64_t ranks = accelerator.num_processes();
    const torch::Device device = accelerator.device();
    auto own = [&] { return torch::scalar_tensor(index, device); };
    auto [scalar, rows] =
        accelerator.gather(std::pair(own(), std::vector{torch::full({1, 2}, index, device)}));
    EXPECT_TRUE(torch::equal(scalar.cpu().view(ranks), torch::arange(ranks).to(torch::kFloat)));
    EXPECT_EQ(rows[0].sizes(), (std::vector<int64_t>{ranks, 2}));
    const double sum = 0.5 * static_cast<double>(ranks * (ranks - 1));
    EXPECT_EQ(accelerator.reduce(own()).item<double>(), sum);
    EXPECT_EQ(accelerator.reduce(own(), Reduction::kMean).item<double>(), sum / ranks);
    if (ranks == 1) return;
    EXPECT_THROW(accelerator.reduce(torch::ones({1}, torch::kLong).to(device), Reduction::kMean),
                 c10::ValueError);
    EXPECT_EQ(
        gather_ragged(accelerator.state().group(), torch::ones({rank.index()}).to(device)).numel(),
        sum);
  });
}

// One rank breaks the rules in its own way; every rank must learn of it, and by name.
std::string failure_when_rank_two(const std::function<void(Accelerator&)>& misbehaves) {
  const auto ranks = static_cast<size_t>(simulator::TopologyTest::world_size());
  std::string what;
  for (const uint64_t seed : simulator::kSeeds) {
    Cluster cluster = simulator::TopologyTest::make_cluster({.seed = seed});
    try {
      cluster.run_on_every_rank([&](Rank& rank) {
        Accelerator accelerator;
        auto model = accelerator.prepare(torch::nn::Linear(1, 1));
        for (int step = 0; step < 3; ++step) {
          auto loss = model(torch::ones({1, 1}).to(accelerator.device())).sum();
          if (step == 1 && rank.index() == 2) return misbehaves(accelerator);
          accelerator.backward(loss);
          accelerator.gather(loss.detach());
        }
      });
      ADD_FAILURE() << "nobody noticed";
    } catch (const ClusterError& error) {
      what = error.what();
      EXPECT_EQ(error.failures().size(), error.failures()[0].rank == 2 ? ranks : ranks - 1) << what;
    }
  }
  return what;
}

TEST_P(Failure, OfARankThatSkipsABackwardPassNamesIt) {
  EXPECT_THAT(failure_when_rank_two([](Accelerator&) {}),
              AllOf(HasSubstr("waiting for rank 2"), HasSubstr("rank 2: ended normally")));
}

TEST_P(Failure, OfARankThatThrowsNamesIt) {
  EXPECT_THAT(failure_when_rank_two([](Accelerator&) { throw std::runtime_error("bad sample"); }),
              HasSubstr("rank 2 failed: bad sample"));
}

TEST_P(Failure, OfARankThatGathersAnotherShapeNamesIt) {
  try {
    make_cluster().run_on_every_rank([](Rank& rank) {
      Accelerator accelerator;
      const int64_t size = rank.index() == 1 ? 3 : 2;
      accelerator.gather(torch::ones({size}).to(accelerator.device()));
    });
    FAIL() << "nobody noticed";
  } catch (const ClusterError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("shape Float[2] against Float[3]"),
                                    HasSubstr("rank 1: all_gather_into_tensor")));
  }
}

TEST_P(Failure, OfReplicasThatDifferNamesTheParameter) {
  try {
    make_cluster().run_on_every_rank([](Rank& rank) {
      Accelerator accelerator;
      accelerator.prepare(torch::nn::Linear(1, 1 + rank.index()));
    });
    FAIL() << "nobody noticed";
  } catch (const ClusterError& error) {
    EXPECT_THAT(error.what(), HasSubstr("param"));
  }
}

}  // namespace
}  // namespace accelerate
