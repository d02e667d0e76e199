#include "accelerate/optim/clip_grad.h"

#include <algorithm>
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
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include "accelerate/comm/operations.h"
#include "accelerate/tensors/tensor_memory.h"

namespace accelerate {
namespace {

// Gradients that one multi-tensor operator takes.
struct Group {
  c10::Device device;
  at::ScalarType dtype;
  std::vector<at::Tensor> grads;
};

void add_to(std::vector<Group>& groups, const at::Tensor& grad) {
  if (grad.numel() == 0) return;
  const auto fits = [&grad](const Group& group) {
    return group.device == grad.device() && group.dtype == grad.scalar_type();
  };
  auto found = std::ranges::find_if(groups, fits);
  if (found == groups.end()) {
    found = groups.insert(found, {grad.device(), grad.scalar_type(), {}});
  }
  found->grads.push_back(grad);
}

std::vector<Group> gradients_of(at::TensorList parameters) {
  std::vector<Group> groups;
  std::unordered_set<const at::TensorImpl*> seen;  // tied parameters come several times
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i].grad().defined()) continue;
    at::Tensor& grad = parameters[i].mutable_grad();
    // Multi-tensor operators do not write to views with flags, as the gradient of conj() is.
    grad = internal::without_flags(grad);
    if (!seen.insert(grad.unsafeGetTensorImpl()).second) continue;
    TORCH_CHECK_VALUE(grad.layout() == at::kStrided, "the gradient of parameter ", i,
                      " is sparse, which clipping does not support");
    add_to(groups, grad);
  }
  return groups;
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The largest number of a floating-point type.
double largest_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kHalf: return std::numeric_limits<at::Half>::max();
    case at::kBFloat16: return std::numeric_limits<at::BFloat16>::max();
    case at::kFloat: return std::numeric_limits<float>::max();
    default: return std::numeric_limits<double>::max();
  }
}

bool is_half(at::ScalarType dtype) { return dtype == at::kHalf || dtype == at::kBFloat16; }

// LibTorch's CPU kernels add all elements of a tensor to a few sums in float, where those of a GPU
// add in trees. So the norm of a large tensor is that of its rows' norms, which are few enough for
// double. The kernel of order 2 has several sums.
int64_t row_size(double norm_type) { return norm_type == 2 ? 512 : 32; }
constexpr int64_t kRowsOfLarge = 16;

bool is_power_of_elements(double norm_type) { return norm_type != 0 && std::isfinite(norm_type); }

// The type in which few numbers are summed.
at::ScalarType exact_dtype(c10::Device device) {
  return device.is_mps() ? at::kFloat : at::kDouble;
}

bool is_double(at::ScalarType dtype) { return dtype == at::kDouble || dtype == at::kComplexDouble; }

// In what the elements of a group are added up, if not in their own type.
std::optional<at::ScalarType> sum_dtype(const Group& group, double norm_type) {
  if (group.device.is_mps() || !is_power_of_elements(norm_type)) {
    return is_half(group.dtype) ? std::optional(at::kFloat) : std::nullopt;
  }
  return at::isComplexType(group.dtype) ? at::kComplexDouble : at::kDouble;
}

// Norms of parts of the gradients, as a vector on the first one's device in exact_dtype; the norm
// of order 0 and the infinite ones have a part for each gradient. `in_rows`: those of large
// gradients in rows, which are added up in float.
at::Tensor norms_of(const std::vector<Group>& groups, double norm_type, bool in_rows) {
  const c10::Device device = groups.front().device;
  const int64_t row = row_size(norm_type);
  std::vector<at::Tensor> vectors, norms;
  for (const Group& group : groups) {
    const std::optional<at::ScalarType> row_dtype =
        is_half(group.dtype) ? std::optional(at::kFloat) : std::nullopt;
    const bool has_rows =
        in_rows && row_dtype.value_or(group.dtype) == at::kFloat && is_power_of_elements(norm_type);
    std::vector<at::Tensor> whole;
    for (const at::Tensor& grad : group.grads) {
      if (!has_rows || grad.numel() < kRowsOfLarge * row) {
        whole.push_back(grad);
        continue;
      }
      const at::Tensor dense = grad.is_non_overlapping_and_dense() ? grad : grad.contiguous();
      const int64_t rows = dense.numel() / row, rest = dense.numel() % row;
      vectors.push_back(at::linalg_vector_norm(dense.as_strided({rows, row}, {row, 1}), norm_type,
                                               {1}, /*keepdim=*/false, row_dtype)
                            .to(device));
      if (rest == 0) continue;
      whole.push_back(dense.as_strided({rest}, {1}, dense.storage_offset() + rows * row));
    }
    if (whole.empty()) continue;
    for (const at::Tensor& norm :
         at::_foreach_norm(whole, norm_type, sum_dtype(group, norm_type))) {
      norms.push_back(norm.to(device));
    }
  }
  if (!norms.empty()) vectors.push_back(at::stack(norms));
  return (vectors.size() == 1 ? vectors[0] : at::cat(vectors)).to(exact_dtype(device));
}

