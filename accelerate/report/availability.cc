#include "accelerate/report/availability.h"

#include <algorithm>
#include <optional>

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceType.h>
#include <c10/util/Exception.h>

#include "absl/strings/match.h"
#include "accelerate/runtime/device_choice.h"
#include "accelerate/runtime/env_parsing.h"
#include "accelerate/values/versions.h"

namespace accelerate {
namespace {

// A device of the family, as tensors spell it: the rank's own where it is of that family.
std::optional<c10::Device> device_of(const std::string& family, const Runtime& runtime) {
  if (runtime.device_family() == family) return runtime.device();
  for (const DeviceKind& kind : present_devices()) {
    if (kind.family == family) return c10::Device(kind.type, 0);
  }
  return std::nullopt;
}

bool can_hold_a_tensor(c10::Device device) {
  try {
    return at::empty({1}, at::TensorOptions().device(device)).defined();
  } catch (const c10::Error&) {
    return false;
  }
}

bool has_family(const std::string& family, bool check_device, const Runtime& runtime) {
  const std::vector<std::string> families = runtime.accelerator_families();
  if (std::find(families.begin(), families.end(), family) == families.end()) return false;
  if (!check_device) return true;
  const std::optional<c10::Device> device = device_of(family, runtime);
  return device && can_hold_a_tensor(*device);
}

bool has_context(c10::Device device) {
  try {
    return at::globalContext()
        .getAcceleratorHooksInterface(device.type())
        .hasPrimaryContext(device.index());
  } catch (const c10::Error&) {
    return false;  // A vendor's plug-in need not answer.
  }
}

// AMD's models, as the simulator calls them.
bool is_amd_model(const std::string& name) { return absl::StartsWith(name, "mi"); }

}  // namespace

bool is_cuda_available(bool check_device, const Runtime& runtime) {
  return has_family("gpu", check_device, runtime);
}

bool is_rocm_available(bool check_device, const Runtime& runtime) {
  const bool amd = runtime.owns_process() ? at::hasHIP() : is_amd_model(runtime.device_name());
  return amd && has_family("gpu", check_device, runtime);
}

bool is_xpu_available(bool check_device, const Runtime& runtime) {
  return has_family("xpu", check_device, runtime);
}

bool is_npu_available(bool check_device, const Runtime& runtime) {
  return has_family("npu", check_device, runtime);
}

bool is_mlu_available(bool check_device, const Runtime& runtime) {
  return has_family("mlu", check_device, runtime);
}

bool is_musa_available(bool check_device, const Runtime& runtime) {
  return has_family("musa", check_device, runtime);
}

bool is_sdaa_available(bool check_device, const Runtime& runtime) {
  return has_family("sdaa", check_device, runtime);
}

bool is_neuron_available(bool check_device, const Runtime& runtime) {
  return has_family("neuron", check_device, runtime);
}

bool is_hpu_available(bool init_hccl, const Runtime& runtime) {
  return has_family("hpu", init_hccl, runtime);
}

bool is_habana_gaudi1(const Runtime& runtime) {
  const std::string name = runtime.device_name();
  return is_hpu_available(false, runtime) && (name == "gaudi" || name == "gaudi1");
}

bool is_mps_available(const std::string& min_version, const Runtime& runtime) {
  return is_torch_version(">=", min_version) && has_family("mps", false, runtime);
}

bool is_torch_xla_available(bool check_is_tpu, bool check_is_gpu, const Runtime& runtime) {
  TORCH_CHECK_VALUE(!check_is_tpu || !check_is_gpu,
                    "is_torch_xla_available: only one of check_is_tpu and check_is_gpu can be "
                    "true");
  if (!parse_flag_from_env("USE_TORCH_XLA", true, runtime.environment())) return false;
  return !check_is_gpu && has_family("tpu", false, runtime);
}

bool is_xccl_available(const Runtime& runtime) { return is_xpu_available(false, runtime); }

std::vector<c10::Device> initialized_devices() {
  std::vector<c10::Device> devices;
  for (const DeviceKind& kind : present_devices()) {
    for (int index = 0; index < kind.count; ++index) {
      const c10::Device device(kind.type, static_cast<c10::DeviceIndex>(index));
      if (has_context(device)) devices.push_back(device);
    }
  }
  return devices;
}

bool is_bf16_available(bool ignore_tpu, const Runtime& runtime) {
  // LibTorch computes in bfloat16 on all devices, where need be by converting.
  return !(ignore_tpu && is_torch_xla_available(true, false, runtime));
}

bool is_fp16_available(const Runtime& runtime) { return !is_habana_gaudi1(runtime); }

bool is_fp8_available(const Runtime& runtime) {
  return is_transformer_engine_available(runtime) || is_msamp_available(runtime) ||
         is_torchao_available(runtime);
}

NvidiaGpus get_gpu_info(const Runtime& runtime) {
  if (runtime.owns_process()) return query_nvidia_gpus();
  if (runtime.device_family() != "gpu" || is_amd_model(runtime.device_name())) return {};
  const auto num_gpus = static_cast<size_t>(runtime.topology().local_world_size);
  return {.names = std::vector<std::string>(num_gpus, runtime.device_name())};
}

std::string get_driver_version(const Runtime& runtime) {
  return get_gpu_info(runtime).driver_version;
}

bool check_cuda_p2p_ib_support(const Runtime& runtime) {
  return cuda_p2p_ib_supported(get_gpu_info(runtime));
}

}  // namespace accelerate
