/// A small model that ranks divide, with its optimizer, in memory or on a disk. For tests and the
/// benchmark of this folder.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/ops/arange.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/tanh.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "accelerate/optim/fused_optimizers.h"
#include "accelerate/optim/state_on_disk.h"
#include "accelerate/parallel/residency/residency.h"
#include "accelerate/parallel/residency/shards.h"
#include "accelerate/swap/swapped_tensors.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {

struct LayersImpl : torch::nn::Module {
  LayersImpl(int64_t count, int64_t width) {
    for (int64_t i = 0; i < count; ++i) {
      layers.push_back(register_module(std::to_string(i), torch::nn::Linear(width, width)));
    }
  }
  torch::Tensor forward(torch::Tensor x) {
    for (auto& layer : layers) x = torch::tanh(layer(x));
    return x;
  }
  std::vector<torch::nn::Linear> layers;
};

struct LayersJob {
  int64_t layers = 6, width = 16, rows = 4;
  /// Passes forward and backward before an update.
  int micro_steps = 1;
  /// Elements of an optimizer's part; 0: all.
  int64_t part_elements = 0;
  std::optional<at::ScalarType> dtype = std::nullopt;
  bool offload = false;
  std::optional<SwapOptions> shards_on_disk = std::nullopt, rows_on_disk = std::nullopt;
};

/// Collective, on the ranks of a cluster.
class TrainedLayers {
 public:
  explicit TrainedLayers(simulator::Rank& rank, const LayersJob& job)
      : rank_(rank), job_(job), net_(made(job)) {
    group_ = rank.runtime().new_group({});
    ShardingOptions options{.group_bytes = 4 * job.width * job.width};
    options.param_dtype = job.dtype;
    options.offload = job.offload;
    options.pin_memory = false;
    options.shards_on_disk = job.shards_on_disk;
    options.rows_on_disk = job.rows_on_disk;
    shards_ = std::make_unique<ShardedParameters>(
        *net_, ShardGroups{.shards = group_, .all = group_}, rank.runtime().device(), options);
    std::vector<torch::Tensor> trained;
    for (const auto& each : shards_->shards()) trained.push_back(each.shard);
    optimizer_ = std::make_unique<optim::AdamW>(trained, torch::optim::AdamWOptions(1e-2));
    if (shards_->disk() == nullptr) return;
    on_disk_ = std::make_unique<StateOnDisk>(
        *optimizer_, shards_->disk(),
        StateOnDisk::Options{.group = group_, .updated = shards_->keeps_rows()});
  }

  /// The last loss of this rank.
  double step(int number) {
    torch::Tensor loss;
    for (int pass = 0; pass < job_.micro_steps; ++pass) loss = passes(number);
    update();
    for (const auto& each : shards_->shards()) each.shard.mutable_grad().reset();
    return loss.item<double>();
  }

  ShardedParameters& shards() { return *shards_; }
  torch::optim::Optimizer& optimizer() { return *optimizer_; }
  const ProcessGroupPtr& group() const { return group_; }
  StateOnDisk* on_disk() { return on_disk_.get(); }

 private:
  torch::Tensor passes(int number) {
    shards_->begin_step();
    torch::Tensor loss;
    {
      const Residency::Pass pass(*shards_->residency());
      const torch::Tensor x =
          torch::cos(torch::arange(job_.rows * job_.width, torch::kFloat) + number + rank_.index())
              .view({job_.rows, job_.width})
              .to(rank_.runtime().device(), job_.dtype.value_or(at::kFloat));
      loss = net_->forward(x).to(torch::kFloat).square().mean();
    }
    shards_->check_reads();
    if (on_disk_ != nullptr) on_disk_->expect_step();
    loss.backward();
    shards_->check_reads();
    return loss;
  }

  void update() {
    if (on_disk_ != nullptr) {
      on_disk_->step(job_.part_elements);
    } else {
      optimizer_->step();
    }
  }

  static std::shared_ptr<LayersImpl> made(const LayersJob& job) {
    torch::manual_seed(3);
    return std::make_shared<LayersImpl>(job.layers, job.width);
  }

  simulator::Rank& rank_;
  const LayersJob job_;
  const std::shared_ptr<LayersImpl> net_;
  ProcessGroupPtr group_;
  std::unique_ptr<ShardedParameters> shards_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::unique_ptr<StateOnDisk> on_disk_;
};

}  // namespace accelerate
