// Every strategy and precision of sharded training, on simulated clusters of two nodes: what it
// computes, and what it holds on devices and hosts.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <iostream>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "absl/strings/str_cat.h"
#include "accelerate/accelerate.h"
#include "accelerate/big_model/empty_model.h"
#include "accelerate/config/deepspeed_plugin.h"
#include "accelerate/config/fsdp_plugin.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/examples/lm/model.h"
#include "accelerate/operators/managed_storage.h"
#include "accelerate/optim/fused_optimizers.h"
#include "accelerate/testing/value_error.h"
#include "integration_tests/sharding/small_models.h"
#include "integration_tests/sharding/small_training.h"
#include "simulator/cluster/cluster.h"
#include "simulator/device/sim_device.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::MemoryCategory;
using simulator::Rank;
using ::testing::HasSubstr;
using torch::Tensor;
namespace nn = torch::nn;
using Plugin = FullyShardedDataParallelPlugin;

constexpr ShardingStrategy kStrategies[] = {
    ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp, ShardingStrategy::kNoShard,
    ShardingStrategy::kHybridShard, ShardingStrategy::kHybridShardZero2};

struct Job {
  std::string shape = "2x2:h100";
  std::optional<Plugin> plugin;
  std::optional<ParallelismOptions> parallelism;
  PrecisionType precision = PrecisionType::kNo;
  bool adam = false;
  int64_t accumulation = 1;
  double max_norm = 0;
  uint64_t seed = 0;
};

template <typename Net>
Outcome train(const Job& job) {
  return train_on_cluster<Net>({.shape = job.shape,
                                .options = {.mixed_precision = job.precision,
                                            .gradient_accumulation_steps = job.accumulation,
                                            .fsdp_plugin = job.plugin},
                                .parallelism = job.parallelism,
                                .adam = job.adam,
                                .max_norm = job.max_norm,
                                .seed = job.seed});
}

// The units of the language model are its blocks.
Plugin plugin_of(ShardingStrategy strategy, int version = 1) {
  Plugin plugin{.fsdp_version = version};
  if (version == 1) {
    plugin.sharding_strategy = strategy;
  } else {
    plugin.reshard_after_forward = strategy == ShardingStrategy::kFullShard;
  }
  plugin.auto_wrap_policy = "TRANSFORMER_BASED_WRAP";
  plugin.transformer_cls_names_to_wrap = {{"Block"}};
  return plugin;
}
template <typename Net>
Plugin plugin_for(ShardingStrategy strategy, int version = 1) {
  Plugin plugin = plugin_of(strategy, version);
  if constexpr (std::is_same_v<Net, ConvnetImpl>) {
    plugin.auto_wrap_policy = "SIZE_BASED_WRAP";
    plugin.transformer_cls_names_to_wrap = std::nullopt;
    plugin.min_num_params = 100;
  }
  return plugin;
}

template <typename Net>
void expect_training_of_replicas(const Job& like) {
  const double tolerance = like.adam ? 1e-5 : 1e-6;
  const Outcome replicas = train<Net>(like);
  for (const ShardingStrategy strategy : kStrategies) {
    SCOPED_TRACE(to_string(strategy));
    Job job = like;
    job.plugin = plugin_for<Net>(strategy);
    expect_near(train<Net>(job), replicas, tolerance);
  }
  for (const auto strategy : {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp}) {
    SCOPED_TRACE(absl::StrCat("version 2, ", to_string(strategy)));
    Job job = like;
    job.plugin = plugin_for<Net>(strategy, 2);
    expect_near(train<Net>(job), replicas, tolerance);
  }
}

TEST(ShardingStrategies, TrainAsReplicasDo) {
  for (const bool adam : {false, true}) {
    expect_training_of_replicas<lm::LmImpl>({.adam = adam});
    expect_training_of_replicas<ConvnetImpl>({.adam = adam});
  }
}

TEST(ShardingStrategies, TrainAsReplicasDoWithAccumulationAndClipping) {
  expect_training_of_replicas<lm::LmImpl>({.accumulation = 2, .max_norm = 0.05});
}

