// What a sharded training step of a large Llama takes on a simulated cluster, with shapes alone:
// gathering the next group of parameters while one is used, and without; or by strategy.
//
//   tools/dev bazel run //integration_tests/sharding:large_model_benchmark -- --help
//   tools/dev bazel run //integration_tests/sharding:large_model_benchmark -- \
//       --topology 2x8:a100-80 --model 7b --batch_size 8
//   tools/dev bazel run //integration_tests/sharding:large_model_benchmark -- \
//       --topology 2x8:a100-80 --model 7b --batch_size 8 --strategies
//
// In bf16 with activation checkpointing; all ranks share one model, but for hybrid strategies,
// where each node has one. Offloaded shards are real memory of this machine's, so that they need
// --fold and stand alone, with --offload. The rows are of the last step, on rank 0: its virtual
// time, what its all-gathers take in all and without a kernel beside them, the device's peak of
// memory, and this machine's wall time for the step.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/zeros.h>
#include <CLI/CLI.hpp>

#include "absl/strings/str_format.h"
#include "accelerate/accelerator.h"
#include "accelerate/big_model/empty_model.h"
#include "accelerate/config/fsdp_plugin.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/examples/lm/model.h"
#include "accelerate/operators/default_device.h"
#include "accelerate/optim/fused_optimizers.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

using Clock = std::chrono::steady_clock;

struct Settings {
  std::string topology = "2x8:a100-80";
  std::string model = "7b";
  std::string optimizer = "adamw";
  int64_t batch_size = 8;
  int64_t tokens = 2048;
  int steps = 3;
  int64_t group_bytes = ShardedDataParallelKwargs().group_bytes;
  bool fold = false;
  bool strategies = false;
  bool offload = false;
};

// What a row of the table is about.
struct Row {
  std::string name;
  bool prefetch = true;
  /// Absent: that of a parallelism_config alone.
  std::optional<ShardingStrategy> strategy = std::nullopt;
};

struct Interval {
  int64_t start = 0, end = 0;
};

struct LastStep {
  int64_t ns = 0;
  int64_t gather_ns = 0;   // in all-gathers
  int64_t exposed_ns = 0;  // of that, without a kernel
  double wall_s = 0;
};

struct Outcome {
  LastStep step;
  int64_t peak = 0;
  std::string at_peak;                               // by what it is for, on rank 0
  int64_t parameters = 0, gradients = 0, state = 0;  // bytes on rank 0 at the end
  int64_t formula = 0;                               // of all three: see bytes_by_formula
};

// The length of what is in an interval and in none of `others`; both are in order of their starts.
int64_t uncovered(const std::vector<Interval>& intervals, const std::vector<Interval>& others) {
  int64_t sum = 0;
  for (Interval each : intervals) {
    auto other = std::ranges::lower_bound(others, each.start, {}, &Interval::end);
    for (; other != others.end() && other->start < each.end; ++other) {
      sum += std::max<int64_t>(other->start - each.start, 0);
      each.start = std::max(each.start, other->end);
    }
    sum += std::max<int64_t>(each.end - each.start, 0);
  }
  return sum;
}

// What rank 0 has of parameters, gradients and, with AdamW, two moments: ceil(n / ranks) rows of
// each parameter of n rows, in blocks of 512 bytes. AdamW's counter of steps takes one more.
int64_t bytes_by_formula(const std::vector<at::Tensor>& parameters, int ranks, bool has_moments) {
  constexpr int64_t kBlock = 512;
  int64_t bytes = 0;
  for (const at::Tensor& each : parameters) {
    const int64_t rows = each.size(0);
    const int64_t own = (rows + ranks - 1) / ranks * (each.numel() / rows) * 4;
    bytes += (own + kBlock - 1) / kBlock * kBlock;
  }
  return has_moments ? bytes * 4 + kBlock : bytes * 2;
}

LastStep last_step(const simulator::Trace& trace, int64_t start, int64_t end) {
  std::vector<Interval> gathers, kernels;
  for (const simulator::Slice& slice : trace.slices) {
    if (slice.rank != 0 || slice.start_ns < start || slice.end_ns > end) continue;
    const Interval interval{slice.start_ns, slice.end_ns};
    if (slice.kind == simulator::SliceKind::kKernel) kernels.push_back(interval);
    if (slice.kind == simulator::SliceKind::kCollective &&
        trace.names[slice.name] == "all_gather_into_tensor") {
      gathers.push_back(interval);
    }
  }
  std::ranges::sort(kernels, {}, &Interval::start);
  LastStep step{.ns = end - start, .exposed_ns = uncovered(gathers, kernels)};
  for (const Interval& each : gathers) step.gather_ns += each.end - each.start;
  return step;
}

