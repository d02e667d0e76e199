#include "accelerate/parallel/communication_hook.h"

#include <utility>

#include <c10/util/Exception.h>

#include "accelerate/parallel/compression_hooks.h"
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