// What one process computes that casts its parameters for each rank's pass. Modules with running
// statistics keep theirs.
template <typename Net>
Outcome train_with_casts(at::ScalarType dtype, int ranks, at::ScalarType sent) {
  torch::manual_seed(5);
  const std::shared_ptr<Net> kept = make(static_cast<const Net*>(nullptr));
  torch::optim::SGD sgd(kept->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  const std::vector<Tensor> parameters = kept->parameters();
  Outcome outcome;
  for (int step = 0; step < kSteps; ++step) {
    double loss_sum = 0;
    std::vector<Tensor> sums(parameters.size());
    std::vector<Tensor> buffers;  // rank 0's
    for (int rank = 0; rank < ranks; ++rank) {
      const std::shared_ptr<Net> cast = make(static_cast<const Net*>(nullptr));
      {
        const torch::NoGradGuard no_grad;
        for (size_t i = 0; i < parameters.size(); ++i) cast->parameters()[i].copy_(parameters[i]);
        for (size_t i = 0; i < cast->buffers().size(); ++i) {
          cast->buffers()[i].copy_(kept->buffers()[i]);
        }
      }
      for (const auto& part : cast->modules()) {
        if (part->named_buffers(false).contains("running_mean")) continue;
        for (const auto& item : part->named_parameters(false)) {
          item.value().set_data(item.value().to(dtype));
        }
      }
      const Tensor loss = loss_of(
          [&](const Tensor& x) { return cast->forward(x.is_floating_point() ? x.to(dtype) : x); },
          *cast, step, rank, c10::kCPU);
      loss.backward();
      loss_sum += loss.template item<float>();
      for (size_t i = 0; i < parameters.size(); ++i) {
        const Tensor gradient = cast->parameters()[i].grad();
        const Tensor part = gradient.scalar_type() == dtype ? gradient.to(sent) : gradient;
        sums[i] = sums[i].defined() ? sums[i] + part : part;
      }
      if (rank == 0) buffers = cast->buffers();
    }
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < parameters.size(); ++i) {
      parameters[i].mutable_grad() = sums[i].to(torch::kFloat) / ranks;
    }
    for (size_t i = 0; i < buffers.size(); ++i) kept->buffers()[i].copy_(buffers[i]);
    sgd.step();
    outcome.losses.push_back(loss_sum / ranks);
    outcome.skipped.push_back(false);
  }
  for (const Tensor& each : parameters) outcome.weights.push_back(each.detach());
  return outcome;
}

template <typename Net>
void expect_training_with_casts() {
  constexpr double kTolerance = 2e-2;
  const Outcome alone = train_with_casts<Net>(torch::kBFloat16, 4, torch::kBFloat16);
  const auto job = [](ShardingStrategy strategy, int version = 1) {
    return Job{.plugin = plugin_for<Net>(strategy, version), .precision = PrecisionType::kBf16};
  };
  const Outcome full = train<Net>(job(ShardingStrategy::kFullShard));
  for (const ShardingStrategy strategy : kStrategies) {
    SCOPED_TRACE(to_string(strategy));
    const Outcome outcome = train<Net>(job(strategy));
    expect_near(outcome, alone, kTolerance);
    expect_near(outcome, full, kTolerance);
  }
  for (const auto strategy : {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp}) {
    SCOPED_TRACE(absl::StrCat("version 2, ", to_string(strategy)));
    expect_near(train<Net>(job(strategy, 2)), alone, kTolerance);
  }
  SCOPED_TRACE("dp_shard alone");
  expect_near(train<Net>({.parallelism = ParallelismOptions{.dp_shard_size = 4},
                          .precision = PrecisionType::kBf16}),
              alone, kTolerance);
}

TEST(ShardingStrategies, TrainInBf16AsOneProcessWithTheSameCasts) {
  expect_training_with_casts<lm::LmImpl>();
  expect_training_with_casts<ConvnetImpl>();
}

// Two reductions, on groups that overlap, are on their way at a time.
TEST(ShardingStrategies, HybridOnesHaveTheSameBitsInEveryOrderOfRanks) {
  Job job{.plugin = plugin_of(ShardingStrategy::kHybridShard), .adam = true, .max_norm = 0.05};
  const Outcome first = train<lm::LmImpl>(job);
  constexpr uint64_t kSeeds = 8;
  for (job.seed = 1; job.seed <= kSeeds; ++job.seed) {
    const Outcome outcome = train<lm::LmImpl>(job);
    EXPECT_EQ(outcome.losses, first.losses) << job.seed;
    EXPECT_EQ(outcome.norms, first.norms) << job.seed;
    for (size_t i = 0; i < first.weights.size(); ++i) {
      EXPECT_TRUE(torch::equal(outcome.weights[i], first.weights[i])) << job.seed;
    }
  }
}

