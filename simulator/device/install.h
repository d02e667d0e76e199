/// Makes "sim" a device type of this process.
///
/// PrivateUse1 is what real NPUs use, and some of LibTorch prefers it over CUDA once it is
/// registered: only processes that simulate devices call this.
#pragma once

namespace accelerate::simulator {

/// For the rest of the process. Idempotent. Threads: one at a time, before the ranks' threads.
void install_sim_device();

}  // namespace accelerate::simulator
