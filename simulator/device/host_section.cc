#include "simulator/device/host_section.h"

#include <utility>

#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include "absl/cleanup/cleanup.h"
#include "simulator/device/generator.h"
#include "simulator/device/host_call.h"
#include "simulator/device/op_watch.h"
#include "simulator/device/sim_device.h"

namespace accelerate::simulator {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// What the backward pass of a section on the host runs on the device.
struct BackwardCost : torch::CustomClassHolder {
  BackwardCost(std::vector<SectionKernel> kernels, int64_t scratch_bytes)
      : kernels(std::move(kernels)), scratch_bytes(scratch_bytes) {}

  const std::vector<SectionKernel> kernels;
  const int64_t scratch_bytes;
};

void launch_all(SimDevice& device, const std::vector<SectionKernel>& kernels, bool is_in_node) {
  for (const SectionKernel& kernel : kernels) {
    const bool is_product = kernel.work.kind == KernelWork::Kind::kProduct;
    device.launch(kernel.name, kernel.work,
                  {.records = c10::GradMode::is_enabled() && !is_in_node,
                   .is_in_node = is_in_node,
                   .is_product = is_product});
  }
}

struct ToDevice;

// The start of a section on the host: a CPU tensor over the same bytes, or a Meta tensor where
// values are not computed. Twice differentiable. What is in `kept`, unless that is null, stays in
// memory until the backward pass is through with the section.
struct ToHost : torch::autograd::Function<ToHost> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& tensor, bool meta,
                            const variable_list* kept) {
    if (kept != nullptr) context->save_for_backward(*kept);
    context->saved_data["device"] = static_cast<int64_t>(tensor.device().index());
    return meta ? meta_alias(tensor) : host_alias(tensor);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients);
};

// The end of a section on the host. Its result has memory of its own, because how long the host
// needs what it computed says nothing about the device.
struct ToDevice : torch::autograd::Function<ToDevice> {
  // `records`: whether the caller's gradients are enabled, so that this is a forward pass. `keeps`:
  // whether the result stays in memory until the backward pass is through here.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& tensor, int64_t device,
                            const c10::intrusive_ptr<BackwardCost>& cost, bool records,
                            bool keeps) {
    context->saved_data["device"] = device;
    context->saved_data["meta"] = tensor.is_meta();
    if (cost) context->saved_data["cost"] = c10::IValue::make_capsule(cost);
    SimDevice& of = SimDevice::of(static_cast<int>(device));
    const at::Tensor own = tensor.clone();
    const at::AutoGradMode as_outside(records);
    at::Tensor result = own.is_meta() ? without_values(own, of) : wrap_on_device(own, of);
    if (keeps) context->save_for_backward({result});
    return result;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    auto& data = context->saved_data;
    SimDevice& device = SimDevice::of(static_cast<int>(data["device"].toInt()));
    if (data.count("cost") != 0) {
      const auto cost = c10::static_intrusive_pointer_cast<BackwardCost>(data["cost"].toCapsule());
      device.use_scratch(static_cast<size_t>(device.is_measured() ? cost->scratch_bytes : 0),
                         cost->kernels[0].name);
      launch_all(device, cost->kernels, /*is_in_node=*/true);
    }
    variable_list results(5);
    if (gradients[0].defined()) {
      results[0] = ToHost::apply(gradients[0], data["meta"].toBool(), nullptr);
    }
    return results;
  }
};

variable_list ToHost::backward(AutogradContext* context, variable_list gradients) {
  variable_list results(3);
  if (gradients[0].defined()) {
    results[0] = ToDevice::apply(gradients[0], context->saved_data["device"].toInt(),
                                 c10::intrusive_ptr<BackwardCost>(), /*records=*/false,
                                 /*keeps=*/false);
  }
  return results;
}

}  // namespace

