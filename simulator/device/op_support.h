/// Which of LibTorch's operators a simulated device runs, read from the operator registry.
///
/// Threads: any; install_sim_device() first.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>

namespace accelerate::simulator {

/// How the device runs an operator.
enum class OpSupport {
  kCpuKernel,    ///< LibTorch's CPU kernel on the device's memory
  kDevice,       ///< a kernel of the device
  kComposed,     ///< LibTorch composes it of other operators
  kUnsupported,  ///< none of these: the operator throws
};

OpSupport op_support(const c10::OperatorHandle& op);

/// One line for each operator of ATen, sorted: its name with overload, a blank, and "cpu kernel",
/// "device", "composed" or "unsupported".
std::vector<std::string> list_op_support();

}  // namespace accelerate::simulator
