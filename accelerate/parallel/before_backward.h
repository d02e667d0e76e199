/// A function that is called when a backward pass begins at outputs of a forward pass.
///
/// Threads: the call is made by a thread of the backward pass; several may make it at once.
#pragma once

#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace accelerate {

/// From now on each backward pass that accumulates gradients calls the function when it comes to
/// one of the outputs, before it comes to what the output was computed from. A pass of
/// autograd::grad, or towards some tensors only, does not. Outputs without a graph are left out.
/// Local.
void call_before_backward(const std::vector<at::Tensor>& outputs,
                          const std::function<void()>& function);

}  // namespace accelerate
