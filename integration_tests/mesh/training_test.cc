// Training on a mesh whose tp ranks train alike: what the ranks of a share compute is, bit for bit,
// what its one rank computes without the tp axis. Clusters have the shape that the mesh needs.
#include <array>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "absl/strings/str_cat.h"
#include "accelerate/accelerate.h"
#include "accelerate/optim/lomo.h"
#include "accelerate/optim/schedulers/decay.h"
#include "accelerate/testing/value_error.h"
#include "integration_tests/mesh/arranged_ranks.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::Rank;
using ::testing::AllOf;
using ::testing::HasSubstr;
using torch::Tensor;

ParallelismConfig replicas_and_tp(int64_t replicas, int64_t tp) {
  return ParallelismConfig({.dp_replicate_size = replicas, .tp_size = tp});
}

// ---- The same training with and without a tp axis.

enum class Optimizer { kSgd, kAdamW, kLomo };

struct Setting {
  std::string name;
  Optimizer optimizer = Optimizer::kSgd;
  GradientAccumulationPlugin accumulation = {};
  bool by_tokens = false;
  double dropout = 0;
  std::optional<PrecisionType> precision = std::nullopt;
  std::vector<KwargsHandler> handlers = {};
};

std::vector<Setting> settings() {
  const GradientAccumulationPlugin thirds{.num_steps = 3};
  const GradientAccumulationPlugin synchronised{.num_steps = 3, .sync_each_batch = true};
  return {
      {.name = "SGD"},
      {.name = "AdamW", .optimizer = Optimizer::kAdamW},
      {.name = "accumulated", .accumulation = thirds},
      {.name = "accumulated, AdamW", .optimizer = Optimizer::kAdamW, .accumulation = thirds},
      {.name = "accumulated, synchronised", .accumulation = synchronised},
      {.name = "tokens", .by_tokens = true},
      {.name = "tokens, accumulated", .accumulation = thirds, .by_tokens = true},
      {.name = "tokens, synchronised", .accumulation = synchronised, .by_tokens = true},
      {.name = "LOMO", .optimizer = Optimizer::kLomo},
      {.name = "dropout", .dropout = 0.5},
      {.name = "fp16", .precision = PrecisionType::kFp16},
      {.name = "fp8", .precision = PrecisionType::kFp8},
      {.name = "PowerSGD",
       .handlers = {DistributedDataParallelKwargs{
           .comm_hook = DDPCommunicationHookType::kPowerSgd,
           .comm_state_option = {.start_powerSGD_iter = 2}}}},
  };
}

constexpr int64_t kWidth = 16;
constexpr int64_t kRows = 16;  // of a share's batch
constexpr int kSteps = 6;

std::shared_ptr<torch::optim::Optimizer> made(Optimizer kind, std::vector<Tensor> parameters) {
  switch (kind) {
    case Optimizer::kSgd:
      return std::make_shared<torch::optim::SGD>(std::move(parameters),
                                                 torch::optim::SGDOptions(0.05).momentum(0.9));
    case Optimizer::kAdamW:
      return std::make_shared<torch::optim::AdamW>(std::move(parameters),
                                                   torch::optim::AdamWOptions(0.01));
    default: return std::make_shared<optim::Lomo>(std::move(parameters), optim::LomoOptions(0.05));
  }
}

// The rows of one share in one step.
Tensor batch_of(uint64_t seed, int step, const DataShare& share) {
  const at::Generator generator =
      at::detail::createCPUGenerator(1000 * seed + static_cast<uint64_t>(step));
  return torch::randn({share.count, kRows, kWidth}, generator)[share.index];
}