// ---- Memory.

// What a rank has of parameters, gradients and AdamW's two moments, and of gathered parameters if
// all are. `ranks` divide the model, and this is the one of that number.
struct Formula {
  int64_t shards = 0, moments = 0, gathered = 0;

  Formula(const std::vector<Tensor>& parameters, int ranks, int rank, int64_t gathered_bytes) {
    for (const Tensor& each : parameters) {
      const int64_t rows = each.size(0), row = each.numel() / rows;
      const int64_t most = (rows + ranks - 1) / ranks;
      const int64_t own = std::clamp<int64_t>(rows - most * rank, 0, most);
      shards += blocks(4 * most * row);
      moments += 2 * blocks(4 * own * row);
      gathered += blocks(gathered_bytes * most * ranks * row);
    }
  }
};

void expect_memory(ShardingStrategy strategy, PrecisionType precision,
                   simulator::Numerics numerics) {
  SCOPED_TRACE(absl::StrCat(to_string(strategy), ", ", to_string(precision)));
  simulator::ClusterOptions cluster_options{.numerics = numerics};
  Cluster cluster("2x4:h100", cluster_options);
  cluster.run_on_every_rank([&](Rank& rank) {
    Accelerator accelerator({.mixed_precision = precision, .fsdp_plugin = plugin_of(strategy)});
    lm::Lm net(tiny());
    const bool is_hybrid = strategy == ShardingStrategy::kHybridShard ||
                           strategy == ShardingStrategy::kHybridShardZero2;
    const bool stays = strategy == ShardingStrategy::kShardGradOp ||
                       strategy == ShardingStrategy::kHybridShardZero2;
    const int ranks = is_hybrid ? 4 : 8;
    const Formula formula(net->parameters(), ranks, rank.index() % ranks,
                          precision == PrecisionType::kNo ? 4 : 2);
    optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(1e-3));
    auto [model, optimizer] = accelerator.prepare(net, adamw);
    const auto held = [&](MemoryCategory category) {
      return rank.device()->memory().by_category()[static_cast<size_t>(category)];
    };
    EXPECT_EQ(held(MemoryCategory::kParameters), formula.shards);
    for (int step = 0; step < 2; ++step) {
      const Tensor tokens = (torch::arange(24) % 37).view({2, 12}).to(accelerator.device());
      const Tensor loss = torch::cross_entropy_loss(model(tokens).flatten(0, 1).to(torch::kFloat),
                                                    tokens.flatten());
      if (stays) {
        EXPECT_EQ(held(MemoryCategory::kGatheredParameters), formula.gathered);
      } else {
        EXPECT_LT(held(MemoryCategory::kGatheredParameters), formula.gathered);
      }
      accelerator.backward(loss);
      EXPECT_EQ(held(MemoryCategory::kParameters), formula.shards);
      EXPECT_EQ(held(MemoryCategory::kGatheredParameters), 0);
      EXPECT_EQ(held(MemoryCategory::kGradients), formula.shards);
      optimizer.step();
      optimizer.zero_grad();
      EXPECT_EQ(held(MemoryCategory::kGradients), 0);
      EXPECT_THAT(held(MemoryCategory::kOptimizerState) - formula.moments,
                  ::testing::AnyOf(0, 512));
    }
  });
}

TEST(ShardingStrategies, TakeTheMemoryOfTheFormulaToTheByte) {
  for (const ShardingStrategy strategy : kStrategies) {
    if (strategy == ShardingStrategy::kNoShard) continue;
    for (const PrecisionType precision : {PrecisionType::kNo, PrecisionType::kBf16}) {
      expect_memory(strategy, precision, simulator::Numerics::kReal);
    }
    expect_memory(strategy, PrecisionType::kBf16, simulator::Numerics::kShapes);
  }
}

