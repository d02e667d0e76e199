/// RMS norm that keeps little for its backward pass: the input, and one number for each row.
///
///     at::Tensor y = accelerate::rms_norm(x, {hidden}, weight, 1e-5);  // as torch::rms_norm
///
/// LibTorch 2.6 composes torch::rms_norm of several operators, each of which keeps what it needs:
/// besides the input the normalised input, and of an input in 16 bits a copy in float32. So it
/// keeps two tensors of the input's size in place of one, and in 16 bits three times the bytes.
/// Here results and gradients are equal up to rounding: gradients of inputs in 16 bits are computed
/// in float32, and rounded once.
///
/// Write `accelerate::` before the name: arguments are tensors, so that C++ finds at::rms_norm too.
///
/// Mechanism: an operator of its own, accelerate::rms_norm, which operator handlers
///            (operator_mode.h) see before its parts: ranks along tp may have parts of sequences or
///            of heads, but not of what is normalised.
/// Gradients of gradients work; then the numbers of rows are computed anew.
/// Threads: any.
/// Mirrors: torch.nn.functional.rms_norm.
/// Differs: without `eps` inputs in 16 bits get the epsilon of float32, as in newer releases; that
///          of LibTorch 2.6 is the one of their own type.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

namespace accelerate {

/// input / sqrt(mean of input^2 + eps) * weight, where the mean is over the last dims, which have
/// the sizes `normalized_shape`. Sums are in float32, or float64 of float64. Without `eps` it is
/// the epsilon of the type of sums, without `weight` no factor.
/// Shapes: input [..., normalized_shape], weight [normalized_shape].
/// Errors: c10::ValueError for other shapes, and for numbers that are not floating-point numbers.
at::Tensor rms_norm(const at::Tensor& input, at::IntArrayRef normalized_shape,
                    const std::optional<at::Tensor>& weight = std::nullopt,
                    std::optional<double> eps = std::nullopt);

}  // namespace accelerate
