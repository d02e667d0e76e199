#include "accelerate/tensors/tensor_information.h"

#include <ATen/ops/empty.h>
#include <c10/core/TensorOptions.h>
#include <c10/util/Exception.h>

namespace accelerate {

TensorInformation tensor_information(const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.defined(), "an undefined tensor has no shape");
  return {.shape = tensor.sizes().vec(), .dtype = tensor.scalar_type()};
}

namespace internal {

at::Tensor structure_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  return at::empty(tensor.sizes(), at::device(c10::kMeta).dtype(tensor.scalar_type()));
}

at::Tensor empty_like_structure(const at::Tensor& structure, c10::Device device) {
  if (!is_tensor_information(structure)) return structure;
  return at::empty(structure.sizes(), at::device(device).dtype(structure.scalar_type()));
}

}  // namespace internal
}  // namespace accelerate
