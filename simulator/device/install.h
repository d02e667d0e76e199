/// Makes "sim" a device type of this process.
///
/// PrivateUse1 is the device type of real NPUs, and once it is registered parts of LibTorch prefer
/// it to CUDA: only processes that simulate devices may call this.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DispatchKeySet.h>
#include <torch/library.h>

namespace accelerate::simulator {

/// For the rest of the process. Idempotent. Threads: one at a time, before the ranks' threads.
void install_sim_device();

/// Automatic mixed precision of the devices from now on. A device of family "cpu" casts by the
/// CPU's lists, accelerators by LibTorch's lists for them (the AT_FORALL macros). Registers the
/// kernels of AutocastPrivateUse1. Threads: one at a time, while no rank runs.
void cast_like_cpu(bool like_cpu);

// ---- The parts of the device type that install_sim_device() registers with LibTorch.

/// Keys to exclude while a kernel runs, whose operators neither record gradients nor cast.
inline constexpr c10::DispatchKeySet kAboveKernels =
    c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset;

/// A boxed kernel for any operator, for PrivateUse1 and SparsePrivateUse1: runs the CPU kernel on
/// the device's own memory, charges the time that the operator would take on the device, and makes
/// the checks that real hardware does not make. Numerics are the CPU's, bit for bit.
/// Errors: c10::NotImplementedError for an operator without a CPU kernel; those of HostCall and of
///         the CPU kernel.
void run_on_host(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

/// Operators that every device must implement itself: making tensors, copying, sharing storages.
/// `library` implements PrivateUse1.
void register_basic_ops(torch::Library& library);

/// Operators that LibTorch composes differently on a CPU than on other devices: to equal the CPU
/// bit for bit, a simulated device composes them as the CPU does. PrivateUse1 and
/// AutogradPrivateUse1 both need them.
void register_composite_ops(torch::Library& library);

/// Dropout as one kernel, with the numbers that the CPU draws. The libraries implement PrivateUse1
/// and AutogradPrivateUse1.
void register_dropout(torch::Library& device, torch::Library& autograd);

/// An autograd engine that runs a rank's backward pass on the rank's own thread, hooks included.
/// LibTorch's engine runs a device's part on a thread of its own, where ranks that wait for each
/// other in a collective could neither hold nor pass on the baton. Before the first simulated rank.
/// Errors: c10::Error from backward() for a graph that reaches another rank's device or leaf.
void install_engine();

}  // namespace accelerate::simulator
