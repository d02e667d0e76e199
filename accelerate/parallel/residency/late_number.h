/// A number of a device that the host reads later, when it need not wait for it.
///
/// Threads: one at a time.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace accelerate::internal {

class LateNumber {
 public:
  /// `tensor` has one element, and what computes it was given to the current stream before.
  explicit LateNumber(const at::Tensor& tensor)
      : value_(at::empty(tensor.sizes(), tensor.options().device(at::kCPU).pinned_memory(true))),
        done_(tensor.device().type()) {
    value_.copy_(tensor, /*non_blocking=*/true);
    done_.record(c10::impl::VirtualGuardImpl(tensor.device().type()).getStream(tensor.device()));
  }

  /// Waits for it.
  bool is_nonzero() const {
    done_.synchronize();
    return value_.is_nonzero();
  }

 private:
  const at::Tensor value_;
  c10::Event done_;
};

}  // namespace accelerate::internal