TEST(ShardingStrategies, TakeTheMemoryOfReplicasWhereNothingIsDivided) {
  const auto memory_of = [](std::optional<Plugin> plugin) {
    std::vector<int64_t> in_use;
    Cluster cluster("2x4:h100");
    cluster.run_on_every_rank([&](Rank& rank) {
      Accelerator accelerator({.fsdp_plugin = plugin});
      lm::Lm net(tiny());
      optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(1e-3));
      auto [model, optimizer] = accelerator.prepare(net, adamw);
      for (int step = 0; step < 2; ++step) {
        const Tensor tokens = (torch::arange(24) % 37).view({2, 12}).to(accelerator.device());
        accelerator.backward(
            torch::cross_entropy_loss(model(tokens).flatten(0, 1), tokens.flatten()));
        optimizer.step();
        if (rank.index() == 0) in_use.push_back(rank.device()->memory().in_use());
        optimizer.zero_grad();
      }
    });
    return in_use;
  };
  EXPECT_EQ(memory_of(plugin_of(ShardingStrategy::kNoShard)), memory_of(std::nullopt));
}

// The unit of the model itself has the first parameter and the last one.
TEST(ShardingStrategies, GiveAModelThatWasBuiltEmptyItsValuesInTheOrderOfItsConstruction) {
  lm::Config config = tiny();
  config.layers = 40;
  Cluster("1x4:h100").run_on_every_rank([&](Rank& rank) {
    Accelerator accelerator({.fsdp_plugin = plugin_of(ShardingStrategy::kFullShard)});
    torch::manual_seed(9);
    lm::Lm net{nullptr};
    {
      const EmptyInit empty = init_empty_weights();
      net = lm::Lm(config);
    }
    int64_t bytes = 0;
    for (const Tensor& each : net->parameters()) bytes += static_cast<int64_t>(each.nbytes());
    auto model = accelerator.prepare(net);
    EXPECT_LT(rank.device()->memory().peak(), bytes * 3 / 4);
    torch::manual_seed(9);
    const lm::Lm same(config);
    const auto whole = full_parameters(model, {.writeback = false});
    for (const auto& item : net->named_parameters()) {
      EXPECT_TRUE(torch::equal(item.value().cpu(), same->named_parameters()[item.key()]))
          << item.key();
    }
  });
}

// ---- Offload.

struct MlpImpl : nn::Module {
  explicit MlpImpl(int layers) {
    for (int i = 0; i < layers; ++i) body->push_back(nn::Linear(512, 512));
    register_module("body", body);
  }
  Tensor forward(const Tensor& x) { return body->forward(x); }
  nn::Sequential body;
};
TORCH_MODULE(Mlp);

// A group is a layer.
AcceleratorOptions offloaded(PrecisionType precision = PrecisionType::kNo) {
  return {.mixed_precision = precision,
          .fsdp_plugin = Plugin{.fsdp_version = 2, .cpu_offload = true}};
}

TEST(Offload, TrainsAsShardsOnDevicesDo) {
  for (const PrecisionType precision : {PrecisionType::kNo, PrecisionType::kBf16}) {
    for (const ShardingStrategy strategy :
         {ShardingStrategy::kFullShard, ShardingStrategy::kHybridShardZero2}) {
      SCOPED_TRACE(absl::StrCat(to_string(precision), ", ", to_string(strategy)));
      Job job{.plugin = plugin_of(strategy),
              .precision = precision,
              .adam = true,
              .accumulation = 2,
              .max_norm = 0.05};
      const Outcome on_devices = train<lm::LmImpl>(job);
      job.plugin->cpu_offload = true;
      expect_near(train<lm::LmImpl>(job), on_devices, 1e-5);
    }
  }
}

