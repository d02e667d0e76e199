/// Operators that LibTorch composes of others, and composes differently on a CPU: to be bit-equal
/// to it, a simulated device composes them as the CPU does.
#pragma once

#include <torch/library.h>

namespace accelerate::simulator {

/// `library` implements PrivateUse1 or AutogradPrivateUse1; both need these.
void register_composite_ops(torch::Library& library);

}  // namespace accelerate::simulator
