/// A module of a few layers for tests of what ranks along tp make of them: its forward pass is the
/// test's own.
///
/// Threads: the rank's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "accelerate/accelerate.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/config/tensor_parallel_plan.h"
#include "accelerate/testing/value_error.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {

/// Layers of 8 and 16 features, with values that a seed gives.
class SmallLayersImpl : public torch::nn::Module {
 public:
  using Forward = std::function<torch::Tensor(SmallLayersImpl&, const torch::Tensor&)>;

  explicit SmallLayersImpl(Forward forward) : forward_(std::move(forward)) {
    torch::manual_seed(7);
    query = register_module("query", torch::nn::Linear(8, 16));
    key = register_module("key", torch::nn::Linear(8, 16));
    value = register_module("value", torch::nn::Linear(8, 16));
    project = register_module("project", torch::nn::Linear(16, 8));
    head = register_module("head", torch::nn::Linear(8, 12));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({8})));
    gate_up = register_module("gate_up", torch::nn::Linear(8, 32));
    tokens = register_module("tokens", torch::nn::Embedding(torch::nn::EmbeddingOptions(12, 8)));
    scale = register_parameter("scale", torch::rand({4}));
  }

  torch::Tensor forward(const torch::Tensor& input) { return forward_(*this, input); }

  /// query, key and value are column layers, project is a row layer, and the head's outputs are
  /// gathered. With sequence shards the norm and the scale are used with shards. gate_up and tokens
  /// are whole.
  static TensorParallelPlan plan(bool sequence_shards = false) {
    using enum TensorStyle;
    TensorParallelPlan plan = {{.pattern = "query", .style = kColumn},
                               {.pattern = "key", .style = kColumn},
                               {.pattern = "value", .style = kColumn},
                               {.pattern = "project", .style = kRow},
                               {.pattern = "head", .style = kColumn, .gather_output = true},
                               {.pattern = "norm", .sequence = true},
                               {.pattern = "scale", .sequence = true}};
    plan.sequence_parallel = sequence_shards;
    return plan;
  }

  torch::nn::Linear query{nullptr}, key{nullptr}, value{nullptr}, project{nullptr}, head{nullptr};
  torch::nn::Linear gate_up{nullptr};
  torch::nn::Embedding tokens{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  torch::Tensor scale;

 private:
  const Forward forward_;
};

/// Numbers of [rows, 4, 8].
inline torch::Tensor small_inputs(int64_t rows = 6) {
  return torch::arange(rows * 4 * 8, torch::kFloat).sin().view({rows, 4, 8});
}

inline AcceleratorOptions with_tp(int64_t tp, TensorParallelPlan plan) {
  return {.parallelism_config = ParallelismConfig({.tp_size = tp}),
          .kwargs_handlers = {std::move(plan)}};
}

/// What the second one of two ranks is told when the model is prepared, or in a forward pass;
/// "no error" without one.
inline std::string refusal_of(const SmallLayersImpl::Forward& forward,
                              TensorParallelPlan plan = SmallLayersImpl::plan()) {
  std::string error;
  simulator::Cluster("1x2:h100").run_on_every_rank([&](simulator::Rank& rank) {
    Accelerator accelerator(with_tp(2, plan));
    const auto module = std::make_shared<SmallLayersImpl>(forward);
    const std::string own = value_error_of([&] {
      auto model = accelerator.prepare(module);
      model(small_inputs().to(accelerator.device()));
    });
    if (rank.index() == 1) error = own;
  });
  return error;
}

}  // namespace accelerate
