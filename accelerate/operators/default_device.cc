#include "accelerate/operators/default_device.h"

#include <cstddef>
#include <memory>
#include <optional>

#include <ATen/core/Generator.h>
#include <ATen/core/ivalue.h>

namespace accelerate {
namespace {

// Whether the result is where this argument is.
bool decides(const c10::IValue& argument, c10::DeviceType type) {
  if (!argument.isGenerator()) return argument.isTensor() || argument.isTensorList();
  const at::Generator generator = argument.toGenerator();
  return generator.defined() && generator.device().type() != type;
}

class Construction final : public OperatorHandler {
 public:
  explicit Construction(c10::Device device)
      : OperatorHandler(OperatorOrder::kConstruction), device_(device) {}

  void call(const OperatorCall& call) override {
    if (c10::IValue* device = internal::open_device(call, device_.type())) *device = device_;
    // Kernels may not find the tensors elsewhere that they make for themselves.
    const OperatorModeScope inside = OperatorModeScope::without(OperatorOrder::kConstruction);
    call.proceed();
  }

  c10::Device device() const { return device_; }

 private:
  const c10::Device device_;
};

}  // namespace

DefaultDeviceScope::DefaultDeviceScope(c10::Device device)
    : handler_(std::make_shared<Construction>(device)) {}

namespace internal {

c10::IValue* open_device(const OperatorCall& call, c10::DeviceType type) {
  const c10::FunctionSchema& schema = call.op().schema();
  const std::optional<int> position = schema.argumentIndexWithName("device");
  if (!position) return nullptr;
  const size_t count = schema.arguments().size();
  c10::IValue& device = torch::jit::peek(call.stack(), *position, count);
  if (!device.isNone()) return nullptr;
  for (const c10::IValue& argument : torch::jit::last(call.stack(), count)) {
    if (decides(argument, type)) return nullptr;
  }
  return &device;
}

c10::Device default_device() {
  for (const auto& handler : current_operator_handlers()) {
    const auto* const construction = dynamic_cast<const Construction*>(handler.get());
    if (construction != nullptr) return construction->device();
  }
  return c10::kCPU;
}

}  // namespace internal
}  // namespace accelerate
