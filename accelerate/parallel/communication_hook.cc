#include "accelerate/parallel/communication_hook.h"

#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/view_as_real.h>
#include <c10/util/Exception.h>

#include "accelerate/parallel/power_sgd.h"
#include "accelerate/tensors/state_dict.h"

namespace accelerate {
namespace {

using Type = DDPCommunicationHookType;

std::unique_ptr<CommunicationHook> inner_hook(const DistributedDataParallelKwargs& options) {
  switch (options.comm_hook) {
    case Type::kNo: return std::make_unique<MeanHook>();
    case Type::kFp16: return std::make_unique<CastHook>(at::kHalf, std::make_unique<MeanHook>());
    case Type::kBf16:
      return std::make_unique<CastHook>(at::kBFloat16, std::make_unique<MeanHook>());
    case Type::kPowerSgd:
      return std::make_unique<PowerSgdHook>(options.comm_state_option,
                                            PowerSgdHook::Matrices::kParameters);
    case Type::kBatchedPowerSgd:
      return std::make_unique<PowerSgdHook>(options.comm_state_option,
                                            PowerSgdHook::Matrices::kBucket);
  }
  TORCH_CHECK_VALUE(false, "comm_hook: unknown");
}

}  // namespace

StateDict CommunicationHook::state_dict() const { return {}; }

void CommunicationHook::load_state_dict(const StateDict& state) {
  TORCH_CHECK_VALUE(state.tensors.empty() && state.values.empty(),
                    "this communication hook has no memory, but the state to load has one");
}

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

std::unique_ptr<CommunicationHook> make_communication_hook(
    const DistributedDataParallelKwargs& options) {
  switch (options.comm_wrapper) {
    case Type::kNo: return options.comm_hook == Type::kNo ? nullptr : inner_hook(options);
    case Type::kFp16: return std::make_unique<CastHook>(at::kHalf, inner_hook(options));
    case Type::kBf16: return std::make_unique<CastHook>(at::kBFloat16, inner_hook(options));
    case Type::kPowerSgd:
    case Type::kBatchedPowerSgd: break;
  }
  TORCH_CHECK_VALUE(false, "comm_wrapper is \"no\", \"fp16\" or \"bf16\", got \"",
                    to_string(options.comm_wrapper), "\"; PowerSGD can be a comm_hook only");
}

}  // namespace accelerate
