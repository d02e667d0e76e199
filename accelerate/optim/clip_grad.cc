#include "accelerate/optim/clip_grad.h"

#include <cmath>
#include <limits>
#include <optional>
#include <unordered_set>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_clamp_max.h>
#include <ATen/ops/_foreach_clamp_min.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <c10/util/Exception.h>

namespace accelerate {
namespace {

// Gradients that one multi-tensor operator takes.
struct Group {
  c10::Device device;
  at::ScalarType dtype;
  std::vector<at::Tensor> grads;
};

std::vector<Group> gradients_of(at::TensorList parameters) {
  std::vector<Group> groups;
  std::unordered_set<const at::TensorImpl*> seen;  // tied parameters come several times
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& grad = parameters[i].grad();
    if (!grad.defined() || !seen.insert(grad.unsafeGetTensorImpl()).second) continue;
    TORCH_CHECK_VALUE(grad.layout() == at::kStrided, "the gradient of parameter ", i,
                      " is sparse, which clipping does not support");
    if (grad.numel() == 0) continue;
    size_t at = 0;
    while (at < groups.size() &&
           (groups[at].device != grad.device() || groups[at].dtype != grad.scalar_type())) {
      ++at;
    }
    if (at == groups.size()) groups.push_back({grad.device(), grad.scalar_type(), {}});
    groups[at].grads.push_back(grad);
  }
  return groups;
}

bool is_half(at::ScalarType dtype) { return dtype == at::kHalf || dtype == at::kBFloat16; }

// The norm of each gradient, as a vector on the first one's device. `widen`: those of gradients in
// half precision in full precision.
at::Tensor norms_of(const std::vector<Group>& groups, double norm_type, bool widen = false) {
  std::vector<at::Tensor> norms;
  for (const Group& group : groups) {
    std::optional<at::ScalarType> dtype;
    if (widen && is_half(group.dtype)) dtype = at::kFloat;
    for (const at::Tensor& norm : at::_foreach_norm(group.grads, norm_type, dtype)) {
      norms.push_back(norm.to(groups.front().device));
    }
  }
  return at::stack(norms);
}

at::Tensor total_norm_of(const std::vector<Group>& groups, double norm_type) {
  TORCH_CHECK_VALUE(!std::isnan(norm_type), "norm_type is not a number");
  if (groups.empty()) return at::scalar_tensor(0.0);
  return at::linalg_vector_norm(norms_of(groups, norm_type), norm_type);
}

void scale(const std::vector<Group>& groups, double max_norm, const at::Tensor& total_norm) {
  if (groups.empty()) return;
  // Without looking at its value, which would wait for the device.
  const at::Tensor factor = total_norm.add(1e-6).reciprocal_().mul_(max_norm).clamp_max_(1.0);
  for (const Group& group : groups) at::_foreach_mul_(group.grads, factor.to(group.device));
}

void check_max_norm(double max_norm) {
  TORCH_CHECK_VALUE(max_norm >= 0, "max_norm must not be negative, it is ", max_norm);
}

void check_finite(const at::Tensor& norm, at::TensorList parameters, double norm_type) {
  if (std::isfinite(norm.item<double>())) return;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& grad = parameters[i].grad();
    TORCH_CHECK(!grad.defined() || at::isfinite(grad).all().item<bool>(),
                "the gradients' norm of order ", norm_type, " is ", norm.item<double>(),
                ": the gradient of parameter ", i, " of ", parameters.size(),
                " has elements that are infinite or not a number");
  }
  TORCH_CHECK(false, "the gradients' norm of order ", norm_type, " is ", norm.item<double>(),
              " though all gradients are finite");
}

}  // namespace

at::Tensor clip_grad_norm_(at::TensorList parameters, double max_norm,
                           ClipGradNormOptions options) {
  at::NoGradGuard no_grad;
  check_max_norm(max_norm);
  const std::vector<Group> groups = gradients_of(parameters);
  at::Tensor norm = total_norm_of(groups, options.norm_type);
  if (options.error_if_nonfinite) check_finite(norm, parameters, options.norm_type);
  scale(groups, max_norm, norm);
  return norm;
}

at::Tensor get_total_norm(at::TensorList parameters, ClipGradNormOptions options) {
  at::NoGradGuard no_grad;
  at::Tensor norm = total_norm_of(gradients_of(parameters), options.norm_type);
  if (options.error_if_nonfinite) check_finite(norm, parameters, options.norm_type);
  return norm;
}

void clip_grads_with_norm_(at::TensorList parameters, double max_norm,
                           const at::Tensor& total_norm) {
  at::NoGradGuard no_grad;
  check_max_norm(max_norm);
  TORCH_CHECK_VALUE(total_norm.defined() && total_norm.numel() == 1,
                    "total_norm must be one number");
  scale(gradients_of(parameters), max_norm, total_norm.reshape({}));
}

at::Tensor grad_norm_power(at::TensorList parameters, double norm_type) {
  at::NoGradGuard no_grad;
  TORCH_CHECK_VALUE(!std::isnan(norm_type), "norm_type is not a number");
  const std::vector<Group> groups = gradients_of(parameters);
  if (groups.empty()) {
    const bool is_smallest = norm_type == -std::numeric_limits<double>::infinity();
    return at::scalar_tensor(is_smallest ? -norm_type : 0.0);
  }
  // A power of a norm leaves the range of half precision soon.
  at::Tensor norms = norms_of(groups, norm_type, /*widen=*/true);
  if (std::isinf(norm_type)) return norm_type > 0 ? norms.max() : norms.min();
  return norm_type == 0 ? norms.sum() : norms.pow_(norm_type).sum();
}

at::Tensor norm_from_power(const at::Tensor& power, double norm_type) {
  at::NoGradGuard no_grad;
  TORCH_CHECK_VALUE(!std::isnan(norm_type), "norm_type is not a number");
  if (std::isinf(norm_type) || norm_type == 0) return power;
  return power.pow(1 / norm_type);
}

void clip_grad_value_(at::TensorList parameters, double clip_value) {
  at::NoGradGuard no_grad;
  TORCH_CHECK_VALUE(clip_value >= 0, "clip_value must not be negative, it is ", clip_value);
  for (const Group& group : gradients_of(parameters)) {
    at::_foreach_clamp_min_(group.grads, -clip_value);
    at::_foreach_clamp_max_(group.grads, clip_value);
  }
}

}  // namespace accelerate