bool has_double(const std::vector<Group>& groups) {
  return std::ranges::any_of(groups, [](const Group& group) { return is_double(group.dtype); });
}

// Whether a double holds the powers of all numbers of narrower types, and sums of them.
bool fit_powers_in_double(double norm_type) { return norm_type == 1 || norm_type == 2; }

// What numbers are divided by so that their powers stay in range: the one that decides.
at::Tensor unit_of(const at::Tensor& norms, double norm_type) {
  const at::Tensor most = norm_type > 0 ? norms.max() : norms.min();
  return at::where(at::isfinite(most).logical_and_(most > 0), most, at::ones_like(most));
}

// The norm of parts' norms, which are a vector in exact_dtype.
at::Tensor combined(const at::Tensor& norms, double norm_type, bool are_in_range) {
  if (norms.numel() == 1 && norm_type != 0) return norms.reshape({});
  if (are_in_range || !is_power_of_elements(norm_type)) {
    return at::linalg_vector_norm(norms, norm_type);
  }
  const at::Tensor unit = unit_of(norms, norm_type);
  return at::linalg_vector_norm(norms.div(unit), norm_type).mul_(unit);
}

// In two passes, for elements whose powers leave the range of what they are summed in.
at::Tensor norm_in_units(const std::vector<Group>& groups, double norm_type) {
  const at::Tensor unit = unit_of(
      norms_of(groups, norm_type > 0 ? kInfinity : -kInfinity, /*in_rows=*/false), norm_type);
  std::vector<at::Tensor> norms;
  for (const Group& group : groups) {
    const at::ScalarType dtype =
        at::isComplexType(group.dtype) ? at::kComplexDouble : exact_dtype(group.device);
    const at::Tensor own_unit = unit.to(group.device);
    for (const at::Tensor& grad : group.grads) {
      norms.push_back(
          at::linalg_vector_norm(grad.to(dtype).div(own_unit), norm_type).to(unit.device()));
    }
  }
  return at::linalg_vector_norm(at::stack(norms), norm_type).mul_(unit);
}

// Whether elements may have been lost because their powers left the range.
bool is_doubtful(double norm, const std::vector<Group>& groups, double norm_type) {
  double elements = 0, digits = 1, smallest = 0;
  for (const Group& group : groups) {
    for (const at::Tensor& grad : group.grads) elements += static_cast<double>(grad.numel());
    const bool wide = is_double(group.dtype);
    smallest = std::max<double>(
        smallest, wide ? std::numeric_limits<double>::min() : std::numeric_limits<float>::min());
    digits = std::max(digits, wide ? 1e16 : 1e8);
  }
  if (!std::isfinite(norm) || norm == 0) return true;
  return std::pow(norm, norm_type) < elements * smallest * digits;
}

// The norm of all gradients, in exact_dtype. At least one group.
at::Tensor norm_of(const std::vector<Group>& groups, double norm_type) {
  const auto are_all = [&groups](auto is) {
    return std::ranges::all_of(groups, [is](const Group& group) { return is(group.device); });
  };
  const bool fit = fit_powers_in_double(norm_type) && !has_double(groups);
  const bool may_look = are_all([](c10::Device device) { return device.is_cpu(); });
  const bool lacks_double = !are_all([](c10::Device device) { return !device.is_mps(); });
  if (may_look || lacks_double || !is_power_of_elements(norm_type)) {
    const at::Tensor norm = combined(norms_of(groups, norm_type, /*in_rows=*/true), norm_type, fit);
    if (!may_look || !is_power_of_elements(norm_type) ||
        !is_doubtful(norm.item<double>(), groups, norm_type)) {
      return norm;
    }
    return norm_in_units(groups, norm_type);
  }
  // To see whether a first try was good would mean to wait for the device.
  if (fit) return combined(norms_of(groups, norm_type, /*in_rows=*/false), norm_type, fit);
  return norm_in_units(groups, norm_type);
}

