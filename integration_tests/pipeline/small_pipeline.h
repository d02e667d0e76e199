/// Training of a small Sequential on ranks that have stages of it, for tests.
///
/// Threads: the rank's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <torch/nn/modules/container/sequential.h>
#include <torch/types.h>

#include "accelerate/accelerate.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/config/pipeline_plan.h"
#include "accelerate/step/train_batch.h"

namespace accelerate {

/// Eight modules, as "first", "1" and "last", with values that a seed gives: [rows, ..., 8] to
/// [rows, ..., 3].
torch::nn::Sequential small_sequential();

/// Inputs [rows, length, 8] and labels [rows, length], which differ from row to row.
std::pair<torch::Tensor, torch::Tensor> small_batch(int64_t rows, int64_t length, int step);

/// The mean over rows of each row's mean cross-entropy.
torch::Tensor small_loss(const torch::Tensor& output, const torch::Tensor& labels);

/// With so many ranks along pp, and others.
AcceleratorOptions with_stages(const ParallelismOptions& sizes, const PipelinePlan& plan = {});

/// What trainings give: of each step, on every rank alike.
struct SmallOutcome {
  std::vector<double> losses;
  std::vector<double> norms;
};

struct SmallTraining {
  ParallelismOptions sizes = {};
  PipelinePlan plan = {};
  std::vector<TrainBatchOptions> windows = {};  ///< of each step
  /// The rows and the length of each step's batch over all shares; the last one goes on.
  std::vector<std::pair<int64_t, int64_t>> batches = {{8, 4}};
  /// Before the model is prepared.
  std::function<void(torch::nn::SequentialImpl&)> change = [](torch::nn::SequentialImpl&) {};
  /// How many windows a step accumulates.
  int accumulation = 1;
  /// Losses are sums over tokens, of which those with a label of 0 do not count.
  bool by_tokens = false;
  uint64_t seed = 0;  ///< of the cluster
};

/// On a cluster of so many ranks as the sizes need. All ranks have the same norms.
/// Errors: what a rank throws.
SmallOutcome train_small(const SmallTraining& training);

}  // namespace accelerate