TEST(Offload, LeavesOnDevicesTheGroupsThatAreUsed) {
  for (const PrecisionType precision : {PrecisionType::kNo, PrecisionType::kBf16}) {
    // Large batches, whose layers take longer than the host needs for launching the next one.
    Cluster cluster("1x4:h100",
                    {.numerics = simulator::Numerics::kShapes,
                     .record = true,
                     .unknown_value = [](const std::string& /*operation*/) { return 1.0; }});
    std::vector<int64_t> returned_ns;  // rank 0's backward passes
    cluster.run_on_every_rank([&](Rank& rank) {
      Accelerator accelerator(offloaded(precision));
      Mlp net(6);
      optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(1e-3));
      auto [model, optimizer] = accelerator.prepare(net, adamw);
      const auto& memory = rank.device()->memory();
      EXPECT_EQ(memory.in_use(), 0);
      for (int step = 0; step < 3; ++step) {
        {
          const Tensor x = torch::ones({32768, 512}, accelerator.device());
          accelerator.backward(model(x).square().mean());
        }
        if (rank.index() == 0) returned_ns.push_back(rank.device()->host_ns());
        for (const Tensor& shard : adamw.param_groups()[0].params()) {
          EXPECT_TRUE(shard.is_cpu() && shard.is_pinned());
          EXPECT_TRUE(shard.grad().is_cpu() && shard.grad().is_pinned());
        }
        EXPECT_EQ(memory.in_use(), 0);
        optimizer.step();
        EXPECT_EQ(memory.in_use(), 0);
        optimizer.zero_grad();
      }
    });
    // Two groups, each with the rank's part of it: in float32 and in the dtype that is gathered.
    const int64_t bytes = precision == PrecisionType::kNo ? 4 : 2;
    const int64_t elements = 512 * 512 + 512;
    const int64_t parts = elements / 4 * (precision == PrecisionType::kNo ? 4 : 4 + 2);
    const int64_t most = 2 * (elements * bytes + parts) + (16 << 10);
    int64_t parameters = 0;
    for (const simulator::MemorySample& each : cluster.trace().memory) {
      const auto in = [&](MemoryCategory category) {
        return each.bytes[static_cast<size_t>(category)];
      };
      parameters = std::max(parameters, in(MemoryCategory::kGatheredParameters));
      EXPECT_EQ(in(MemoryCategory::kOptimizerState), 0);
    }
    EXPECT_LE(parameters, most);
    EXPECT_GE(parameters, 2 * elements * bytes);
    // Copies go on beside kernels, in both directions.
    for (const char* name : {"copy to device", "copy to host"}) {
      int64_t beside = 0;
      for (const simulator::Slice& copy : cluster.trace().slices) {
        if (copy.rank != 0 || copy.kind != simulator::SliceKind::kCopy ||
            cluster.trace().names[copy.name] != name) {
          continue;
        }
        for (const simulator::Slice& kernel : cluster.trace().slices) {
          beside += kernel.rank == 0 && kernel.kind == simulator::SliceKind::kKernel &&
                    kernel.stream == 0 && kernel.start_ns < copy.end_ns &&
                    copy.start_ns < kernel.end_ns;
        }
      }
      EXPECT_GT(beside, 0) << name;
    }
    // A simulated copy moves its bytes at once, so no value shows that gradients are read before
    // they have come: none is on its way when a backward pass returns.
    for (const simulator::Slice& copy : cluster.trace().slices) {
      if (copy.rank != 0 || cluster.trace().names[copy.name] != "copy to host") continue;
      for (const int64_t ns : returned_ns) {
        EXPECT_FALSE(copy.start_ns < ns && ns < copy.end_ns) << copy.start_ns << " " << ns;
      }
    }
  }
}

// ---- Gathering ahead.

using Prefetch = std::optional<EnumChoice<BackwardPrefetch>>;
constexpr BackwardPrefetch kPre = BackwardPrefetch::kBackwardPre;
constexpr BackwardPrefetch kPost = BackwardPrefetch::kBackwardPost;

TEST(BackwardPrefetch, ChangesNoBits) {
  const auto outcome = [](Prefetch prefetch) {
    Plugin plugin = plugin_of(ShardingStrategy::kFullShard);
    plugin.backward_prefetch = std::move(prefetch);
    return train<lm::LmImpl>({.shape = "1x4:h100", .plugin = std::move(plugin)});
  };
  const Outcome never = outcome(std::nullopt);
  for (const BackwardPrefetch each : {kPre, kPost}) {
    const Outcome ahead = outcome(each);
    EXPECT_EQ(ahead.losses, never.losses);
    for (size_t i = 0; i < never.weights.size(); ++i) {
      EXPECT_TRUE(torch::equal(ahead.weights[i], never.weights[i])) << i;
    }
  }
}

// The virtual time of the last backward pass of large layers.
int64_t backward_ns(Prefetch prefetch) {
  int64_t ns = 0;
  Cluster cluster("1x4:h100", {.numerics = simulator::Numerics::kShapes});
  cluster.run_on_every_rank([&](Rank& rank) {
    Plugin plugin{.fsdp_version = 1, .backward_prefetch = prefetch};
    Accelerator accelerator({.fsdp_plugin = std::move(plugin)});
    auto model = accelerator.prepare(Mlp(6));
    for (int step = 0; step < 3; ++step) {
      const Tensor x = torch::ones({32768, 512}, accelerator.device());
      const Tensor loss = model(x).square().mean();
      accelerator.runtime().synchronize_device();
      const int64_t start = rank.device()->host_ns();
      accelerator.backward(loss);
      accelerator.runtime().synchronize_device();
      if (rank.index() == 0) ns = rank.device()->host_ns() - start;
    }
  });
  return ns;
}

