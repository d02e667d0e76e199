#include "accelerate/dispatch/borrowed_buffer.h"

#include <ATen/core/grad_mode.h>

#include "accelerate/tensors/tensor_memory.h"

namespace accelerate::internal {

void restore_buffer(const BorrowedBuffer& buffer) noexcept {
  const at::Tensor& first = buffer.tensors.front();
  if (first.device() != buffer.device) return;
  const at::NoGradGuard no_grad;
  try {
    const at::Tensor values = first.detach().to(buffer.home);
    for (const at::Tensor& each : buffer.tensors) rebind(each, values);
  } catch (...) {
    // It stays where it is: the end of a model is not the place to report a device's error.
  }
}

}  // namespace accelerate::internal
