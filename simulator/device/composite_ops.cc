#include <optional>
#include <string>

#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include "absl/strings/match.h"
#include "simulator/device/generator.h"
#include "simulator/device/host_call.h"
#include "simulator/device/install.h"
#include "simulator/device/op_watch.h"
#include "simulator/device/sim_device.h"

namespace accelerate::simulator {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The time that the backward pass of a section on the host takes on the device.
struct BackwardCost : torch::CustomClassHolder {
  BackwardCost(const char* name, const KernelWork& work) : name(name), work(work) {}

  const char* name;
  KernelWork work;
};

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
  // `records`: whether the caller's gradients are enabled, so that this is a forward pass.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& tensor, int64_t device,
                            const c10::intrusive_ptr<BackwardCost>& cost, bool records) {
    context->saved_data["device"] = device;
    context->saved_data["meta"] = tensor.is_meta();
    if (cost) context->saved_data["cost"] = c10::IValue::make_capsule(cost);
    SimDevice& of = SimDevice::of(static_cast<int>(device));
    const at::Tensor own = tensor.clone();
    const at::AutoGradMode as_outside(records);
    return own.is_meta() ? without_values(own, of) : adopt(own, of);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    auto& data = context->saved_data;
    SimDevice& device = SimDevice::of(static_cast<int>(data["device"].toInt()));
    if (data.count("cost") != 0) {
      const auto cost = c10::static_intrusive_pointer_cast<BackwardCost>(data["cost"].toCapsule());
      device.launch(cost->name, cost->work, {.is_in_node = true});
    }
    variable_list results(4);
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
                                 c10::intrusive_ptr<BackwardCost>(), /*records=*/false);
  }
  return results;
}

// Applies the device's mixed precision to the CPU while a section runs.
class HostAutocast {
 public:
  HostAutocast()
      : enabled_(at::autocast::is_autocast_enabled(at::kCPU)),
        dtype_(at::autocast::get_autocast_dtype(at::kCPU)) {
    at::autocast::set_autocast_enabled(at::kCPU,
                                       at::autocast::is_autocast_enabled(at::kPrivateUse1));
    at::autocast::set_autocast_dtype(at::kCPU, at::autocast::get_autocast_dtype(at::kPrivateUse1));
  }
  ~HostAutocast() {
    at::autocast::set_autocast_enabled(at::kCPU, enabled_);
    at::autocast::set_autocast_dtype(at::kCPU, dtype_);
  }
  HostAutocast(const HostAutocast&) = delete;
  HostAutocast& operator=(const HostAutocast&) = delete;

 private:
  const bool enabled_;
  const at::ScalarType dtype_;
};

// The elements that a recurrent layer keeps for its backward pass besides its arguments: as many as
// LibTorch's fused cells for GPUs. For each row of the input, each layer and direction of width H
// these are an LSTM's four gates, its cell state and its output, 6 H; a GRU's gates, the two parts
// of its candidate and its output, 6 H; another layer's output, H.
double kept_elements(const OpInfo& info, c10::ArrayRef<c10::IValue> arguments) {
  const RecurrentSizes sizes = recurrent_sizes(arguments);
  const double for_gate = absl::StartsWith(info.name, "aten::lstm")  ? 6.0 / 4
                          : absl::StartsWith(info.name, "aten::gru") ? 6.0 / 3
                                                                     : 1;
  return for_gate * sizes.rows * sizes.gates;
}

// Recurrent layers: the CPU has kernels for whole layers where other devices have fused cells, so a
// whole layer runs on the host, with its backward pass.
void run_section_on_host(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                         torch::jit::Stack* stack) {
  const OpInfo& info = op_info(op);
  const auto arguments = stack->end() - info.num_arguments;
  const c10::ArrayRef<c10::IValue> argument_list(&*arguments, info.num_arguments);
  KernelWork work = info.work(argument_list);
  // The backward pass may have gradients without values even where the forward pass has values.
  const bool meta = SimDevice::of(current_device()).computes_shapes();
  TORCH_CHECK_NOT_IMPLEMENTED(
      !meta || !at::autocast::is_autocast_enabled(at::kPrivateUse1), info.name,
      " under automatic mixed precision is not supported by numerics = shapes: convert the layer "
      "and its inputs to the lower precision instead");
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
  const KernelScope kernel(&device, info.name.c_str());
  if (is_differentiable) {
    const at::ScalarType dtype = at::autocast::is_autocast_enabled(at::kPrivateUse1)
                                     ? at::autocast::get_autocast_dtype(at::kPrivateUse1)
                                     : kept[0].scalar_type();
    kept.push_back(at::empty({static_cast<int64_t>(kept_elements(info, argument_list))},
                             at::TensorOptions(kept[0].device()).dtype(dtype)));
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
    HostAutocast autocast;
    op.callBoxed(stack);
  }
  const auto results = stack->end() - info.num_returns;
  TensorTraffic traffic = call.traffic();
  for (size_t i = 0; i < info.num_returns; ++i) {
    const c10::IValue& value = results[static_cast<ptrdiff_t>(i)];
    if (value.isTensor()) traffic.add(value.toTensor(), /*written=*/true);
  }
  traffic.count_in(work);
  KernelWork backward = work;
  for (double* amount : {&backward.flops, &backward.bytes, &backward.written_bytes}) *amount *= 2;
  const auto cost = c10::make_intrusive<BackwardCost>(info.name.c_str(), backward);
  for (size_t i = 0; i < info.num_returns; ++i) {
    c10::IValue& value = results[static_cast<ptrdiff_t>(i)];
    if (!value.isTensor() || !value.toTensor().defined()) continue;
    // One result carries the cost, because the backward pass goes through the section once.
    value = ToDevice::apply(value.toTensor(), static_cast<int64_t>(device.index()),
                            i == 0 ? cost : c10::intrusive_ptr<BackwardCost>(),
                            c10::GradMode::is_enabled());
  }
  device.launch(info.name.c_str(), work);
}

}  // namespace

void register_composite_ops(torch::Library& library) {
  for (const char* name : {"lstm.input", "lstm.data", "gru.input", "gru.data", "rnn_tanh.input",
                           "rnn_tanh.data", "rnn_relu.input", "rnn_relu.data", "lstm_cell",
                           "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"}) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_section_on_host>());
  }
}

}  // namespace accelerate::simulator
