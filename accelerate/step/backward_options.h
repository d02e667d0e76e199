/// What a program asks of a backward pass.
///
/// Threads: values.
#pragma once

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace accelerate {

/// What `Accelerator::backward` passes on to at::Tensor::backward.
struct BackwardOptions {
  /// The gradient of the loss, where the loss is not a scalar.
  at::Tensor gradient = {};
  /// Absent: as create_graph.
  std::optional<bool> retain_graph = std::nullopt;
  bool create_graph = false;
  /// Only these tensors get gradients. Absent: all leaves.
  std::optional<std::vector<at::Tensor>> inputs = std::nullopt;
  /// For an optimizer that steps during the backward pass (LOMO). Absent: that of its groups.
  std::optional<double> learning_rate = std::nullopt;
};

}  // namespace accelerate