void check_norm_type(double norm_type) {
  TORCH_CHECK_VALUE(!std::isnan(norm_type), "norm_type is not a number");
}

at::Tensor exact_total_norm(const std::vector<Group>& groups, double norm_type) {
  check_norm_type(norm_type);
  return groups.empty() ? at::scalar_tensor(0.0, at::kDouble) : norm_of(groups, norm_type);
}

// As users get it.
at::Tensor in_dtype_of(const std::vector<Group>& groups, const at::Tensor& norm) {
  return norm.to(has_double(groups) ? at::kDouble : at::kFloat);
}

// `total_norm`: in exact_dtype.
void scale(const std::vector<Group>& groups, double max_norm, const at::Tensor& total_norm) {
  if (groups.empty()) return;
  // Without looking at its value, which would wait for the device.
  const at::Tensor factor = total_norm.add(1e-6).reciprocal_().mul_(max_norm).clamp_max_(1.0);
  for (const Group& group : groups) {
    const at::Tensor own = factor.to(group.device);
    if (is_half(group.dtype)) {
      // As a 0-dim tensor or a number it would be rounded to the gradients' type first.
      const at::Tensor wide = own.to(at::kFloat);
      for (const at::Tensor& grad : group.grads) grad.mul_(grad.dim() > 0 ? wide.view({1}) : wide);
      continue;
    }
    if (!group.device.is_cpu()) {
      at::_foreach_mul_(group.grads, own.to(is_double(group.dtype) ? at::kDouble : at::kFloat));
      continue;
    }
    // Below the normal numbers of the type a factor has few digits.
    constexpr double kSmallest = 1e-30;
    const auto number = factor.item<double>();
    const bool in_two = !is_double(group.dtype) && number > 0 && number < kSmallest;
    at::_foreach_mul_(group.grads, in_two ? kSmallest : number);
    if (in_two) at::_foreach_mul_(group.grads, number / kSmallest);
  }
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
  const at::Tensor exact = exact_total_norm(groups, options.norm_type);
  at::Tensor norm = in_dtype_of(groups, exact);
  if (options.error_if_nonfinite) check_finite(norm, parameters, options.norm_type);
  scale(groups, max_norm, exact);
  return norm;
}

at::Tensor get_total_norm(at::TensorList parameters, ClipGradNormOptions options) {
  at::NoGradGuard no_grad;
  const std::vector<Group> groups = gradients_of(parameters);
  at::Tensor norm = in_dtype_of(groups, exact_total_norm(groups, options.norm_type));
  if (options.error_if_nonfinite) check_finite(norm, parameters, options.norm_type);
  return norm;
}

void clip_grads_with_norm_(at::TensorList parameters, double max_norm,
                           const at::Tensor& total_norm) {
  at::NoGradGuard no_grad;
  check_max_norm(max_norm);
  TORCH_CHECK_VALUE(total_norm.defined() && total_norm.numel() == 1,
                    "total_norm must be one number");
  scale(gradients_of(parameters), max_norm,
        total_norm.reshape({}).to(exact_dtype(total_norm.device())));
}

