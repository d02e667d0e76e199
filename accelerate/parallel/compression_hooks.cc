#include "accelerate/parallel/compression_hooks.h"

#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/view_as_real.h>

#include "accelerate/tensors/state_dict.h"

namespace accelerate {

CommunicationHook::Future MeanHook::reduce(const Group& group, c10d::GradBucket& bucket) {
  at::NoGradGuard no_grad;
  at::Tensor buffer = bucket.getBuffer();
  buffer.div_(group->getSize());
  std::vector<at::Tensor> tensors{buffer.is_complex() ? at::view_as_real(buffer) : buffer};
  return group->allreduce(tensors)->getFuture()->then(
      [buffer](c10::ivalue::Future& done) -> c10::IValue {
        done.value();  // throws what went wrong
        return buffer;
      },
      c10::TensorType::get());
}

CommunicationHook::Future CastHook::reduce(const Group& group, c10d::GradBucket& bucket) {
  at::NoGradGuard no_grad;
  const at::Tensor buffer = bucket.getBuffer();
  const at::Tensor wide = buffer.is_complex() ? at::view_as_real(buffer) : buffer;
  at::Tensor narrow = wide.to(dtype_);
  bucket.setBuffer(narrow);
  Future inner = inner_->reduce(group, bucket);
  return inner->then(
      [buffer, wide, narrow](c10::ivalue::Future& done) -> c10::IValue {
        done.value();
        at::NoGradGuard no_grad;
        wide.copy_(narrow);
        return buffer;
      },
      c10::TensorType::get());
}

StateDict CastHook::state_dict() const { return inner_->state_dict(); }

void CastHook::load_state_dict(const StateDict& state) { inner_->load_state_dict(state); }

}  // namespace accelerate
