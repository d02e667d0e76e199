/// A section of a program that runs on the host in place of one operator of the device: forward and
/// backward as the CPU has it, to the bit, for the time and the memory that the device's own
/// kernels take.
///
/// Threads: a rank's own.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "simulator/device/op_info.h"
#include "simulator/hardware/kernel_time.h"

namespace accelerate::simulator {

struct SectionKernel {
  const char* name;  ///< never destroyed
  KernelWork work;
};

struct HostSection {
  /// What the device runs, at least one kernel each way.
  std::vector<SectionKernel> forward;
  std::vector<SectionKernel> backward;
  /// Whether the first kernel each way has the traffic of arguments and results besides, and twice
  /// that on the way back.
  bool counts_traffic = false;
  /// What the backward pass needs besides the arguments.
  int64_t kept_bytes = 0;
  bool keeps_result = false;
  /// What its kernels take while they run, gradients included, under efficiency = measured.
  int64_t backward_scratch_bytes = 0;
};

/// Runs `op` on the arguments on the stack, which are on a device or on the host, and leaves its
/// results there. Errors: those of HostCall and of the CPU's operator.
void run_section_on_host(const c10::OperatorHandle& op, HostSection section,
                         torch::jit::Stack* stack);

}  // namespace accelerate::simulator