TEST(BackwardPrefetch, HidesGathersBehindTheGradientsOfTheGroupBefore) {
  const int64_t pre = backward_ns(kPre), post = backward_ns(kPost), never = backward_ns({});
  EXPECT_LT(pre, post);
  EXPECT_LE(post, never);
}

// ---- fp16.

struct HeadImpl : nn::Module {
  HeadImpl() { head = register_module("head", nn::Linear(8, 8)); }
  Tensor forward(const Tensor& x) { return head(x); }
  nn::Linear head{nullptr};
};
TORCH_MODULE(Head);

// ---- A number for reshard_after_forward.

template <typename Net = lm::LmImpl>
Outcome train_resharding_to(std::variant<bool, int64_t> reshard, Job job = {}) {
  job.plugin = plugin_for<Net>(ShardingStrategy::kFullShard, /*version=*/2);
  std::visit([&](auto value) { job.plugin->reshard_after_forward = value; }, reshard);
  return train<Net>(job);
}

TEST(ReshardAfterForward, ToFewerRanksChangesNoBits) {
  for (const Job& job :
       {Job{.shape = "2x4:h100", .adam = true, .accumulation = 2, .max_norm = 0.05},
        Job{.precision = PrecisionType::kBf16}, Job{.adam = true}}) {
    const Outcome all = train_resharding_to(true, job);
    for (const int64_t ranks : {2, 4, 8}) {
      if (ranks == 8 && job.shape == Job().shape) continue;
      const Outcome few = train_resharding_to(ranks, job);
      EXPECT_EQ(few.losses, all.losses) << ranks;
      for (size_t i = 0; i < all.weights.size(); ++i) {
        EXPECT_TRUE(torch::equal(few.weights[i], all.weights[i])) << ranks << ", " << i;
      }
    }
  }
}

TEST(ReshardAfterForward, IsAFactorOfTheRanksThatShareAModel) {
  Cluster("2x2").run_on_every_rank([](Rank& rank) {
    Accelerator accelerator({.fsdp_plugin = Plugin{.fsdp_version = 2, .reshard_after_forward = 3}});
    EXPECT_THAT(value_error_of([&] { accelerator.prepare(Head()); }),
                HasSubstr("rank " + std::to_string(rank.index()) +
                          ": reshard_after_forward=3: as a number it should be a factor of the 4 "
                          "ranks that share a model along dp_shard"));
  });
}

// The bytes that all steps send from node to node.
double bytes_between_nodes(std::variant<bool, int64_t> reshard) {
  Cluster cluster("2x4:h100", {.record = true});
  cluster.run_on_every_rank([&](Rank& rank) {
    Plugin plugin{.fsdp_version = 2};
    std::visit([&](auto value) { plugin.reshard_after_forward = value; }, reshard);
    Accelerator accelerator({.fsdp_plugin = std::move(plugin)});
    Mlp net(6);
    auto [model, optimizer] =
        accelerator.prepare(net, torch::optim::SGD(net->parameters(), /*defaults=*/0.1));
    const auto gathered = [&] {
      return rank.device()
          ->memory()
          .by_category()[static_cast<size_t>(MemoryCategory::kGatheredParameters)];
    };
    for (int step = 0; step < 3; ++step) {
      const Tensor loss = model(torch::ones({2, 512}, accelerator.device())).square().mean();
      if (std::holds_alternative<int64_t>(reshard)) {
        // The last two layers, and a quarter of each of the others.
        constexpr int64_t kWeight = 4 * 512 * 512, kBias = 4 * 512;
        EXPECT_EQ(gathered(), 2 * (kWeight + kBias) + 4 * (kWeight / 4 + blocks(kBias / 4)));
      }
      accelerator.backward(loss);
      EXPECT_EQ(gathered(), 0);
      optimizer.step();
      optimizer.zero_grad();
    }
  });
  double bytes = 0;
  for (const simulator::Traffic& each : cluster.trace().communication) {
    if (each.source / 4 != each.target / 4) bytes += each.bytes;
  }
  return bytes;
}

