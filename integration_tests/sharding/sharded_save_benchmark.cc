// What a save of a sharded model with AdamW costs ranks on simulated clusters: collectives and the
// bytes that travel in them, and virtual time beside bytes / disk rate.
//
//   tools/dev bazel run //integration_tests/sharding:sharded_save_benchmark -- --help
//   tools/dev bazel run //integration_tests/sharding:sharded_save_benchmark -- \
//       --topology 128x8:h100,disk=10MB/s,disk_latency=10us --width 384
//
// Values are real, so the model is small and the disk slow in its place: a disk of 10 MB/s and a
// model of a 1/1000 of 7 billion parameters take the time of 7 billion and 10 GB/s, but for what
// does not grow with the model, which counts for a thousand times as much here.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <CLI/CLI.hpp>

#include "absl/time/time.h"
#include "accelerate/accelerator.h"
#include "accelerate/big_model/empty_model.h"
#include "accelerate/config/parallelism_config.h"
#include "simulator/cluster/cluster.h"
#include "simulator/disk/sim_disk.h"

namespace accelerate {
namespace {

struct Settings {
  std::string topology = "1x8:h100,disk=10MB/s,disk_latency=10us";
  int64_t width = 384;
  int layers = 48;
  double disk_bytes_per_s = 10e6;
};

struct BodyImpl : torch::nn::Module {
  BodyImpl(int64_t width, int layers) {
    for (int i = 0; i < layers; ++i) body->push_back(torch::nn::Linear(width, width));
    register_module("body", body);
  }
  at::Tensor forward(const at::Tensor& x) { return body->forward(x); }
  torch::nn::Sequential body;
};
TORCH_MODULE(Body);

struct Outcome {
  int64_t collectives = 0;
  int64_t bytes = 0;  // that rank 0 gave to them
  int64_t saved_bytes = 0;
  double seconds = 0;
};

Outcome run(const Settings& settings, bool saves) {
  auto disk = std::make_shared<simulator::SimDisk>();
  simulator::ClusterOptions options;
  options.disk = disk;
  options.record = true;
  simulator::Cluster cluster(settings.topology, options);
  const int ranks = cluster.world_size();
  Outcome outcome;
  cluster.run_on_every_rank([&](simulator::Rank& rank) {
    Accelerator accelerator({.parallelism_config = ParallelismConfig({.dp_shard_size = ranks})});
    Body net{nullptr};
    {
      const EmptyInit empty = init_empty_weights();
      net = Body(settings.width, settings.layers);
    }
    auto adam = std::make_shared<torch::optim::AdamW>(net->parameters(), 1e-3);
    auto [model, optimizer] = accelerator.prepare(net, adam);
    // Moments without a pass, which a thousand ranks would gather the model for.
    for (const auto& group : adam->param_groups()) {
      for (const at::Tensor& shard : group.params()) shard.mutable_grad() = at::zeros_like(shard);
    }
    optimizer.step();
    accelerator.wait_for_everyone();
    const absl::Time start = accelerator.runtime().now();
    if (saves) accelerator.save_state("/sim/run/saved");
    if (rank.index() == 0) {
      outcome.seconds = absl::ToDoubleSeconds(accelerator.runtime().now() - start);
    }
  });
  for (const simulator::TraceOperation& operation : cluster.trace().operations) {
    if (std::ranges::count(operation.ranks, 0) == 0) continue;
    ++outcome.collectives;
    outcome.bytes += operation.bytes;
  }
  outcome.saved_bytes = disk->used();
  return outcome;
}

int measure(int argc, char** argv) {
  Settings settings;
  CLI::App app("A save of a sharded model, simulated");
  app.add_option("--topology", settings.topology)->capture_default_str();
  app.add_option("--width", settings.width, "of a layer")->capture_default_str();
  app.add_option("--layers", settings.layers)->capture_default_str();
  app.add_option("--disk_bytes_per_s", settings.disk_bytes_per_s, "that of the topology")
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  const Outcome before = run(settings, /*saves=*/false);
  const Outcome after = run(settings, /*saves=*/true);
  const double by_rate = static_cast<double>(after.saved_bytes) / settings.disk_bytes_per_s;
  std::printf(
      "%s: %lld collectives a rank, %lld bytes in them; %lld bytes saved in %.3f s, "
      "bytes / rate %.3f s: %.3f\n",
      settings.topology.c_str(), static_cast<long long>(after.collectives - before.collectives),
      static_cast<long long>(after.bytes - before.bytes), static_cast<long long>(after.saved_bytes),
      after.seconds, by_rate, after.seconds / by_rate);
  return 0;
}

}  // namespace
}  // namespace accelerate

int main(int argc, char** argv) { return accelerate::measure(argc, argv); }
