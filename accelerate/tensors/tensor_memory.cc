#include "accelerate/tensors/tensor_memory.h"

#include <sys/mman.h>

#include <cstdint>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/view_as_real.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/variable.h>

#include "accelerate/tensors/libtorch_releases.h"

namespace accelerate::internal {

at::Tensor fresh_tensor(at::IntArrayRef sizes, at::TensorOptions options) {
  at::Tensor tensor = at::empty(sizes, options);
  if (!tensor.is_cpu()) return tensor;
  // The first write to each page costs a fault, and large pages have 512 times fewer. Advice
  // concerns whole pages that are the tensor's alone.
  constexpr uintptr_t kLargePage = uintptr_t{2} << 20;
  const auto start = reinterpret_cast<uintptr_t>(tensor.data_ptr());
  const uintptr_t begin = (start + kLargePage - 1) / kLargePage * kLargePage;
  const uintptr_t end = (start + tensor.nbytes()) / kLargePage * kLargePage;
  // Advice: where it cannot be followed, all is as before.
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
  return tensor;
}

at::Tensor without_flags(const at::Tensor& tensor) {
  return tensor.is_conj() || tensor.is_neg() ? tensor.resolve_conj().resolve_neg() : tensor;
}

at::Tensor as_real(const at::Tensor& tensor) {
  return tensor.is_complex() ? at::view_as_real(without_flags(tensor)) : tensor;
}

bool are_identical_views(const at::Tensor& a, const at::Tensor& b) {
  return a.has_storage() && b.has_storage() && a.is_alias_of(b) && a.dtype() == b.dtype() &&
         a.storage_offset() == b.storage_offset() && a.sizes() == b.sizes() &&
         a.strides() == b.strides() && a.is_conj() == b.is_conj() && a.is_neg() == b.is_neg();
}

at::Tensor conform_to_parameter(at::Tensor tensor, const at::Tensor& parameter,
                                at::ScalarType dtype, bool like_parameter) {
  at::NoGradGuard no_grad;
  const bool lies_right =
      tensor.numel() == 0 ||
      (!tensor.is_conj() && !tensor.is_neg() &&
       (like_parameter ? tensor.strides() == parameter.strides() : tensor.is_contiguous()));
  // A tensor that others hold as well would change under them.
  const bool is_ours = tensor.use_count() == 1 && tensor.storage().use_count() == 1;
  if (lies_right && is_ours && tensor.scalar_type() == dtype &&
      tensor.device() == parameter.device() && !tensor.requires_grad()) {
    return tensor;
  }
  const auto options = parameter.options().dtype(dtype).requires_grad(false);
  at::Tensor copy =
      like_parameter ? at::empty_like(parameter, options) : at::empty(tensor.sizes(), options);
  copy.copy_(tensor);
  return copy;
}

void rebind(const at::Tensor& tensor, const at::Tensor& values) {
  // The keys of autograd come along with the memory, so they must be those that the tensor has.
  const c10::InferenceMode mode(tensor.is_inference());
  const at::NoGradGuard no_grad;
  const at::Tensor memory =
      values.is_inference() == tensor.is_inference()
          ? values.detach()
          : at::empty({0}, values.options().requires_grad(false))
                .set_(values.storage(), values.storage_offset(), values.sizes(), values.strides());
  tensor.unsafeGetTensorImpl()->shallow_copy_from(memory.getIntrusivePtr());
  if (torch::autograd::impl::get_autograd_meta(tensor) == nullptr || !tensor.is_leaf()) return;
  // It was made for gradients of the tensor as it was.
  torch::autograd::impl::set_grad_accumulator(tensor, WeakNodePointer(NodePointer()));
  const at::Tensor& gradient = tensor.grad();
  const bool fits = !gradient.defined() ||
                    (gradient.sizes() == tensor.sizes() && gradient.device() == tensor.device() &&
                     gradient.scalar_type() == tensor.scalar_type());
  if (!fits) tensor.mutable_grad() = at::Tensor();
}

}  // namespace accelerate::internal
