#include "simulator/device/host_costs.h"

#include <memory>

#include <ATen/core/Tensor.h>

#include "simulator/device/op_info.h"
#include "simulator/device/training_watch.h"

namespace accelerate::simulator {
namespace {

// The cost of an operator includes the operators that its kernel calls.
thread_local bool inside_kernel = false;

void add(TensorTraffic& traffic, c10::ArrayRef<c10::IValue> values) {
  for (const c10::IValue& value : values) {
    if (value.isTensor()) {
      traffic.add(value.toTensor());
    } else if (value.isTensorList()) {
      for (at::Tensor tensor : value.toTensorList()) traffic.add(tensor);
    }
  }
}

c10::ArrayRef<c10::IValue> top(const torch::jit::Stack& stack, size_t count) {
  return c10::ArrayRef<c10::IValue>(stack.data() + (stack.size() - count), count);
}

class CostHandler final : public OperatorHandler {
 public:
  CostHandler() : OperatorHandler(OperatorOrder::kCosts) {}

  void call(const OperatorCall& call) override {
    const OpInfo& info = op_info(call.op());
    SimDevice* device = ChargeScope::charged_device();
    const bool is_kernel = !inside_kernel && device != nullptr && info.runs_kernel &&
                           (info.has_own_cpu_kernel || info.flops != nullptr);
    if (!is_kernel) return call.proceed();
    const auto arguments = top(call.stack(), info.num_arguments);
    watch_training(*device, info, arguments);
    const double flops = info.flops != nullptr ? info.flops(arguments) : 0;
    TensorTraffic traffic;
    add(traffic, arguments);
    {
      const ChargeScope charge(device, info.name.c_str());
      inside_kernel = true;
      struct Leave {
        ~Leave() { inside_kernel = false; }
      } leave;
      call.proceed();
    }
    add(traffic, top(call.stack(), info.num_returns));
    device->launch(info.name.c_str(), flops, traffic.bytes, math_type(traffic.dtype));
    if (info.synchronizes) device->host_waits(device->stream_ns(device->current_stream()));
  }
};

}  // namespace

HostCostScope::HostCostScope(SimDevice* device)
    : charge_(device, nullptr),
      handler_(device != nullptr ? std::make_shared<CostHandler>() : nullptr) {}

}  // namespace accelerate::simulator
