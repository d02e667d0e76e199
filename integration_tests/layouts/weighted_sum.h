/// A module of tests that says itself how it is cut, and whose gradients are known.
///
/// Threads: the rank's thread.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/module.h>

#include "accelerate/parallel/layout/model_layout.h"
#include "accelerate/parallel/tensor/cut.h"
#include "integration_tests/layouts/cut_by_hand.h"

namespace accelerate {

/// The sum of its parameters, each times its weights, times the input: the gradient of each with
/// respect to the output is its weights times the input. Parameters and weights are whole, or a
/// rank's parts.
class WeightedSumImpl : public torch::nn::Module, public CutByHand {
 public:
  /// `placements`: as CutByHand has them.
  explicit WeightedSumImpl(std::vector<TensorPlacement> placements)
      : placements_(std::move(placements)) {}

  /// `weights`: of the parameter's shape. Parameters that are registered otherwise are in no sum.
  void add(const std::string& name, at::Tensor parameter, at::Tensor weights) {
    register_parameter(name, std::move(parameter));
    weights_[name] = std::move(weights);
  }

  at::Tensor forward(const at::Tensor& input) {
    at::Tensor sum = at::zeros({}, input.options());
    for (const auto& item : named_parameters()) {
      const auto weights = weights_.find(item.key());
      if (weights == weights_.end()) continue;
      sum = sum + (item.value() * weights->second.to(input.device())).sum();
    }
    return sum * input;
  }

  std::vector<TensorPlacement> placements() const override { return placements_; }
  void was_cut(const ModelLayout& layout, int rank) override {
    for (auto& [name, weights] : weights_) {
      weights = cut_part(weights, *layout.find(name), layout.mesh(), rank);
    }
  }

 private:
  const std::vector<TensorPlacement> placements_;
  std::map<std::string, at::Tensor> weights_;
};

}  // namespace accelerate
