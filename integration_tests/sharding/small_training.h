/// The training loop that tests run with replicas and with every way to divide a model, and what
/// comes out of it.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/allclose.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "accelerate/accelerate.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/operators/checkpoint.h"
#include "accelerate/optim/fused_optimizers.h"
#include "accelerate/parallel/sharded/sharded.h"
#include "integration_tests/sharding/small_models.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {

inline constexpr int kSteps = 4;

struct Training {
  std::string shape = "2x4:h100";
  int steps = kSteps;
  /// How each rank's Accelerator divides the model, computes and accumulates.
  AcceleratorOptions options = {};
  std::optional<ParallelismOptions> parallelism = std::nullopt;  ///< of the options
  bool adam = false;    ///< with AdamW, not SGD with a momentum
  double max_norm = 0;  ///< 0: gradients are not clipped
  uint64_t seed = 0;
  /// What becomes of a rank's loss before its backward pass; empty: nothing.
  std::function<torch::Tensor(const torch::Tensor& loss, int pass, int rank)> change_loss = {};
  bool recomputes = false;  ///< checkpoint() is called around the prepared model
};

/// What one rank has at the end.
struct Outcome {
  std::vector<double> losses;  ///< the means over ranks
  std::vector<double> norms;   ///< of the steps' gradients, where they are clipped
  std::vector<bool> skipped;   ///< whether a step was
  std::vector<torch::Tensor> weights;
};

/// Rank 0's outcome of all steps.
template <typename Net>
Outcome train_on_cluster(const Training& training) {
  Outcome outcome;
  simulator::Cluster cluster(training.shape, {.seed = training.seed});
  cluster.run_on_every_rank([&](simulator::Rank& rank) {
    AcceleratorOptions options = training.options;
    if (training.parallelism) options.parallelism_config = ParallelismConfig(*training.parallelism);
    Accelerator accelerator(options);
    torch::manual_seed(5);
    const std::shared_ptr<Net> net = make(static_cast<const Net*>(nullptr));
    std::shared_ptr<torch::optim::Optimizer> base;
    if (training.adam) {
      base = std::make_shared<optim::AdamW>(net->parameters(), torch::optim::AdamWOptions(1e-3));
    } else {
      base = std::make_shared<torch::optim::SGD>(net->parameters(),
                                                 torch::optim::SGDOptions(0.05).momentum(0.9));
    }
    auto [model, optimizer] = accelerator.prepare(net, base);
    Outcome own;
    for (int pass = 0; own.skipped.size() < static_cast<size_t>(training.steps); ++pass) {
      const auto scope = accelerator.accumulate(model);
      const auto call = [&](const torch::Tensor& x) { return model(x); };
      const auto recompute = [&](const torch::Tensor& x) { return checkpoint(call, x); };
      const torch::Tensor loss =
          training.recomputes ? loss_of(recompute, *net, pass, rank.index(), accelerator.device())
                              : loss_of(call, *net, pass, rank.index(), accelerator.device());
      accelerator.backward(training.change_loss ? training.change_loss(loss, pass, rank.index())
                                                : loss);
      const bool steps = accelerator.sync_gradients();
      if (training.max_norm > 0 && steps) {
        const torch::Tensor norm = accelerator.clip_grad_norm_(model, training.max_norm);
        own.norms.push_back(norm.template item<float>());
      }
      optimizer.step();
      optimizer.zero_grad();
      if (steps) own.skipped.push_back(accelerator.optimizer_step_was_skipped());
      own.losses.push_back(
          accelerator.reduce(loss.detach(), Reduction::kMean).template item<float>());
    }
    const auto whole = full_parameters(model, {.writeback = false});
    if (rank.index() != 0) return;
    for (const torch::Tensor& each : net->parameters()) {
      own.weights.push_back(each.detach().cpu().to(torch::kFloat));
    }
    outcome = std::move(own);
  });
  return outcome;
}

inline void expect_near(const std::vector<double>& a, const std::vector<double>& b,
                        double tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_NEAR(a[i], b[i], tolerance * std::abs(b[i])) << i;
  }
}

inline void expect_near(const Outcome& a, const Outcome& b, double tolerance) {
  expect_near(a.losses, b.losses, tolerance);
  expect_near(a.norms, b.norms, tolerance);
  EXPECT_EQ(a.skipped, b.skipped);
  ASSERT_EQ(a.weights.size(), b.weights.size());
  for (size_t i = 0; i < a.weights.size(); ++i) {
    EXPECT_TRUE(at::allclose(a.weights[i], b.weights[i], tolerance, tolerance))
        << i << ": " << (a.weights[i] - b.weights[i]).abs().max().template item<double>();
  }
}

}  // namespace accelerate
