/// Makes "sim" a device type of this process.
///
/// PrivateUse1 is the device type of real NPUs, and once it is registered parts of LibTorch prefer
/// it to CUDA: only processes that simulate devices may call this.
#pragma once

namespace accelerate::simulator {

/// For the rest of the process. Idempotent. Threads: one at a time, before the ranks' threads.
void install_sim_device();

/// Whether devices cast by the CPU's lists from now on, or by those for accelerators.
void cast_like_cpu(bool like_cpu);

}  // namespace accelerate::simulator
