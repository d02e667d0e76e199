#include "accelerate/tensors/fresh_tensor.h"

#include <sys/mman.h>

#include <cstdint>

#include <ATen/ops/empty.h>

namespace accelerate::internal {

at::Tensor fresh_tensor(at::IntArrayRef sizes, at::TensorOptions options) {
  at::Tensor tensor = at::empty(sizes, options);
  constexpr uintptr_t kLargePage = uintptr_t{2} << 20;
  const auto start = reinterpret_cast<uintptr_t>(tensor.data_ptr());
  const uintptr_t begin = (start + kLargePage - 1) / kLargePage * kLargePage;
  const uintptr_t end = (start + tensor.nbytes()) / kLargePage * kLargePage;
  // Advice: where it cannot be followed, all is as before.
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
  return tensor;
}

}  // namespace accelerate::internal
