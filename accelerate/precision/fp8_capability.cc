#include "accelerate/precision/fp8_capability.h"

#include <algorithm>
#include <array>
#include <string_view>

#include <c10/core/Device.h>

#include "accelerate/precision/fp8_model.h"
#include "accelerate/report/availability.h"

namespace accelerate {
namespace {

// The simulator's models that multiply fp8 (simulator/hardware/presets.cc).
constexpr std::array<std::string_view, 4> kModelsWithFp8 = {"h100", "h200", "b200", "mi300x"};

}  // namespace

bool check_cuda_fp8_capability(const Runtime& runtime) {
  if (!is_cuda_available(/*check_device=*/false, runtime)) return false;
  if (!runtime.owns_process()) {
    return std::ranges::find(kModelsWithFp8, runtime.device_name()) != kModelsWithFp8.end();
  }
  const c10::Device device = runtime.device();
  return has_native_fp8_matmul(device.is_cuda() ? device : c10::Device(c10::kCUDA, 0));
}

}  // namespace accelerate