// All that a rank sees of its training, as one vector.
Tensor history(const Setting& setting, uint64_t seed, Accelerator& accelerator) {
  // Only rank 0's weights and buffers count.
  torch::manual_seed(seed + 100 * static_cast<uint64_t>(accelerator.process_index()));
  torch::nn::Sequential net(torch::nn::Linear(kWidth, 32), torch::nn::BatchNorm1d(32),
                            torch::nn::Tanh(), torch::nn::Dropout(setting.dropout),
                            torch::nn::Linear(32, kWidth));
  const auto bare = made(setting.optimizer, net->parameters());
  optim::StepLR schedule(*bare, {.step_size = 4, .gamma = 0.5});
  auto [model, optimizer, scheduler] = accelerator.prepare(net.ptr(), bare, schedule);
  const DataShare share = accelerator.state().data_share();
  set_seed(seed, {.device_specific = true});

  std::vector<Tensor> seen;
  const auto see = [&seen](const Tensor& tensor) {
    if (tensor.defined()) seen.push_back(tensor.detach().cpu().to(torch::kDouble).flatten());
  };
  for (int step = 0; step < kSteps; ++step) {
    auto scope = accelerator.accumulate(model);
    const int64_t rows = setting.by_tokens ? kRows - (share.index + step) % 2 : kRows;
    const Tensor x = batch_of(seed, step, share).narrow(0, 0, rows).to(accelerator.device());
    const Tensor losses = (model(x) - x.tanh()).square();
    if (setting.by_tokens) {
      see(losses);
      see(accelerator.backward_tokens(losses.sum(), rows));
    } else {
      see(losses.mean());
      accelerator.backward(losses.mean());
    }
    for (const Tensor& parameter : net->parameters()) see(parameter.grad());
    optimizer.step();
    scheduler.step();
    optimizer.zero_grad();
    see(torch::tensor(scheduler.get_last_lr(), torch::kDouble));
  }
  for (const Tensor& parameter : net->parameters()) see(parameter);
  for (const Tensor& buffer : net->buffers()) see(buffer);
  return torch::cat(seen);
}

std::vector<Tensor> histories_on(const std::string& shape, int64_t replicas, int64_t tp,
                                 const Setting& setting, uint64_t seed) {
  Cluster cluster(shape, {.seed = seed});
  cluster.run_on_every_rank([&](Rank& rank) {
    AcceleratorOptions options = {.mixed_precision = setting.precision,
                                  .gradient_accumulation_plugin = setting.accumulation,
                                  .kwargs_handlers = setting.handlers};
    if (tp > 1) options.parallelism_config = replicas_and_tp(replicas, tp);
    Accelerator accelerator(arranged(std::move(options)));
    rank.report("history", history(setting, seed, accelerator));
  });
  return cluster.reports("history");
}

void expect_trains_as_without_tp(const std::string& shape, const std::string& plain_shape,
                                 int64_t replicas, int64_t tp, uint64_t seeds) {
  std::vector<Tensor> first;  // of each setting
  for (const Setting& setting : settings()) {
    for (uint64_t seed = 1; seed <= seeds; ++seed) {
      const std::vector<Tensor> plain = histories_on(plain_shape, replicas, 1, setting, seed);
      const std::vector<Tensor> mesh = histories_on(shape, replicas, tp, setting, seed);
      if (seed == 1) {
        for (const Tensor& other : first) {
          EXPECT_FALSE(torch::equal(plain[0], other)) << setting.name << " changes nothing";
        }
        first.push_back(plain[0]);
      }
      ASSERT_EQ(static_cast<int64_t>(plain.size()), replicas);
      ASSERT_EQ(static_cast<int64_t>(mesh.size()), replicas * tp);
      EXPECT_FALSE(torch::equal(plain[0], plain[1])) << "shares have data of their own";
      for (size_t rank = 0; rank < mesh.size(); ++rank) {
        ASSERT_TRUE(torch::equal(mesh[rank], plain[rank / static_cast<size_t>(tp)]))
            << setting.name << ", seed " << seed << ", rank " << rank;
      }
    }
  }
}

TEST(MeshTraining, OfTwoSharesAndTpIsThatOfTwoRanks) {
  expect_trains_as_without_tp("1x4:h100", "1x2:h100", 2, 2, /*seeds=*/10);
}

TEST(MeshTraining, OfFourSharesAndTpIsThatOfFourRanks) {
  expect_trains_as_without_tp("2x4:h100", "1x4:h100", 4, 2, /*seeds=*/2);
}