void run_section_on_host(const c10::OperatorHandle& op, HostSection section,
                         torch::jit::Stack* stack) {
  const OpInfo& info = op_info(op);
  const auto arguments = stack->end() - info.num_arguments;
  // The backward pass may have gradients without values even where the forward pass has values.
  const bool meta = SimDevice::of(current_device()).computes_shapes();
  HostCall call(info, meta ? StandIn::kMeta : StandIn::kHost);
  variable_list kept;  // on the device, for the backward pass
  bool is_differentiable = false;
  const auto map_arguments = [&](const auto& map) {
    for (size_t i = 0; i < info.num_arguments; ++i) {
      map_tensors(arguments[static_cast<ptrdiff_t>(i)], [&](const at::Tensor& tensor) {
        return tensor.defined() ? map(tensor, i) : tensor;
      });
    }
  };
  map_arguments([&](const at::Tensor& tensor, size_t index) {
    call.to_host(tensor, index, /*written=*/false);  // checks and counts
    if (tensor.is_privateuseone()) {
      kept.push_back(tensor);
      is_differentiable |= c10::GradMode::is_enabled() && tensor.requires_grad();
    }
    return tensor;
  });
  TORCH_INTERNAL_ASSERT(call.device() != nullptr);
  SimDevice& device = *call.device();
  watch_training(info, {});
  const KernelScope kernel(&device, section.forward[0].name);
  if (is_differentiable) {
    kept.push_back(
        at::empty({section.kept_bytes}, at::TensorOptions(kept[0].device()).dtype(at::kByte)));
  }
  map_arguments([&](const at::Tensor& tensor, size_t) {
    if (!tensor.is_privateuseone()) return tensor;
    // The backward pass ends at the argument that came first.
    const bool keeps = is_differentiable && tensor.requires_grad();
    is_differentiable &= !keeps;
    return ToHost::apply(tensor, meta, keeps ? &kept : nullptr);
  });
  {
    BorrowedGenerator generator(device);
    // The device's mixed precision is the CPU's while the section runs.
    const absl::Cleanup restore = [enabled = at::autocast::is_autocast_enabled(at::kCPU),
                                   dtype = at::autocast::get_autocast_dtype(at::kCPU)] {
      at::autocast::set_autocast_enabled(at::kCPU, enabled);
      at::autocast::set_autocast_dtype(at::kCPU, dtype);
    };
    at::autocast::set_autocast_enabled(at::kCPU,
                                       at::autocast::is_autocast_enabled(at::kPrivateUse1));
    at::autocast::set_autocast_dtype(at::kCPU, at::autocast::get_autocast_dtype(at::kPrivateUse1));
    op.callBoxed(stack);
  }
  const auto results = stack->end() - info.num_returns;
  TensorTraffic traffic = call.traffic();
  for (size_t i = 0; i < info.num_returns; ++i) {
    const c10::IValue& value = results[static_cast<ptrdiff_t>(i)];
    if (value.isTensor()) traffic.add(value.toTensor(), /*written=*/true);
  }
  if (section.counts_traffic) {
    traffic.apply_to(section.forward[0].work);
    KernelWork& backward = section.backward[0].work;
    traffic.apply_to(backward);
    for (double* amount : {&backward.bytes, &backward.written_bytes}) *amount *= 2;
  }
  const auto cost = c10::make_intrusive<BackwardCost>(std::move(section.backward),
                                                      section.backward_scratch_bytes);
  for (size_t i = 0; i < info.num_returns; ++i) {
    c10::IValue& value = results[static_cast<ptrdiff_t>(i)];
    if (!value.isTensor() || !value.toTensor().defined()) continue;
    // One result carries the cost, because the backward pass goes through the section once.
    value = ToDevice::apply(value.toTensor(), static_cast<int64_t>(device.index()),
                            i == 0 ? cost : c10::intrusive_ptr<BackwardCost>(),
                            c10::GradMode::is_enabled(), section.keeps_result);
  }
  launch_all(device, section.forward, /*is_in_node=*/device.memory().in_backward());
}

}  // namespace accelerate::simulator
