/// Compiled regions on simulated devices: a region runs operator by operator, and its operators
/// take the time that fused kernels would (kernel_chain.h).
///
/// Threads: any that runs a rank's operators.
#pragma once

namespace accelerate::simulator {

/// Lets INDUCTOR compile regions on simulated devices in this way.
void register_compiled_regions();

/// Whether this thread runs a compiled region.
bool is_in_compiled_region();

}  // namespace accelerate::simulator
