#include "simulator/device/op_watch.h"

#include <memory>

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

#include "simulator/trace/recorder.h"

namespace accelerate::simulator {
namespace {

// The cost of an operator includes the operators that its kernel calls.
thread_local bool inside_kernel = false;

void add(TensorTraffic& traffic, const c10::IValue& value) {
  if (value.isTensor()) {
    traffic.add(value.toTensor());
  } else if (value.isTensorList()) {
    for (at::Tensor tensor : value.toTensorList()) traffic.add(tensor);
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
    for (size_t i = 0; i < arguments.size(); ++i) {
      add(traffic, arguments[i]);
      if (info.updates(i)) add(traffic, arguments[i]);
    }
    {
      const ChargeScope charge(device, info.name.c_str());
      inside_kernel = true;
      struct Leave {
        ~Leave() { inside_kernel = false; }
      } leave;
      call.proceed();
    }
    const auto results = top(call.stack(), info.num_returns);
    for (size_t i = 0; i < results.size(); ++i) {
      if (!info.returns_argument(i)) add(traffic, results[i]);
    }
    device->launch(info.name.c_str(), flops, traffic.bytes, math_type(traffic.dtype));
    if (info.synchronizes) device->host_waits(device->stream_ns(device->current_stream()));
  }
};

}  // namespace

void watch_write(SimDevice& device, const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return;
  const MemoryBlock* block = block_of(tensor.storage().data_ptr());
  if (block != nullptr && block->memory == &device.memory() &&
      block->category == MemoryCategory::kParameters) {
    device.memory().note_update();
  }
}

void watch_training(SimDevice& device, const OpInfo& info, c10::ArrayRef<c10::IValue> arguments) {
  if (c10::GradMode::is_enabled()) {
    if (!device.memory().note_forward()) return;
    // Ranks step together, so one of them records the step.
    if (device.index() == 0 && device.recorder() != nullptr) {
      device.recorder()->step(device.host_ns());
    }
    return;
  }
  if (info.written == 0) return;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!info.writes(i)) continue;
    const c10::IValue& value = arguments[i];
    if (value.isTensor()) {
      watch_write(device, value.toTensor());
    } else if (value.isTensorList() && !value.toTensorList().empty()) {
      watch_write(device, value.toTensorList().get(0));
    }
  }
}

HostCostScope::HostCostScope(SimDevice* device)
    : charge_(device, nullptr),
      handler_(device != nullptr ? std::make_shared<CostHandler>() : nullptr) {}

}  // namespace accelerate::simulator
