#include "accelerate/operators/linear_mode.h"

namespace accelerate {
namespace {

struct Product {
  size_t num_arguments;
  at::Tensor input, weight, bias;
};

c10::OperatorHandle find(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
}

// The matrix that `matrix` is the plain transpose of; undefined if there is none.
at::Tensor transposed_of(const at::Tensor& matrix) {
  if (matrix.dim() != 2 || !matrix.is_view()) return {};
  const at::Tensor base(matrix._base());
  const bool is_transpose = base.dim() == 2 && base.size(0) == matrix.size(1) &&
                            base.size(1) == matrix.size(0) && base.stride(0) == matrix.stride(1) &&
                            base.stride(1) == matrix.stride(0) &&
                            base.storage_offset() == matrix.storage_offset() &&
                            base.scalar_type() == matrix.scalar_type();
  return is_transpose ? base : at::Tensor();
}

// The layer's product that an operator computes; without a weight if it is not one.
Product product_of(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  static const c10::OperatorHandle linear = find("aten::linear");
  static const c10::OperatorHandle matmul = find("aten::matmul");
  static const c10::OperatorHandle addmm = find("aten::addmm");
  const auto argument = [&stack](size_t i, size_t count) -> const c10::IValue& {
    return torch::jit::peek(stack, i, count);
  };
  if (op == linear) {
    const c10::IValue& bias = argument(2, 3);
    return {3, argument(0, 3).toTensor(), argument(1, 3).toTensor(),
            bias.isNone() ? at::Tensor() : bias.toTensor()};
  }
  if (op == matmul) {
    return {2, argument(0, 2).toTensor(), transposed_of(argument(1, 2).toTensor()), {}};
  }
  if (op == addmm) {
    const at::Tensor& self = argument(0, 5).toTensor();
    const bool is_layer =
        self.dim() == 1 && argument(3, 5).toScalar().equal(1) && argument(4, 5).toScalar().equal(1);
    if (!is_layer) return {};
    return {5, argument(1, 5).toTensor(), transposed_of(argument(2, 5).toTensor()), self};
  }
  return {};
}

}  // namespace

void LinearHandler::call(const OperatorCall& call) {
  const Product product = product_of(call.op(), call.stack());
  if (product.weight.defined()) {
    if (auto output = linear(product.input, product.weight, product.bias)) {
      torch::jit::drop(call.stack(), product.num_arguments);
      torch::jit::push(call.stack(), *std::move(output));
      return;
    }
  }
  call.proceed();
}

}  // namespace accelerate
