#include "accelerate/tensors/to_ivalue.h"

#include <c10/util/Exception.h>

#include "accelerate/tensors/tensor_memory.h"

namespace accelerate::internal {
namespace {

// One row of numbers, or the number of a 0-dim tensor.
template <typename T>
c10::IValue numbers_of(const at::Tensor& tensor) {
  const T* data = tensor.const_data_ptr<T>();
  if (tensor.dim() == 0) return *data;
  c10::List<T> list;
  list.reserve(static_cast<size_t>(tensor.numel()));
  for (int64_t i = 0; i < tensor.numel(); ++i) list.push_back(data[i]);
  return list;
}

// `tensor` must be a contiguous CPU tensor of doubles, longs, booleans or complex doubles.
c10::IValue list_of(const at::Tensor& tensor) {
  if (tensor.dim() > 1) {
    c10::impl::GenericList rows(c10::AnyType::get());
    rows.reserve(static_cast<size_t>(tensor.size(0)));
    for (int64_t row = 0; row < tensor.size(0); ++row)
      rows.push_back(list_of(tensor.select(0, row)));
    return rows;
  }
  switch (tensor.scalar_type()) {
    case at::kBool: return numbers_of<bool>(tensor);
    case at::kLong: return numbers_of<int64_t>(tensor);
    case at::kComplexDouble: return numbers_of<c10::complex<double>>(tensor);
    default: return numbers_of<double>(tensor);
  }
}

at::ScalarType wide_type(at::ScalarType dtype) {
  if (dtype == at::kBool) return at::kBool;
  if (c10::isComplexType(dtype)) return at::kComplexDouble;
  return c10::isIntegralType(dtype, /*includeBool=*/false) ? at::kLong : at::kDouble;
}

}  // namespace

c10::IValue shapes_of(const c10::IValue& value) {
  return map_ivalue_leaves(value, [](const c10::IValue& leaf) -> c10::IValue {
    if (!leaf.isTensor() || !leaf.toTensor().defined()) return leaf;
    return c10::List<int64_t>(leaf.toTensor().sizes());
  });
}

c10::IValue lists_of(const c10::IValue& value) {
  return map_ivalue_leaves(value, [](const c10::IValue& leaf) -> c10::IValue {
    if (!leaf.isTensor() || !leaf.toTensor().defined()) return leaf;
    const at::Tensor tensor = leaf.toTensor().detach().to(c10::Device(c10::kCPU),
                                                          wide_type(leaf.toTensor().scalar_type()));
    return list_of(without_flags(tensor).contiguous());
  });
}

}  // namespace accelerate::internal
