/// Clipping gradients by their norm or their value, all at once.
///
/// Parameters may be on several devices and of several types; those without a gradient are left
/// out, and so are gradients without elements. One that comes several times counts once. Norms have
/// most digits of their type however many elements there are, and however large or small these are:
/// powers of elements that leave the type's range do not spoil them (but on MPS). No function waits
/// for a device unless documented below. Local, but for the functions on GradientShards: replicas
/// of a model have equal gradients and so equal norms.
///
/// A gradient that is not a number makes the norm, and with it all gradients, not a number, as in
/// PyTorch; an infinite one makes the others zero and itself not a number.
/// Errors: c10::ValueError if a gradient is sparse, or a norm, type or value is NaN or negative
///         where that makes no sense; nothing has changed then.
/// Threads: any, each with gradients of its own.
/// Mirrors: torch.nn.utils.clip_grad_norm_, get_total_norm, clip_grads_with_norm_,
/// clip_grad_value_; accelerate accelerator.py, _clip_grad_norm_dtensor_aware (here
/// clip_sharded_grad_norm_).
/// Differs: the norm of gradients in half precision is a float32.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "accelerate/comm/process_group.h"

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

/// Parameters whose gradients' elements the ranks of the group have together: of each, a rank has
/// other elements than the others, or none, or the same as some others, of which one counts them.
/// A null group: whole gradients, the same on every rank.
struct GradientShards {
  ProcessGroupPtr group;
  std::vector<at::Tensor> parameters;
  /// By parameter: whether the norm counts this rank's elements. Empty: all count.
  std::vector<bool> counts = {};
};

/// The norm of all those gradients together, as if each were whole; a 0-dim tensor on `device`, on
/// which the ranks exchange their parts. Each element counts once. Collective over each group, in
/// the order of `shards`: all its ranks pass what they have of the same parameters.
at::Tensor get_sharded_total_norm(const std::vector<GradientShards>& shards, c10::Device device,
                                  ClipGradNormOptions options = {});

/// As clip_grad_norm_, with that norm: every gradient is scaled by the same factor. Collective.
at::Tensor clip_sharded_grad_norm_(const std::vector<GradientShards>& shards, double max_norm,
                                   c10::Device device, ClipGradNormOptions options = {});

namespace internal {

/// The norm of these tensors' elements together, a 0-dim float or double. Local.
at::Tensor norm_of_tensors(at::TensorList tensors, double norm_type);

}  // namespace internal

/// Limits each element of the gradients to [-clip_value, clip_value]. NaN stays.
void clip_grad_value_(at::TensorList parameters, double clip_value);

}  // namespace accelerate
