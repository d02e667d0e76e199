/// A handler that computes the Linear layers of a forward pass.
///
/// A module holds its layers in typed members, so none of them can be replaced by a layer of
/// another type. What can be replaced is the product that a layer asks for: inside an
/// OperatorModeScope this handler is offered each product of an input with a parameter's transpose,
/// which is what torch::nn::Linear, F::linear and at::linear come down to, and computes it or
/// leaves it to the next handler. All other operators pass.
/// The product comes before autograd and automatic mixed precision, so both still apply to what the
/// handler computes.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include "accelerate/operators/operator_mode.h"

namespace accelerate {

class LinearHandler : public OperatorHandler {
 public:
  LinearHandler() : OperatorHandler(OperatorOrder::kLinearProducts) {}

  /// input x weight^T + bias; nothing if the handler does not compute this weight's products.
  /// Shapes: input [..., in], weight [out, in], bias [out] or undefined.
  virtual std::optional<at::Tensor> linear(const at::Tensor& input, const at::Tensor& weight,
                                           const at::Tensor& bias) = 0;

  void call(const OperatorCall& call) final;
};

}  // namespace accelerate
