/// Facts about NVIDIA's GPUs, from the driver's management library (NVML), which is
/// looked up at run time: a machine without it has no such GPUs. No CUDA context is made.
///
/// Errors:  none; what cannot be asked is empty.
/// Mirrors: get_gpu_info, get_driver_version, check_cuda_p2p_ib_support.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "accelerate/platform/environment.h"

namespace accelerate {

struct NvidiaGpus {
  /// As in "550.54.15"; empty without a driver.
  std::string driver_version;
  /// All GPUs of the machine, regardless of CUDA_VISIBLE_DEVICES.
  std::vector<std::string> names;
};

NvidiaGpus query_nvidia_gpus();

/// Whether NVML can be loaded.
bool has_nvml();

/// Whether several of these GPUs can talk to one another directly and over InfiniBand. The
/// GeForce RTX 40 series cannot with drivers older than 550.40.07.
bool cuda_p2p_ib_supported(const NvidiaGpus& gpus);

/// Whether NCCL would hang or fail on these GPUs with this environment.
/// Errors: FailedPrecondition unless they can talk directly or NCCL_P2P_DISABLE and NCCL_IB_DISABLE
///         are set.
absl::Status check_nccl_environment(const NvidiaGpus& gpus, const Environment& environment);

}  // namespace accelerate