namespace {

bool has_double(const std::vector<GradientShards>& shards) {
  return std::ranges::any_of(shards, [](const GradientShards& each) {
    return std::ranges::any_of(each.parameters, [](const at::Tensor& parameter) {
      return is_double(parameter.scalar_type());
    });
  });
}

// The number of gradients that have an element other than zero on some rank of the group.
at::Tensor count_of_shards(const GradientShards& shards, c10::Device device) {
  std::vector<at::Tensor> counts;
  for (const at::Tensor& parameter : shards.parameters) {
    const std::vector<Group> groups = gradients_of(parameter);
    counts.push_back((groups.empty() ? at::scalar_tensor(0.0) : norm_of(groups, /*norm_type=*/0))
                         .to(at::TensorOptions(device).dtype(at::kFloat)));
  }
  if (counts.empty()) return at::zeros({}, at::TensorOptions(device));
  const at::Tensor most = reduce_tensor(shards.group, at::stack(counts), Reduction::kMax);
  return most.ne(0).sum();
}

std::vector<at::Tensor> counted(const GradientShards& shards) {
  if (shards.counts.empty()) return shards.parameters;
  std::vector<at::Tensor> counted;
  for (size_t i = 0; i < shards.parameters.size(); ++i) {
    if (shards.counts[i]) counted.push_back(shards.parameters[i]);
  }
  return counted;
}

at::Tensor norm_of_shards(const GradientShards& shards, c10::Device device, double norm_type,
                          bool are_in_range) {
  if (norm_type == 0 && shards.group) return count_of_shards(shards, device);
  const at::TensorOptions options = at::TensorOptions(device).dtype(exact_dtype(device));
  const std::vector<Group> groups = gradients_of(counted(shards));
  // A rank without elements has the norm that changes no other.
  const at::Tensor own = groups.empty() ? at::full({1}, norm_type < 0 ? kInfinity : 0, options)
                                        : norm_of(groups, norm_type).to(options).reshape({1});
  if (!shards.group) return own.reshape({});
  return combined(gather_tensor(shards.group, own), norm_type, are_in_range);
}

at::Tensor exact_sharded_norm(const std::vector<GradientShards>& shards, c10::Device device,
                              double norm_type) {
  check_norm_type(norm_type);
  const bool are_in_range = fit_powers_in_double(norm_type) && !has_double(shards);
  const at::TensorOptions options = at::TensorOptions(device).dtype(exact_dtype(device));
  std::vector<at::Tensor> norms;
  for (const GradientShards& each : shards) {
    norms.push_back(norm_of_shards(each, device, norm_type, are_in_range).to(options));
  }
  if (norms.empty()) return at::zeros({}, options);
  return norm_type == 0 ? at::stack(norms).sum()
                        : combined(at::stack(norms), norm_type, are_in_range);
}

at::Tensor checked_sharded_norm(const std::vector<GradientShards>& shards, const at::Tensor& exact,
                                const ClipGradNormOptions& options) {
  at::Tensor norm = exact.to(has_double(shards) ? at::kDouble : at::kFloat);
  TORCH_CHECK(!options.error_if_nonfinite || std::isfinite(norm.item<double>()),
              "the norm of order ", options.norm_type, " of the gradients is ",
              norm.item<double>());
  return norm;
}

}  // namespace

at::Tensor get_sharded_total_norm(const std::vector<GradientShards>& shards, c10::Device device,
                                  ClipGradNormOptions options) {
  at::NoGradGuard no_grad;
  return checked_sharded_norm(shards, exact_sharded_norm(shards, device, options.norm_type),
                              options);
}

at::Tensor clip_sharded_grad_norm_(const std::vector<GradientShards>& shards, double max_norm,
                                   c10::Device device, ClipGradNormOptions options) {
  at::NoGradGuard no_grad;
  check_max_norm(max_norm);
  const at::Tensor exact = exact_sharded_norm(shards, device, options.norm_type);
  at::Tensor norm = checked_sharded_norm(shards, exact, options);
  for (const GradientShards& each : shards) scale(gradients_of(each.parameters), max_norm, exact);
  return norm;
}

at::Tensor internal::norm_of_tensors(at::TensorList tensors, double norm_type) {
  at::NoGradGuard no_grad;
  std::vector<Group> groups;
  for (const at::Tensor& tensor : tensors) add_to(groups, tensor);
  return in_dtype_of(groups, exact_total_norm(groups, norm_type));
}

void clip_grad_value_(at::TensorList parameters, double clip_value) {
  at::NoGradGuard no_grad;
  TORCH_CHECK_VALUE(clip_value >= 0, "clip_value must not be negative, it is ", clip_value);
  for (const Group& group : gradients_of(parameters)) {
    const double limit = clip_value > largest_of(group.dtype) ? kInfinity : clip_value;
    at::_foreach_clamp_min_(group.grads, -limit);
    at::_foreach_clamp_max_(group.grads, limit);
  }
}

}  // namespace accelerate