// Backward passes send none: as many as where parameters stay after the forward pass.
TEST(ReshardAfterForward, GathersWithinANodeInBackwardPasses) {
  const double all = bytes_between_nodes(true), stay = bytes_between_nodes(false);
  const double node = bytes_between_nodes(int64_t{4});
  std::cout << "bytes between nodes in three steps: reshard_after_forward true " << all << ", 4 "
            << node << ", false " << stay << "\n";
  EXPECT_EQ(node, stay);
  EXPECT_GT(all, stay * 1.2);
}

// ---- Overflows.

TEST(ShardingStrategies, SkipAStepOnceOnAllRanksWhereOneOverflows) {
  for (const ShardingStrategy strategy : kStrategies) {
    for (const bool offload : {false, true}) {
      SCOPED_TRACE(absl::StrCat(to_string(strategy), offload ? ", offload" : ""));
      Cluster("2x2:h100").run_on_every_rank([&](Rank& rank) {
        Plugin plugin{.fsdp_version = 1, .sharding_strategy = strategy};
        if (offload) plugin.cpu_offload = true;
        Accelerator accelerator(
            {.mixed_precision = PrecisionType::kFp16, .fsdp_plugin = std::move(plugin)});
        Head net;
        torch::optim::SGD sgd(net->parameters(), 0.1);
        auto [model, optimizer] = accelerator.prepare(net, sgd);
        const double scale = accelerator.scaler()->get_scale();
        for (const bool overflows : {false, true, false}) {
          const float input =
              overflows && rank.index() == 3 ? std::numeric_limits<float>::infinity() : 1;
          const Tensor out = model(torch::full({2, 8}, input, accelerator.device()));
          accelerator.backward(out.to(torch::kFloat).sum() * 1e-3);
          optimizer.step();
          EXPECT_EQ(accelerator.optimizer_step_was_skipped(), overflows);
          optimizer.zero_grad();
        }
        EXPECT_EQ(accelerator.scaler()->get_scale(), scale / 2);
      });
    }
  }
}

// Two forward passes before each backward pass, of a model with buffers, with every engine.
TEST(Engines, TrainPairsOfPassesAsReplicasAreTrained) {
  // Options of a mesh are made on a rank.
  const auto weights_of = [](const std::function<AcceleratorOptions()>& options) {
    Cluster cluster("1x2:h100");
    cluster.run_on_every_rank([&](Rank& rank) {
      Accelerator accelerator(options());
      torch::manual_seed(4);
      nn::Sequential net(nn::Linear(512, 24), nn::BatchNorm1d(24), nn::ReLU(), nn::Linear(24, 3));
      torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.05));
      const Tensor x = torch::sin(torch::arange(512. * 16).reshape({16, 512}) * 0.37);
      auto [model, optimizer, loader] = accelerator.prepare(
          net.ptr(), sgd, DataLoader(make_tensor_dataset(x), {.batch_size = 2}));
      for (auto& [inputs] : loader) {
        accelerator.backward(model(inputs).square().mean() - model(inputs * 0.5).mean());
        optimizer.step();
        optimizer.zero_grad();
      }
      const auto whole = full_parameters(model, {.writeback = false});
      std::vector<Tensor> all;
      for (const Tensor& each : net->parameters()) all.push_back(each.detach().reshape({-1}).cpu());
      rank.report("weights", torch::cat(all));
    });
    const std::vector<Tensor> weights = cluster.reports("weights");
    EXPECT_TRUE(weights[0].equal(weights[1]));
    return weights[0];
  };
  const Tensor expected = weights_of([] { return AcceleratorOptions(); });
  const auto expect_equal = [&](const std::function<AcceleratorOptions()>& options) {
    EXPECT_TRUE(torch::allclose(weights_of(options), expected, 1e-5, 1e-6));
  };
  expect_equal([] {
    return AcceleratorOptions{.parallelism_config = ParallelismConfig({.dp_shard_size = 2})};
  });
  // ZeRO clips unless it is told otherwise.
  for (const int stage : {1, 2, 3}) {
    SCOPED_TRACE(stage);
    expect_equal([stage] {
      return AcceleratorOptions{.deepspeed_plugin =
                                    DeepSpeedPlugin{.gradient_clipping = 1e6, .zero_stage = stage}};
    });
  }
}

}  // namespace
}  // namespace accelerate
