/// Clipping gradients by their norm or their value, all at once.
///
/// Parameters may be on several devices and of several types; those without a gradient are left
/// out, and so are gradients without elements. One that comes several times counts once. No
/// function waits for a device unless documented below. Norms are summed so that they have most
/// digits of their type however many elements there are. Everything here is local: replicas of a
/// model have equal gradients and so equal norms. If gradients are sharded over ranks, the ranks
/// reduce grad_norm_power:
///
///     at::Tensor power = grad_norm_power(parameters, p);   // then summed over ranks
///     clip_grads_with_norm_(parameters, max_norm, norm_from_power(power, p));
///
/// A gradient that is not a number makes the norm, and with it all gradients, not a number, as in
/// PyTorch; an infinite one makes the others zero and itself not a number.
/// Errors: c10::ValueError if a gradient is sparse, or a norm, type or value is NaN or negative
///         where that makes no sense; nothing has changed then.
/// Threads: any, each with gradients of its own.
/// Mirrors: torch.nn.utils.clip_grad_norm_, get_total_norm, clip_grads_with_norm_,
/// clip_grad_value_.
#pragma once

#include <ATen/core/Tensor.h>

namespace accelerate {

struct ClipGradNormOptions {
  /// Any number: infinity is the largest absolute value, minus infinity the smallest, and 0 counts
  /// the gradients that are not all zero.
  double norm_type = 2.0;
  /// Waits for the device to refuse a norm that is infinite or not a number. The error, c10::Error,
  /// names the first parameter that is the reason, by its index; no gradient has changed.
  bool error_if_nonfinite = false;
};

/// Multiplies all gradients by max_norm / (norm + 1e-6) where that is below 1.
/// Returns the norm of all gradients together as it was before: a 0-dim tensor on the device of the
/// first gradient; zero on the CPU where there is none.
at::Tensor clip_grad_norm_(at::TensorList parameters, double max_norm,
                           ClipGradNormOptions options = {});

/// Only that norm.
at::Tensor get_total_norm(at::TensorList parameters, ClipGradNormOptions options = {});

/// Only the multiplication, by a norm known already.
void clip_grads_with_norm_(at::TensorList parameters, double max_norm,
                           const at::Tensor& total_norm);

/// What the elements of these gradients add to a norm: the sum of their absolute values to the
/// power `norm_type`; the largest for infinity, the smallest for minus infinity; how many are not
/// zero for 0. A 0-dim float or double tensor. Parts are summed (or their maximum or minimum
/// taken).
at::Tensor grad_norm_power(at::TensorList parameters, double norm_type);

/// The norm, from the sum of the parts.
at::Tensor norm_from_power(const at::Tensor& power, double norm_type);

/// Limits each element of the gradients to [-clip_value, clip_value]. NaN stays.
void clip_grad_value_(at::TensorList parameters, double clip_value);

}  // namespace accelerate
