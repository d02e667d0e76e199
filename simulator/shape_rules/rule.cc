#include "simulator/shape_rules/rule.h"

#include <algorithm>

#include <ATen/EmptyTensor.h>
#include <ATen/TensorIterator.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty_like.h>

namespace accelerate::simulator::shape_rules {

Tensor dense(at::IntArrayRef sizes, Dtype dtype, at::MemoryFormat format) {
  return Tensor(at::detail::empty_meta(sizes, dtype, format));
}

Tensor like(const Tensor& tensor, Dtype dtype) {
  return at::empty_like(tensor, tensor.options().dtype(dtype));
}

Tensor elementwise(Dtype dtype, std::initializer_list<Tensor> inputs) {
  at::TensorIteratorConfig config;
  config.add_owned_output(Tensor())
      .check_all_same_dtype(false)
      .check_all_same_device(false)
      .declare_static_dtype_and_device(dtype, at::kMeta);
  for (const Tensor& input : inputs) config.add_owned_const_input(input);
  return config.build().output();
}

Tensor column_major(at::IntArrayRef sizes, Dtype dtype) {
  Dims transposed(sizes.begin(), sizes.end());
  std::swap(transposed[sizes.size() - 2], transposed[sizes.size() - 1]);
  return dense(transposed, dtype).mT();
}

Dtype parameter_dtype(const Tensor& input, std::initializer_list<Tensor> parameters) {
  for (const Tensor& parameter : parameters) {
    if (!parameter.defined()) continue;
    return parameter.scalar_type() == input.scalar_type() ? input.scalar_type() : at::kFloat;
  }
  return input.scalar_type();
}

Dims for_each_dim(const Dims& values, int64_t num_dims) {
  return values.size() == 1 ? Dims(num_dims, values[0]) : values;
}

void finish(const c10::FunctionSchema& schema, torch::jit::Stack& stack, Results results) {
  const auto& arguments = schema.arguments();
  const auto& returns = schema.returns();
  const size_t first = stack.size() - arguments.size();
  const size_t num_outs = std::count_if(arguments.begin(), arguments.end(),
                                        [](const c10::Argument& a) { return a.is_out(); });
  c10::SmallVector<c10::IValue, 4> values;
  if (num_outs != 0) {
    TORCH_INTERNAL_ASSERT(num_outs == results.size(), schema.name());
    for (size_t i = 0; i < num_outs; ++i) {
      const Tensor out = stack[stack.size() - num_outs + i].toTensor();
      const Tensor& model = results[i];
      if (at::native::resize_output(out, model.sizes())) {
        out.unsafeGetTensorImpl()->set_sizes_and_strides(model.sizes(), model.strides());
      }
      values.emplace_back(out);
    }
  } else if (!returns.empty() && returns[0].alias_info() != nullptr) {
    values.push_back(stack[first]);
  } else if (returns.size() == 1 && returns[0].type()->kind() == c10::TypeKind::ListType) {
    values.emplace_back(c10::List<Tensor>(std::vector<Tensor>(results.begin(), results.end())));
  } else {
    values.assign(results.begin(), results.end());
  }
  TORCH_INTERNAL_ASSERT(values.size() == returns.size(), schema.name());
  stack.resize(first);
  stack.insert(stack.end(), values.begin(), values.end());
}

void refuse(const std::string& op) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "the shape of ", op,
      "'s result depends on values, which numerics = shapes does not compute: use an operator whose "
      "result has a known shape, or run with numerics = real");
}

torch::CppFunction by_refusal() {
  constexpr auto kernel = [](const c10::OperatorHandle& op, c10::DispatchKeySet,
                             torch::jit::Stack*) { refuse(op.schema().name()); };
  return torch::CppFunction::makeFromBoxedFunction<+kernel>();
}

}  // namespace accelerate::simulator::shape_rules
