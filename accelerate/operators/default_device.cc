#include "accelerate/operators/default_device.h"

#include <cstddef>
#include <memory>
#include <optional>

#include <ATen/core/Generator.h>
#include <ATen/core/ivalue.h>

namespace accelerate {
namespace {

class Construction final : public OperatorHandler {
 public:
  explicit Construction(c10::Device device)
      : OperatorHandler(OperatorOrder::kConstruction), device_(device) {}

  void call(const OperatorCall& call) override {
    if (c10::IValue* device = open_device(call)) *device = device_;
    // Kernels may not find the tensors elsewhere that they make for themselves.
    const OperatorModeScope inside = OperatorModeScope::without(OperatorOrder::kConstruction);
    call.proceed();
  }

 private:
  // The argument that says where a new tensor is to be, if the call leaves that open.
  c10::IValue* open_device(const OperatorCall& call) const {
    const c10::FunctionSchema& schema = call.op().schema();
    const std::optional<int> position = schema.argumentIndexWithName("device");
    if (!position) return nullptr;
    const size_t count = schema.arguments().size();
    c10::IValue& device = torch::jit::peek(call.stack(), *position, count);
    if (!device.isNone()) return nullptr;
    for (const c10::IValue& argument : torch::jit::last(call.stack(), count)) {
      if (decides(argument)) return nullptr;
    }
    return &device;
  }

  // Whether the result is where this argument is.
  bool decides(const c10::IValue& argument) const {
    if (!argument.isGenerator()) return argument.isTensor() || argument.isTensorList();
    const at::Generator generator = argument.toGenerator();
    return generator.defined() && generator.device().type() != device_.type();
  }

  const c10::Device device_;
};

}  // namespace

DefaultDeviceScope::DefaultDeviceScope(c10::Device device)
    : handler_(std::make_shared<Construction>(device)) {}

}  // namespace accelerate
