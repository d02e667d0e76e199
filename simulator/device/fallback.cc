#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "simulator/device/generator.h"
#include "simulator/device/host_call.h"
#include "simulator/device/host_memory.h"
#include "simulator/device/registration.h"
#include "simulator/device/training_watch.h"

namespace accelerate::simulator {
namespace {

void argument_to_host(HostCall& call, c10::IValue& value, size_t index, bool written) {
  if (value.isTensor() || value.isTensorList()) {
    map_tensors(value,
                [&](const at::Tensor& tensor) { return call.to_host(tensor, index, written); });
  } else if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> tensors;
    for (const std::optional<at::Tensor> tensor : value.toOptionalTensorList()) {
      tensors.push_back(tensor ? std::optional(call.to_host(*tensor, index, written)) : tensor);
    }
    value = std::move(tensors);
  } else if (value.isDevice()) {
    const c10::Device device = value.toDevice();
    if (!device.is_privateuseone()) return;
    if (call.device() == nullptr) {
      call.set_device(&SimDevice::of(device.has_index() ? device.index() : current_device()));
    }
    value = c10::Device(c10::kCPU);
  } else if (value.isGenerator()) {
    value = host_generator(value.toGenerator());
  }
}

}  // namespace

void run_on_host(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                 torch::jit::Stack* stack) {
  const OpInfo& info = op_info(op);
  const auto arguments = stack->end() - info.num_arguments;
  const c10::ArrayRef<c10::IValue> argument_list(stack->data() + (arguments - stack->begin()),
                                                 info.num_arguments);
  const int rank = current_rank();
  if (rank >= 0) watch_training(SimDevice::of(rank), info, argument_list);
  HostCall call(info);
  if (!info.has_cpu_kernel) {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "device sim does not support ", info.overload,
                                ": LibTorch has no CPU kernel for it, and simulated devices run "
                                "CPU kernels");
  }
  const double flops = info.flops != nullptr ? info.flops(argument_list) : 0;
  for (size_t i = 0; i < info.num_arguments; ++i) {
    argument_to_host(call, arguments[static_cast<ptrdiff_t>(i)], i, info.writes(i));
  }
  if (call.device() == nullptr) call.set_device(&SimDevice::of(current_device()));
  call.check_devices();
  SimDevice& device = *call.device();
  if (info.generator_argument >= 0) {
    c10::IValue& generator = arguments[info.generator_argument];
    if (generator.isNone()) generator = host_generator(default_generator(device.index()));
  }
  {
    ChargeScope charge(&device, info.name.c_str());
    c10::impl::ExcludeDispatchKeyGuard below(kAboveKernels);
    std::optional<BorrowedGenerator> generator;
    if (info.draws_by_default) generator.emplace(device.index());
    op.redispatchBoxed(c10::DispatchKeySet(keys.has(c10::DispatchKey::SparsePrivateUse1)
                                               ? c10::DispatchKeySet(c10::DispatchKey::SparseCPU)
                                               : c10::DispatchKeySet(c10::DispatchKey::CPU)),
                       stack);
    if (info.written != 0) call.update_arguments();
  }
  const auto results = stack->end() - info.num_returns;
  for (size_t i = 0; i < info.num_returns; ++i) {
    map_tensors(results[static_cast<ptrdiff_t>(i)],
                [&call](const at::Tensor& tensor) { return call.to_device(tensor); });
  }
  if (info.runs_kernel)
    device.launch(info.name.c_str(), flops, call.traffic().bytes, math_type(call.traffic().dtype));
  if (info.synchronizes) device.host_waits(device.stream_ns(device.current_stream()));
}

}  // namespace accelerate::simulator