std::string text_of_peak(const simulator::Trace& trace) {
  const auto sum = [](const simulator::MemorySample& each) {
    return each.rank == 0 ? std::accumulate(each.bytes.begin(), each.bytes.end(), int64_t{0}) : 0;
  };
  const auto peak = std::ranges::max_element(trace.memory, {}, sum);
  std::string text;
  for (size_t i = 0; peak != trace.memory.end() && i < peak->bytes.size(); ++i) {
    text += absl::StrFormat("%s%.2f of %s", text.empty() ? "" : ", ",
                            static_cast<double>(peak->bytes[i]) / (1 << 30),
                            to_string(static_cast<simulator::MemoryCategory>(i)));
  }
  return text;
}

// Among how many ranks a model is divided.
int ranks_of_model(const Row& row, const simulator::Cluster& cluster) {
  switch (row.strategy.value_or(ShardingStrategy::kFullShard)) {
    case ShardingStrategy::kNoShard: return 1;
    case ShardingStrategy::kHybridShard:
    case ShardingStrategy::kHybridShardZero2: return cluster.spec().ranks_per_node;
    default: return cluster.world_size();
  }
}

// `ranks` of them divide a model.
AcceleratorOptions options_of(const Settings& settings, const Row& row, int all_ranks, int ranks) {
  AcceleratorOptions options{.mixed_precision = PrecisionType::kBf16,
                             .kwargs_handlers = {ShardedDataParallelKwargs{
                                 .prefetch = row.prefetch, .group_bytes = settings.group_bytes}}};
  if (row.strategy == ShardingStrategy::kNoShard) return options;
  options.parallelism_config =
      ParallelismConfig({.dp_replicate_size = all_ranks / ranks, .dp_shard_size = ranks});
  if (!row.strategy) return options;
  options.fsdp_plugin = FullyShardedDataParallelPlugin{
      .fsdp_version = 2,
      .reshard_after_forward = row.strategy == ShardingStrategy::kFullShard ||
                               row.strategy == ShardingStrategy::kHybridShard,
      .auto_wrap_policy = AutoWrapPolicy::kTransformerBasedWrap,
      .cpu_offload = settings.offload,
      .transformer_cls_names_to_wrap = std::vector<std::string>{"Block"}};
  return options;
}

Outcome train(const Settings& settings, const Row& row) {
  const lm::Config config = lm::model_config(
      settings.model, {.blocks = lm::Blocks::kLlama, .sequence_length = settings.tokens});
  simulator::ClusterOptions options;
  options.numerics = simulator::Numerics::kShapes;
  options.record = true;
  options.unknown_value = [](const std::string& /*operation*/) { return 0.0; };
  if (settings.fold) options.fold = simulator::Folding{.spot_checks = 0};
  simulator::Cluster cluster(settings.topology, options);
  const int ranks = ranks_of_model(row, cluster);
  Outcome outcome;
  int64_t start = 0, end = 0;
  Clock::time_point wall;
  cluster.run_on_every_rank([&](simulator::Rank& rank) {
    Accelerator accelerator(options_of(settings, row, cluster.world_size(), ranks));
    lm::Lm net{nullptr};
    {
      const DefaultDeviceScope scope(accelerator.device());
      const auto built = [&config] { return lm::Lm(config, /*activation_checkpointing=*/true); };
      if (row.strategy == ShardingStrategy::kNoShard) {
        net = built();
      } else {
        const EmptyInit empty = init_empty_weights();
        net = built();
      }
    }
    if (rank.index() == 0) {
      outcome.formula = bytes_by_formula(net->parameters(), ranks, settings.optimizer == "adamw");
    }
    std::shared_ptr<torch::optim::Optimizer> base;
    if (settings.optimizer == "adamw") {
      base = std::make_shared<optim::AdamW>(net->parameters(), torch::optim::AdamWOptions(1e-3));
    } else {
      base = std::make_shared<optim::SGD>(net->parameters(), torch::optim::SGDOptions(1e-3));
    }
    auto [model, optimizer] = accelerator.prepare(net, base);
    base.reset();
    const at::Tensor tokens = at::zeros({settings.batch_size, settings.tokens},
                                        at::TensorOptions(at::kLong).device(accelerator.device()));
    for (int step = 0; step < settings.steps; ++step) {
      if (rank.index() == 0) {
        start = rank.device()->host_ns();
        wall = Clock::now();
      }
      {
        const at::Tensor loss =
            at::cross_entropy_loss(model(tokens).flatten(0, 1), tokens.flatten());
        accelerator.backward(loss);
      }
      optimizer.step();
      if (step + 1 < settings.steps) optimizer.zero_grad();
      accelerator.runtime().synchronize_device();
      if (rank.index() == 0) end = rank.device()->host_ns();
    }
    if (rank.index() == 0) {
      outcome.step.wall_s = std::chrono::duration<double>(Clock::now() - wall).count();
      const auto& memory = rank.device()->memory();
      const auto bytes_of = [&](simulator::MemoryCategory category) {
        return memory.by_category()[static_cast<size_t>(category)];
      };
      outcome.peak = memory.peak();
      outcome.parameters = bytes_of(simulator::MemoryCategory::kParameters);
      outcome.gradients = bytes_of(simulator::MemoryCategory::kGradients);
      outcome.state = bytes_of(simulator::MemoryCategory::kOptimizerState);
    }
  });
  outcome.at_peak = text_of_peak(cluster.trace());
  const double wall_s = outcome.step.wall_s;
  outcome.step = last_step(cluster.trace(), start, end);
  outcome.step.wall_s = wall_s;
  return outcome;
}

