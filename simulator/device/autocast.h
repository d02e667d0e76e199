/// Automatic mixed precision on simulated devices.
///
/// Accelerators cast by LibTorch's lists for them (the AT_FORALL macros); a device of family "cpu"
/// casts by the CPU's lists. Which lists apply is a property of the process's current cluster.
#pragma once

#include <torch/library.h>

namespace accelerate::simulator {

/// `library` implements AutocastPrivateUse1.
void register_autocast(torch::Library& library);

/// From now on devices cast as CPUs do, or as accelerators do.
void cast_like_cpu(bool like_cpu);

}  // namespace accelerate::simulator