// Ranks of one share have the same shards, and their gradients go among those of a column.
TEST(MeshTraining, OfShardsAndTpIsThatOfShards) {
  const auto losses_on = [](const char* shape, const ParallelismOptions& mesh) {
    Cluster cluster(shape);
    cluster.run_on_every_rank([&](Rank& rank) {
      Accelerator accelerator(arranged({.parallelism_config = ParallelismConfig(mesh)}));
      torch::manual_seed(static_cast<uint64_t>(rank.index()));
      torch::nn::Sequential net(torch::nn::Linear(kWidth, 32), torch::nn::BatchNorm1d(32),
                                torch::nn::Tanh(), torch::nn::Linear(32, kWidth));
      auto [model, optimizer] =
          accelerator.prepare(net.ptr(), made(Optimizer::kAdamW, net->parameters()));
      const DataShare share = accelerator.state().data_share();
      std::vector<Tensor> losses;
      for (int step = 0; step < kSteps; ++step) {
        const Tensor x = batch_of(/*seed=*/1, step, share).to(accelerator.device());
        const Tensor loss = (model(x) - x.tanh()).square().mean();
        accelerator.backward(loss);
        losses.push_back(accelerator.clip_grad_norm_(net->parameters(), 0.05).detach().cpu());
        optimizer.step();
        optimizer.zero_grad();
        losses.push_back(loss.detach().cpu());
      }
      rank.report("losses", torch::stack(losses));
    });
    return cluster.reports("losses");
  };
  const std::vector<Tensor> alone = losses_on("1x2", {.dp_shard_size = 2}),
                            beside = losses_on("1x4", {.dp_shard_size = 2, .tp_size = 2});
  for (size_t rank = 0; rank < beside.size(); ++rank) {
    EXPECT_TRUE(torch::allclose(beside[rank], alone[rank / 2], 1e-6, 1e-6)) << rank;
  }
}

// ---- What replicas begin with.

// One share has no gradients to average, but its ranks must begin alike.
TEST(MeshTraining, OfOneShareBeginsWithRankZerosWeights) {
  Cluster cluster("1x2:h100");
  cluster.run_on_every_rank([](Rank& rank) {
    Accelerator accelerator(arranged({.parallelism_config = replicas_and_tp(1, 2)}));
    torch::manual_seed(static_cast<uint64_t>(rank.index()));
    torch::nn::Sequential net(torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4));
    net->buffers()[0].fill_(rank.index());
    auto model = accelerator.prepare(net.ptr());
    EXPECT_EQ(find_technique<DistributedDataParallel>(model), nullptr);
    model(torch::ones({2, 3}, accelerator.device())).sum().backward();
    std::vector<Tensor> state;
    for (const Tensor& parameter : net->parameters()) {
      state.push_back(parameter.detach().flatten());
      state.push_back(parameter.grad().flatten());
    }
    for (const Tensor& buffer : net->buffers()) state.push_back(buffer.flatten().to(torch::kFloat));
    rank.report("state", torch::cat(state));
  });
  const std::vector<Tensor> states = cluster.reports("state");
  EXPECT_TRUE(torch::equal(states[0], states[1]));
}

TEST(MeshTraining, RefusesModelsThatDifferBetweenRanksThatTrainAlike) {
  Cluster("1x4:h100").run_on_every_rank([](Rank& rank) {
    Accelerator accelerator(arranged({.parallelism_config = replicas_and_tp(2, 2)}));
    EXPECT_THAT(value_error_of(
                    [&] { accelerator.prepare(torch::nn::Linear(2, rank.index() == 1 ? 3 : 2)); }),
                AllOf(HasSubstr("ranks have different models"), HasSubstr("on rank 1")));
  });
}

// ---- What counts shares, and what counts ranks.

