/// Gradients of weights that are computed some time after the rest of a backward pass, for
/// schedules that have passes in halves (zero bubble).
///
/// In a forward pass with this handler the products of linear layers are such that a backward pass
/// may leave out the gradient of the weight, and keep what it is made of: the layer's input and the
/// gradient of its output. All other gradients, as of norms, biases and embeddings, belong to the
/// backward pass.
/// Threads: as OperatorMode; begin, end and run on the rank's thread.
#pragma once

#include <optional>
#include <utility>

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include "accelerate/operators/operator_mode.h"

namespace accelerate {

class LateGradients final : public LinearHandler {
 public:
  /// A stage and a micro-batch.
  using Key = std::pair<int, int>;

  LateGradients();
  ~LateGradients() override;

  /// Backward passes from now on leave out gradients of weights, until end().
  void begin(const Key& key);
  void end();
  /// Computes those that were left out, and adds them to the weights' gradients as a backward pass
  /// does.
  void run(const Key& key);

  std::optional<at::Tensor> linear(const at::Tensor& input, const at::Tensor& weight,
                                   const at::Tensor& bias) override;

 private:
  struct Queue;
  struct Product;

  const c10::intrusive_ptr<Queue> queue_;
};

}  // namespace accelerate
