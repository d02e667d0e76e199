#include "integration_tests/layouts/whole_draws.h"

#include <utility>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

namespace accelerate {
namespace {

// What LibTorch multiplies a part of a contiguous tensor with.
at::Tensor noise_of(const at::Tensor& tensor, const WholeDraws::Part& part, double p) {
  const at::NoGradGuard no_grad;
  const OperatorModeScope common{OperatorHandlers()};
  std::vector<int64_t> shape = tensor.sizes().vec();
  const int64_t size = shape[static_cast<size_t>(part.dim)];
  shape[static_cast<size_t>(part.dim)] *= part.count;
  return at::empty(shape, tensor.options())
      .bernoulli_(1 - p)
      .div_(1 - p)
      .narrow(part.dim, part.index * size, size);
}

}  // namespace

WholeDraws::WholeDraws(PartOf part_of)
    : OperatorHandler(OperatorOrder::kConstruction), part_of_(std::move(part_of)) {}

void WholeDraws::call(const OperatorCall& call) {
  static const c10::OperatorHandle dropout =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::dropout", "");
  if (call.op() != dropout) return call.proceed();
  const at::Tensor input = torch::jit::peek(call.stack(), 0, 3).toTensor();
  const double p = torch::jit::peek(call.stack(), 1, 3).toDouble();
  const bool trains = torch::jit::peek(call.stack(), 2, 3).toBool();
  const std::optional<Part> part = part_of_(input);
  if (!part || !trains || p == 0) return call.proceed();
  torch::jit::drop(call.stack(), 3);
  torch::jit::push(call.stack(), input.mul(noise_of(input, *part, p)));
}

}  // namespace accelerate