TEST(MeshTraining, GathersEachSampleOnceForMetrics) {
  Cluster("1x4:h100").run_on_every_rank([](Rank& rank) {
    Accelerator accelerator(arranged({.parallelism_config = replicas_and_tp(2, 2)}));
    const DataShare share = accelerator.state().data_share();
    EXPECT_EQ(share.index, rank.index() / 2);
    EXPECT_EQ(share.count, 2);
    const Tensor own = torch::arange(3) + 3 * share.index;
    EXPECT_TRUE(accelerator.gather_for_metrics(own).equal(torch::arange(6)));
    EXPECT_EQ(accelerator.gather(own).numel(), 12) << "all ranks";
    // Only the first share has a batch.
    if (share.index != 0) return;
    GradientState::LoaderScope loader(accelerator.gradient_state());
    loader.set_round({.own_rows = 3, .real_rows = 3, .shares = 1});
    EXPECT_TRUE(accelerator.gather_for_metrics(own).equal(own));
  });
}

TEST(MeshTraining, GathersAmongTheSharesThatHaveABatch) {
  Cluster("2x3:h100").run_on_every_rank([](Rank&) {
    Accelerator accelerator(arranged({.parallelism_config = replicas_and_tp(3, 2)}));
    const DataShare share = accelerator.state().data_share();
    if (share.index == 2) return;
    GradientState::LoaderScope loader(accelerator.gradient_state());
    loader.set_round({.own_rows = 2, .real_rows = 4, .shares = 2});
    const Tensor own = torch::arange(2) + 2 * share.index;
    EXPECT_TRUE(accelerator.gather_for_metrics(own).equal(torch::arange(4)));
  });
}

// Five batches for two shares: in the last round the second one has padding, or no batch.
TEST(MeshTraining, GathersEachSampleOfALoaderOnce) {
  Cluster("1x4:h100").run_on_every_rank([](Rank&) {
    Accelerator accelerator(arranged({.parallelism_config = replicas_and_tp(2, 2)}));
    const bool is_first = accelerator.state().data_share().index == 0;
    for (const bool even : {true, false}) {
      accelerator.set_even_batches(even);
      auto loader = accelerator.prepare(
          DataLoader(make_tensor_dataset(torch::arange(10)), {.batch_size = 2}));
      std::vector<Tensor> gathered;
      for (auto& [own] : loader) gathered.push_back(accelerator.gather_for_metrics(own).cpu());
      EXPECT_TRUE(torch::cat(gathered).equal(torch::arange(even || is_first ? 10 : 8)));
    }
  });
}

TEST(MeshTraining, DrawsAlikeWhereRanksTrainAlike) {
  Cluster cluster("1x4:h100");
  cluster.run_on_every_rank([](Rank& rank) {
    set_seed(7, {.device_specific = true});
    rank.report("before", torch::rand({4}));
    Accelerator accelerator(arranged({.parallelism_config = replicas_and_tp(2, 2)}));
    set_seed(7, {.device_specific = true});
    rank.report("host", torch::rand({4}));
    rank.report("device", torch::rand({4}, accelerator.device()));
  });
  for (const char* name : {"host", "device"}) {
    const std::vector<Tensor> drawn = cluster.reports(name);
    EXPECT_TRUE(torch::equal(drawn[0], drawn[1])) << name;
    EXPECT_TRUE(torch::equal(drawn[2], drawn[3])) << name;
    EXPECT_FALSE(torch::equal(drawn[0], drawn[2])) << name;
  }
  const std::vector<Tensor> before = cluster.reports("before");
  EXPECT_FALSE(torch::equal(before[0], before[1])) << "there is no mesh yet";
}

