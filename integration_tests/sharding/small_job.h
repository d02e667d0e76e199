/// A small job whose model ranks divide, and what its tests need of simulated clusters and disks.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/linear.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "absl/strings/str_cat.h"
#include "accelerate/accelerate.h"
#include "accelerate/config/fsdp_plugin.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/platform/file_system.h"
#include "simulator/cluster/cluster.h"
#include "simulator/disk/sim_disk.h"

namespace accelerate {

inline constexpr char kFolder[] = "/sim/run/saved";

// Odd numbers of rows, a parameter with fewer rows than ranks, one without dims, tied weights, a
// frozen one, and buffers.
struct NetImpl : torch::nn::Module {
  NetImpl() {
    embedding = register_module("embedding", torch::nn::Embedding(11, 6));
    body = register_module("body", torch::nn::Linear(6, 7));
    back = register_module("back", torch::nn::Linear(7, 6));
    gain = register_parameter("gain", torch::tensor(0.9f));
    few = register_parameter("few", torch::full({2, 6}, 0.3f));
    frozen = register_parameter("frozen", torch::full({5}, 0.1f), /*requires_grad=*/false);
    head = register_parameter("head", embedding->weight);
    steps = register_buffer("steps", torch::zeros({}));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    steps.add_(1);
    const torch::Tensor hidden =
        back(torch::tanh(body(embedding(x)))) * gain + few.sum(0) + frozen[0];
    return torch::linear(hidden, head);
  }
  torch::nn::Embedding embedding{nullptr};
  torch::nn::Linear body{nullptr}, back{nullptr};
  torch::Tensor gain, few, frozen, head, steps;
};
TORCH_MODULE(Net);

struct Layout {
  std::string name;
  std::string shape;
  std::optional<ParallelismOptions> parallelism = std::nullopt;
  std::optional<FullyShardedDataParallelPlugin> plugin = std::nullopt;
};

inline Layout replicas(const std::string& shape) { return {absl::StrCat("DDP ", shape), shape}; }
inline Layout shards(const std::string& shape, int ranks, int replicas = 1) {
  return {absl::StrCat(replicas == 1 ? "FULL_SHARD " : "HYBRID_SHARD ", shape), shape,
          ParallelismOptions{.dp_replicate_size = replicas, .dp_shard_size = ranks}};
}

inline Layout stays(const std::string& shape) {
  return {.name = absl::StrCat("SHARD_GRAD_OP ", shape),
          .shape = shape,
          .plugin = FullyShardedDataParallelPlugin{
              .fsdp_version = 1, .sharding_strategy = "SHARD_GRAD_OP", .use_orig_params = true}};
}

inline AcceleratorOptions options_of(const Layout& layout) {
  AcceleratorOptions options{.fsdp_plugin = layout.plugin};
  if (layout.parallelism) options.parallelism_config = ParallelismConfig(*layout.parallelism);
  return options;
}

// One rank's part of a small job.
struct Job {
  explicit Job(const Layout& layout, uint64_t seed = 3) : Job(options_of(layout), seed) {}
  Job(AcceleratorOptions options, uint64_t seed) : accelerator(std::move(options)) {
    torch::manual_seed(seed);
    net = Net();
    auto adam = std::make_shared<torch::optim::AdamW>(net->parameters(), 0.02);
    auto [prepared, optimized] = accelerator.prepare(net, adam);
    model.emplace(prepared);
    optimizer.emplace(optimized);
  }

  // The mean loss over all samples, which ranks have divided.
  float step(int number) {
    constexpr int64_t kSamples = 24;
    const int64_t own = kSamples / accelerator.num_processes();
    const torch::Tensor all = (torch::arange(kSamples) * 5 + number * 3) % 11;
    const torch::Tensor x =
        all.narrow(0, own * accelerator.process_index(), own).to(accelerator.device());
    const torch::Tensor loss = torch::cross_entropy_loss((*model)(x), (x + 1) % 11);
    accelerator.backward(loss);
    optimizer->step();
    optimizer->zero_grad();
    return accelerator.reduce(loss.detach(), Reduction::kMean).item<float>();
  }

  Accelerator accelerator;
  Net net{nullptr};
  std::optional<PreparedModel<NetImpl>> model;
  std::optional<AcceleratedOptimizer> optimizer;
};

inline std::string error_of(const std::function<void()>& body) {
  try {
    body();
    return "";
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
}

using Errors = std::vector<std::string>;

inline Errors run(const Layout& layout, std::shared_ptr<simulator::SimDisk> disk,
                  const std::function<void(simulator::Rank&)>& body,
                  std::vector<simulator::FileFault> faults = {}) {
  simulator::Cluster cluster(layout.shape,
                             {.disk = std::move(disk), .file_faults = std::move(faults)});
  Errors errors(cluster.world_size());
  cluster.run_on_every_rank(
      [&](simulator::Rank& rank) { errors[rank.index()] = error_of([&] { body(rank); }); });
  return errors;
}

inline std::vector<std::string> files_in(simulator::SimDisk& disk, const std::string& folder) {
  auto names = disk.list(join_path(kFolder, folder));
  return names.ok() ? *names : std::vector<std::string>();
}

inline std::string contents(simulator::SimDisk& disk, const std::string& path) {
  const auto text = read_file(disk, path);
  EXPECT_TRUE(text.ok()) << text.status();
  return text.value_or("");
}

}  // namespace accelerate
