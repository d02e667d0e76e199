#include "accelerate/operators/rms_norm.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include <ATen/OpMathType.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/addcmul.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "accelerate/operators/operator_mode.h"

namespace accelerate {
namespace {

// What is normalised: the last `dims` dims.
struct NormedRows {
  int64_t dims = 0;
  double epsilon = 0;

  std::vector<int64_t> dims_of(const at::Tensor& tensor) const {
    std::vector<int64_t> last(static_cast<size_t>(dims));
    std::iota(last.begin(), last.end(), tensor.dim() - dims);
    return last;
  }

  // 1 / sqrt(mean of squares + epsilon) of each row. `input` is in the type of sums.
  at::Tensor reciprocal_roots(const at::Tensor& input) const {
    return input.pow(2).mean(dims_of(input), /*keepdim=*/true).add_(epsilon).rsqrt();
  }
};

// The result, and the numbers of rows.
struct RmsNormed {
  at::Tensor output, roots;
};

RmsNormed computed_rms_norm(const NormedRows& rows, const at::Tensor& input,
                            const std::optional<at::Tensor>& weight) {
  const at::Tensor wide = input.to(at::toOpMathType(input.scalar_type()));
  RmsNormed result;
  result.roots = rows.reciprocal_roots(wide);
  result.output = wide.mul(result.roots).to(input.scalar_type());
  if (weight) result.output = result.output.mul(*weight);
  return result;
}

// Gives a result that is computed already its gradients.
// With n the normalised input, r the numbers of rows and g the gradient of n, that of the input is
//   r (g - n mean(g n)).
struct RmsNormFunction : torch::autograd::Function<RmsNormFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input,
                            const std::optional<at::Tensor>& weight, const RmsNormed& normed,
                            int64_t dims, double epsilon) {
    context->save_for_backward({input, weight ? *weight : at::Tensor(), normed.roots});
    context->saved_data["dims"] = dims;
    context->saved_data["epsilon"] = epsilon;
    return normed.output;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const NormedRows rows{.dims = context->saved_data.at("dims").toInt(),
                          .epsilon = context->saved_data.at("epsilon").toDouble()};
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const at::Tensor &input = saved[0], &weight = saved[1], &kept_roots = saved[2];
    const at::ScalarType sums = kept_roots.scalar_type();
    const at::Tensor wide = input.to(sums);
    // Gradients of this pass go through the numbers of rows as well, which have no history.
    const at::Tensor roots = at::GradMode::is_enabled() ? rows.reciprocal_roots(wide) : kept_roots;
    const at::Tensor normed = wide.mul(roots), gradient = gradients[0].to(sums);
    at::Tensor of_input, of_weight;
    if (weight.defined() && context->needs_input_grad(1)) {
      of_weight = gradient.mul(normed).sum_to_size(weight.sizes()).to(weight.scalar_type());
    }
    if (context->needs_input_grad(0)) {
      const at::Tensor of_normed = weight.defined() ? gradient.mul(weight.to(sums)) : gradient;
      const at::Tensor mean = of_normed.mul(normed).mean(rows.dims_of(normed), /*keepdim=*/true);
      of_input =
          at::addcmul(of_normed, normed, mean, /*value=*/-1).mul(roots).to(input.scalar_type());
    }
    return {of_input, of_weight, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

void check_rms_norm(const at::Tensor& input, at::IntArrayRef shape,
                    const std::optional<at::Tensor>& weight) {
  TORCH_CHECK_VALUE(input.is_floating_point(),
                    "rms_norm: the input has floating-point numbers, not ", input.scalar_type());
  const int64_t rows = input.dim() - static_cast<int64_t>(shape.size());
  const bool fits =
      !shape.empty() && rows >= 0 && input.sizes().slice(static_cast<size_t>(rows)) == shape;
  TORCH_CHECK_VALUE(fits, "rms_norm: an input of sizes ", input.sizes(),
                    " has other last sizes than the normalized_shape ", shape);
  TORCH_CHECK_VALUE(!weight || weight->sizes() == shape, "rms_norm: a weight of sizes ",
                    weight ? weight->sizes() : at::IntArrayRef(), " for the normalized_shape ",
                    shape);
}

// The operator, of which autograd sees the parts.
at::Tensor composed_rms_norm(const at::Tensor& input, at::IntArrayRef normalized_shape,
                             const std::optional<at::Tensor>& given_weight,
                             std::optional<double> eps) {
  std::optional<at::Tensor> weight;
  if (given_weight && given_weight->defined()) weight = given_weight;
  check_rms_norm(input, normalized_shape, weight);
  const bool is_double = at::toOpMathType(input.scalar_type()) == at::kDouble;
  const NormedRows rows{
      .dims = static_cast<int64_t>(normalized_shape.size()),
      .epsilon = eps.value_or(is_double ? std::numeric_limits<double>::epsilon()
                                        : double{std::numeric_limits<float>::epsilon()})};
  const bool has_gradient = input.requires_grad() || (weight && weight->requires_grad());
  if (!at::GradMode::is_enabled() || !has_gradient) {
    return computed_rms_norm(rows, input, weight).output;
  }
  RmsNormed normed;
  {
    // The parts make no graph.
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    normed = computed_rms_norm(rows, input, weight);
  }
  return RmsNormFunction::apply(input, weight, normed, rows.dims, rows.epsilon);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(accelerate, library) {
  library.def(
      "rms_norm(Tensor input, int[] normalized_shape, Tensor? weight=None, float? eps=None) -> "
      "Tensor",
      TORCH_FN(composed_rms_norm));
}

at::Tensor rms_norm(const at::Tensor& input, at::IntArrayRef normalized_shape,
                    const std::optional<at::Tensor>& weight, std::optional<double> eps) {
  static const auto op = find_operator("accelerate::rms_norm").typed<decltype(composed_rms_norm)>();
  return op.call(input, normalized_shape, weight, eps);
}

}  // namespace accelerate