// An infinite gradient of one rank reaches its column only.
TEST(MeshTraining, SkipsAStepOnAllRanksIfOneOverflows) {
  Cluster cluster("1x4:h100");
  cluster.run_on_every_rank([](Rank& rank) {
    Accelerator accelerator(arranged(
        {.mixed_precision = PrecisionType::kFp16, .parallelism_config = replicas_and_tp(2, 2)}));
    torch::nn::Linear net(4, 2);
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    for (int step = 0; step < 3; ++step) {
      Tensor loss = model(torch::ones({2, 4}, accelerator.device())).square().mean();
      if (step == 1 && rank.index() == 3) loss = loss * std::numeric_limits<float>::infinity();
      const double scale = accelerator.scaler()->get_scale();
      accelerator.backward(loss);
      optimizer.step();
      EXPECT_EQ(accelerator.optimizer_step_was_skipped(), step == 1);
      EXPECT_EQ(accelerator.scaler()->get_scale(), step == 1 ? scale / 2 : scale);
      optimizer.zero_grad();
    }
    rank.report("weight", net->weight.detach().cpu());
  });
  const std::vector<Tensor> weights = cluster.reports("weight");
  for (const Tensor& weight : weights) EXPECT_TRUE(torch::equal(weight, weights[0]));
}

TEST(MeshTraining, RefusesToLetRanksThatTrainAlikeGoTheirOwnWays) {
  Cluster("1x4:h100").run_on_every_rank([](Rank&) {
    Accelerator accelerator(arranged({.parallelism_config = replicas_and_tp(2, 2)}));
    auto model = accelerator.prepare(torch::nn::Linear(2, 2));
    EXPECT_THAT(value_error_of([&] { (void)accelerator.join_uneven_inputs(model); }),
                HasSubstr("join_uneven_inputs: every rank must train on data of its own, but ranks "
                          "are arranged as dp_replicate 2 x tp 2; set all sizes"));
  });
}

// Ranks along tp train alike, and those along dp_replicate do not.
TEST(MeshTraining, AveragesAmongReplicasWhereOtherRanksTrainAlike) {
  Cluster cluster("1x4:h100");
  cluster.run_on_every_rank([](Rank& rank) {
    Accelerator accelerator(arranged({.parallelism_config = replicas_and_tp(2, 2)}));
    torch::nn::Linear net(2, 2);
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    {
      LocalSGD local_sgd(accelerator, model, 10);
      const float input = 1.0F + static_cast<float>(accelerator.state().data_share().index);
      accelerator.backward(model(input * torch::ones({1, 2}, accelerator.device())).square().sum());
      optimizer.step();
      local_sgd.step();
      rank.report("before", net->weight.detach().cpu().clone());
    }
    rank.report("after", net->weight.detach().cpu().clone());
  });
  const std::vector<Tensor> before = cluster.reports("before"), after = cluster.reports("after");
  EXPECT_TRUE(torch::equal(before[0], before[1]));
  EXPECT_TRUE(torch::equal(before[2], before[3]));
  EXPECT_FALSE(torch::equal(before[0], before[2]));
  for (const Tensor& each : after) {
    EXPECT_TRUE(torch::allclose(each, (before[0] + before[2]) / 2));
    EXPECT_TRUE(torch::equal(each, after[0]));
  }
}

TEST(MeshTraining, LetsReplicasGoTheirOwnWays) {
  Cluster("1x2:h100").run_on_every_rank([](Rank& rank) {
    Accelerator accelerator({.parallelism_config = replicas_and_tp(2, 1)});
    torch::nn::Linear net(2, 2);
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const auto train = [&](int steps) {
      for (int step = 0; step < steps; ++step) {
        const Tensor x = (1.0F + rank.index() + step) * torch::ones({1, 2}, accelerator.device());
        accelerator.backward(model(x).square().sum());
        optimizer.step();
        optimizer.zero_grad();
      }
    };
    const auto weights_of_all = [&] {
      return accelerator.gather(net->weight.detach().flatten().unsqueeze(0)).cpu();
    };
    {
      const auto scope = accelerator.join_uneven_inputs({.even_batches = false}, model);
      train(1 + rank.index());
    }
    Tensor weights = weights_of_all();
    EXPECT_TRUE(torch::equal(weights[0], weights[1]));
    {
      LocalSGD local_sgd(accelerator, model, 2);
      train(1);
      weights = weights_of_all();
      EXPECT_FALSE(torch::equal(weights[0], weights[1]));
    }
    weights = weights_of_all();
    EXPECT_TRUE(torch::equal(weights[0], weights[1]));
  });
}

}  // namespace
}  // namespace accelerate
