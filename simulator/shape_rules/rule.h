/// A shape rule is a function from an operator's first arguments, as many as it needs, to Meta
/// tensors that look like the operator's results. From it comes a Meta kernel for all forms of the
/// operator: out= takes the results' sizes, and an operator that works in place returns its
/// argument.
#pragma once

#include <array>
#include <initializer_list>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/core/MemoryFormat.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/DimVector.h>
#include <c10/util/SmallVector.h>
#include <torch/library.h>

namespace accelerate::simulator::shape_rules {

using at::Tensor;  // undefined for an optional argument that is not given
using Dims = c10::DimVector;
using Dtype = c10::ScalarType;
using Results = c10::SmallVector<Tensor, 4>;

struct Rule {
  /// "median.dim", or several between spaces. It is also the rule of the forms with out= and in
  /// place that have the same arguments; that of an operator in place ("abs_") is of this one
  /// alone.
  const char* ops;
  torch::CppFunction (*kernel)();
};
using Rules = std::vector<Rule>;

Rules pointwise_rules();
Rules reduction_rules();
Rules indexing_rules();
Rules convolution_rules();
Rules layer_rules();
Rules loss_rules();
Rules linalg_rules();

// ---- Results.

/// A tensor without data. Non-contiguous memory formats need as many dims as their name says.
Tensor dense(at::IntArrayRef sizes, Dtype dtype,
             at::MemoryFormat format = at::MemoryFormat::Contiguous);

/// Contiguous, with the sizes and dtype of `tensor`.
inline Tensor contiguous_like(const Tensor& tensor) {
  return dense(tensor.sizes(), tensor.scalar_type());
}

/// In the order of memory of `tensor`, as LibTorch's empty_like() has it.
Tensor like(const Tensor& tensor, Dtype dtype);
inline Tensor like(const Tensor& tensor) { return like(tensor, tensor.scalar_type()); }

/// In the memory format that `tensor` is nearest to.
inline Tensor formatted_like(const Tensor& tensor) {
  return dense(tensor.sizes(), tensor.scalar_type(), tensor.suggest_memory_format());
}

/// The result of a kernel that goes through its inputs element by element, as LibTorch's
/// TensorIterator makes it: inputs are broadcast, and their strides give those of the result.
Tensor elementwise(Dtype dtype, std::initializer_list<Tensor> inputs);

/// The matrices of a batch each in column-major order, as LAPACK has them.
Tensor column_major(at::IntArrayRef sizes, Dtype dtype);

/// The dtype of statistics and gradients of parameters: normalisation layers on reduced precision
/// keep single precision if the parameters have it.
Dtype parameter_dtype(const Tensor& input, std::initializer_list<Tensor> parameters);

/// A single number for a dim, as layers' arguments may have it, stands for all dims.
Dims for_each_dim(const Dims& values, int64_t num_dims);

// ---- Rules of many operators, as contiguous_like() and formatted_like() are.

inline Tensor in_order(const Tensor& self) { return like(self); }
inline Tensor second_contiguous(const Tensor&, const Tensor& self) { return contiguous_like(self); }
/// The rule of operators that only write to what they are given.
inline void into_arguments() {}

// ---- Kernels.

template <typename T>
struct Argument {
  static T of(const c10::IValue& value) { return value.to<T>(); }
};
template <>
struct Argument<Tensor> {
  static Tensor of(const c10::IValue& value) {
    return value.isNone() ? Tensor() : value.toTensor();
  }
};
template <>
struct Argument<Dims> {
  static Dims of(const c10::IValue& value) { return value.toDimVector(); }
};
template <>
struct Argument<std::optional<Dims>> {
  static std::optional<Dims> of(const c10::IValue& value) {
    return value.isNone() ? std::nullopt : std::optional<Dims>(value.toDimVector());
  }
};
template <>
struct Argument<std::vector<Tensor>> {
  static std::vector<Tensor> of(const c10::IValue& value) { return value.toTensorVector(); }
};

inline Results as_results(Tensor tensor) { return {std::move(tensor)}; }
inline Results as_results(Results tensors) { return tensors; }

template <typename Result, typename... Arguments, size_t... i>
Results results_of(Result (*rule)(Arguments...), c10::ArrayRef<c10::IValue> arguments,
                   std::index_sequence<i...>) {
  if constexpr (std::is_void_v<Result>) {
    rule(Argument<std::decay_t<Arguments>>::of(arguments[i])...);
    return {};
  } else {
    return as_results(rule(Argument<std::decay_t<Arguments>>::of(arguments[i])...));
  }
}
template <typename Result, typename... Arguments>
Results results_of(Result (*rule)(Arguments...), c10::ArrayRef<c10::IValue> arguments) {
  TORCH_INTERNAL_ASSERT(sizeof...(Arguments) <= arguments.size());
  return results_of(rule, arguments, std::index_sequence_for<Arguments...>());
}

/// Replaces an operator's arguments on the stack by what it returns.
void finish(const c10::FunctionSchema& schema, torch::jit::Stack& stack, Results results);

template <auto rule>
void run(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const size_t count = op.schema().arguments().size();
  finish(op.schema(), *stack,
         results_of(rule, c10::ArrayRef<c10::IValue>(*stack).slice(stack->size() - count, count)));
}

template <auto rule>
torch::CppFunction by() {
  return torch::CppFunction::makeFromBoxedFunction<&run<rule>>();
}

/// Throws the error for an operator whose results' shape depends on values.
[[noreturn]] void refuse(const std::string& op);

/// The kernel of an operator that is refused whatever its arguments are.
torch::CppFunction by_refusal();

}  // namespace accelerate::simulator::shape_rules
