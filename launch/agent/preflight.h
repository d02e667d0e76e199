/// What is checked before anything starts and needs nobody else. What concerns several machines
/// (their versions, clocks and reachability) is checked when they meet (introduction.h,
/// membership_client.h).
#pragma once

#include "absl/status/status.h"
#include "launch/agent/agent_options.h"

namespace accelerate::launch {

/// Whether the options make sense together. Errors: InvalidArgument.
absl::Status check_options(const AgentOptions& options);

/// Whether there are as many devices as are needed. Errors: FailedPrecondition.
absl::Status check_devices(int needed, int present);

/// Devices of this machine by their files under `dev_folder`, of whichever kind there are most: of
/// NVIDIA, AMD, Intel, Huawei and Habana. What CUDA_VISIBLE_DEVICES and the like hide is counted.
int count_devices(const std::string& dev_folder = "/dev");

}  // namespace accelerate::launch
