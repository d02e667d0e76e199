/// How an operator runs on a simulated device: its CPU kernel on the device's own memory, the time
/// that it would take on the device, and the checks that real hardware does not make.
///
/// Numerics are the CPU's, bit for bit.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace accelerate::simulator {

/// A boxed kernel for any operator, registered for PrivateUse1 and SparsePrivateUse1.
/// Errors: c10::NotImplementedError for an operator that LibTorch has no CPU kernel for;
///         what HostCall checks; what the CPU kernel throws.
void run_on_host(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

}  // namespace accelerate::simulator