std::vector<Row> rows_of(const Settings& settings) {
  if (settings.offload) return {{"FULL_SHARD, offload", true, ShardingStrategy::kFullShard}};
  if (!settings.strategies) return {{"no prefetch", false}, {"prefetch", true}};
  std::vector<Row> rows;
  for (const auto strategy : {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp,
                              ShardingStrategy::kHybridShard, ShardingStrategy::kHybridShardZero2,
                              ShardingStrategy::kNoShard}) {
    rows.push_back({std::string(to_string(strategy)), true, strategy});
  }
  return rows;
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

int measure(int argc, char** argv) {
  Settings settings;
  CLI::App app("A sharded training step of a large language model, simulated");
  app.add_option("--topology", settings.topology)->capture_default_str();
  app.add_option("--model", settings.model)->capture_default_str();
  app.add_option("--optimizer", settings.optimizer)
      ->capture_default_str()
      ->check(CLI::IsMember({"adamw", "sgd"}));
  app.add_option("--batch_size", settings.batch_size, "sequences of each rank")
      ->capture_default_str();
  app.add_option("--tokens", settings.tokens, "of a sequence")->capture_default_str();
  app.add_option("--steps", settings.steps, "the first one records the order of the groups")
      ->capture_default_str()
      ->check(CLI::Range(2, 1000));
  app.add_option("--group_bytes", settings.group_bytes)->capture_default_str();
  app.add_flag("--fold", settings.fold, "execute one rank, which stands for all");
  app.add_flag("--strategies", settings.strategies, "a row for each strategy");
  app.add_flag("--offload", settings.offload, "FULL_SHARD, with shards on the host");
  CLI11_PARSE(app, argc, argv);
  std::printf("%s on %s, %lld x %lld tokens a rank\n", settings.model.c_str(),
              settings.topology.c_str(), static_cast<long long>(settings.batch_size),
              static_cast<long long>(settings.tokens));
  std::printf("%-19s %12s %14s %11s %10s %11s %10s %9s %9s\n", "", "step ms", "all-gather ms",
              "exposed ms", "peak GiB", "parameters", "gradients", "state", "wall s");
  for (const Row& row : rows_of(settings)) {
    Outcome outcome;
    try {
      outcome = train(settings, row);
    } catch (const simulator::ClusterError& error) {
      std::printf("%-19s %s\n", row.name.c_str(), first_line(error.what()).c_str());
      continue;
    }
    const auto ms = [](int64_t ns) { return 1e-6 * static_cast<double>(ns); };
    const auto gib = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 30); };
    std::printf("%-19s %12.3f %14.3f %11.3f %10.2f %11.3f %10.3f %9.3f %9.2f\n", row.name.c_str(),
                ms(outcome.step.ns), ms(outcome.step.gather_ns), ms(outcome.step.exposed_ns),
                gib(outcome.peak), gib(outcome.parameters), gib(outcome.gradients),
                gib(outcome.state), outcome.step.wall_s);
    std::printf("  at the peak, GiB: %s\n", outcome.at_peak.c_str());
    std::printf(
        "  parameters, gradients and state on the device: %lld bytes; by the formula %lld\n",
        static_cast<long long>(outcome.parameters + outcome.gradients + outcome.state),
        static_cast<long long>(settings.offload ? 0 : outcome.formula));
  }
  return 0;
}

}  // namespace
}  // namespace accelerate

int main(int argc, char** argv) { return accelerate::measure(argc, argv); }
