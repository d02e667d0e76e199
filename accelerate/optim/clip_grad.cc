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
#include <ATen/ops/cat.h>
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

// LibTorch's CPU kernels add all elements of a tensor to a few sums in float, where those of a GPU
// add in trees. So the norm of a large tensor is that of its rows' norms, which are few enough for
// double. The kernel of order 2 has several sums.
int64_t row_size(double norm_type) { return norm_type == 2 ? 512 : 32; }
constexpr int64_t kRowsOfLarge = 16;

// Norms of parts of the gradients, as a vector on the first one's device; the norm of order 0 and
// the infinite ones have a part for each gradient. `widen`: those of gradients in half precision in
// full precision.
at::Tensor norms_of(const std::vector<Group>& groups, double norm_type, bool widen = false) {
  const c10::Device device = groups.front().device;
  const int64_t row = row_size(norm_type);
  std::vector<at::Tensor> vectors, norms;
  for (const Group& group : groups) {
    std::optional<at::ScalarType> dtype;
    if (widen && is_half(group.dtype)) dtype = at::kFloat;
    const bool in_rows = dtype.value_or(group.dtype) == at::kFloat && !group.device.is_cuda() &&
                         norm_type != 0 && std::isfinite(norm_type);
    std::vector<at::Tensor> whole;
    for (const at::Tensor& grad : group.grads) {
      if (!in_rows || grad.numel() < kRowsOfLarge * row) {
        whole.push_back(grad);
        continue;
      }
      const at::Tensor dense = grad.is_non_overlapping_and_dense() ? grad : grad.contiguous();
      const int64_t rows = dense.numel() / row, rest = dense.numel() % row;
      vectors.push_back(at::linalg_vector_norm(dense.as_strided({rows, row}, {row, 1}), norm_type,
                                               {1}, /*keepdim=*/false, dtype)
                            .to(device));
      if (rest == 0) continue;
      whole.push_back(dense.as_strided({rest}, {1}, dense.storage_offset() + rows * row));
    }
    if (whole.empty()) continue;
    for (const at::Tensor& norm : at::_foreach_norm(whole, norm_type, dtype)) {
      norms.push_back(norm.to(device));
    }
  }
  if (!norms.empty()) vectors.push_back(at::stack(norms));
  return vectors.size() == 1 ? vectors[0] : at::cat(vectors);
}

// The type in which few numbers are summed.
at::ScalarType exact_dtype(const at::Tensor& numbers) {
  return numbers.is_mps() ? numbers.scalar_type() : at::kDouble;
}

at::Tensor total_norm_of(const std::vector<Group>& groups, double norm_type) {
  TORCH_CHECK_VALUE(!std::isnan(norm_type), "norm_type is not a number");
  if (groups.empty()) return at::scalar_tensor(0.0);
  const at::Tensor norms = norms_of(groups, norm_type);
  return at::linalg_vector_norm(norms, norm_type, std::nullopt, /*keepdim=*/false,
                                exact_dtype(norms))
      .to(norms.scalar_type());
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
  norms = norms.to(exact_dtype(norms));
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
