#include "accelerate/precision/fp8_capability.h"

#include <optional>

#include <c10/core/Device.h>

#include "accelerate/precision/fp8_model.h"
#include "accelerate/report/availability.h"

namespace accelerate {

bool check_cuda_fp8_capability(const Runtime& runtime) {
  if (!is_cuda_available(/*check_device=*/false, runtime)) return false;
  if (const std::optional<bool> has = runtime.device_has(DeviceTrait::kFp8Products)) return *has;
  const c10::Device device = runtime.device();
  return has_native_fp8_matmul(device.is_cuda() ? device : c10::Device(c10::kCUDA, 0));
}

}  // namespace accelerate
