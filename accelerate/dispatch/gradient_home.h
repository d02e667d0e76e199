/// Gradients of parameters that are on a device only while they are used.
///
/// Threads: LibTorch's backward threads call the hook; the rest is for the rank's thread.
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

namespace accelerate::internal {

/// The parameter's gradients are added up in that of `home`, on the CPU, and the parameter has none
/// itself. A hook that it has already goes first. `home` is undefined for a parameter in a file: a
/// gradient of it is a c10::ValueError of the backward pass, naming it.
void set_gradient_home(const at::Tensor& parameter, std::string name, at::Tensor home);

/// The parameter has gradients, and the hook it had, itself again.
void end_gradient_home(const at::Tensor& parameter);

}  // namespace accelerate::internal
