#include <optional>

#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_fused_sdp_choice_native.h>
#include <ATen/ops/scaled_dot_product_attention_native.h>
#include <c10/core/ScalarType.h>

#include "absl/strings/match.h"
#include "simulator/device/attention.h"
#include "simulator/device/host_section.h"
#include "simulator/device/install.h"
#include "simulator/device/op_info.h"
#include "simulator/device/sim_device.h"

namespace accelerate::simulator {
namespace {

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
void run_layer_on_host(const c10::OperatorHandle& op, c10::DispatchKeySet,
                       torch::jit::Stack* stack) {
  const OpInfo& info = op_info(op);
  const c10::ArrayRef<c10::IValue> arguments = torch::jit::last(stack, info.num_arguments);
  const bool casts = at::autocast::is_autocast_enabled(at::kPrivateUse1);
  TORCH_CHECK_NOT_IMPLEMENTED(
      !casts || !SimDevice::of(current_device()).computes_shapes(), info.name,
      " under automatic mixed precision is not supported by numerics = shapes: convert the layer "
      "and its inputs to the lower precision instead");
  const KernelWork forward = info.work(arguments);
  KernelWork backward = forward;
  backward.flops *= 2;
  const at::ScalarType dtype = casts ? at::autocast::get_autocast_dtype(at::kPrivateUse1)
                                     : arguments[0].toTensor().scalar_type();
  const auto kept = static_cast<int64_t>(kept_elements(info, arguments));
  run_section_on_host(op,
                      {.forward = {{info.name.c_str(), forward}},
                       .backward = {{info.name.c_str(), backward}},
                       .counts_traffic = true,
                       .kept_bytes = kept * static_cast<int64_t>(c10::elementSize(dtype))},
                      stack);
}

// Attention has the CPU's numbers and the time and memory of what LibTorch takes on a GPU. Where
// the CPU has a fused kernel and the GPU as well, that of the CPU stands for the GPU's, and where
// both compose it of operators these do (see run_on_host); else a section on the host does.
at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const std::optional<at::Tensor>& mask, double dropout, bool is_causal,
                     std::optional<double> scale, bool enable_gqa) {
  const auto compose = [&] {
    return at::native::scaled_dot_product_attention(query, key, value, mask, dropout, is_causal,
                                                    scale, enable_gqa);
  };
  if (!query.is_privateuseone()) return compose();
  const SimDevice& device = SimDevice::of(query.device().index());
  if (device.gpu_capability() == 0) return compose();
  const AttentionCall call{query, key, value, mask, dropout, is_causal, enable_gqa};
  const AttentionBackend backend = attention_backend(device, call);
  const bool is_fused = backend != AttentionBackend::kMath;
  const bool is_fused_on_cpu =
      at::native::_fused_sdp_choice_cpp(query, key, value, mask, dropout, is_causal, scale,
                                        enable_gqa) != static_cast<int64_t>(at::SDPBackend::math);
  if (is_fused == is_fused_on_cpu) return compose();
  static const c10::OperatorHandle op =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::scaled_dot_product_attention", "");
  torch::jit::Stack stack{query, key, value, mask, dropout, is_causal, scale, enable_gqa};
  run_section_on_host(op, is_fused ? fused_attention(call, backend) : composed_attention(call),
                      &stack);
  return stack[0].toTensor();
}

}  // namespace

void register_composite_ops(torch::Library& library) {
  for (const char* name : {"lstm.input", "lstm.data", "gru.input", "gru.data", "rnn_tanh.input",
                           "rnn_tanh.data", "rnn_relu.input", "rnn_relu.data", "lstm_cell",
                           "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"}) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_layer_on_host>());
  }
  library.impl("scaled_dot_product_attention", TORCH_FN(attention));
}

}  // namespace accelerate::simulator
