#include "accelerate/tensors/identical_views.h"

namespace accelerate::internal {

bool are_identical_views(const at::Tensor& a, const at::Tensor& b) {
  return a.has_storage() && b.has_storage() && a.is_alias_of(b) && a.dtype() == b.dtype() &&
         a.storage_offset() == b.storage_offset() && a.sizes() == b.sizes() &&
         a.strides() == b.strides() && a.is_conj() == b.is_conj() && a.is_neg() == b.is_neg();
}

}  // namespace accelerate::internal
