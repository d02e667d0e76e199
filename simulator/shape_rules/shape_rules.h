/// What an operator's results look like, for operators that LibTorch cannot tell it of.
///
/// With `numerics = shapes` a simulated device does not compute: it runs an operator's Meta kernel,
/// which finds the sizes, strides and types of the results. LibTorch has such kernels for about
/// half of the operators that it has CPU kernels for. The rules here are Meta kernels for most of
/// the others: a result is as the CPU kernel makes it, down to strides, aliases and bytes of
/// storage. Operators without one are composed of others, or fail with LibTorch's own error.
#pragma once

namespace accelerate::simulator {

/// Registers the rules, for the rest of the process. LibTorch's own Meta kernels stay: a version
/// with more of them needs fewer rules. Idempotent. Threads: one at a time, before any operator
/// runs on Meta tensors.
/// Errors, of operators whose result has a shape that depends on values, such as nonzero():
///         c10::NotImplementedError that names the operator.
void install_shape_rules();

}  // namespace accelerate::simulator
