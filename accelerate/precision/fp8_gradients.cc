#include "accelerate/precision/fp8_gradients.h"

#include <cstddef>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/stack.h>

#include "accelerate/precision/fp8_quantize.h"

namespace accelerate {

void quantize_gradients(const std::vector<at::Tensor>& gradients, c10d::ProcessGroup* group) {
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> defined, amaxes;
  for (const at::Tensor& gradient : gradients) {
    if (!gradient.defined()) continue;
    defined.push_back(gradient);
    amaxes.push_back(fp8_amax(gradient));
  }
  if (defined.empty()) return;
  const at::Tensor amax = amax_of_ranks(at::stack(amaxes), group);
  const at::Tensor scale = fp8_scale(amax, kE4M3);
  const std::vector<at::Tensor> amax_of = amax.unbind(), scale_of = scale.unbind();
  for (size_t i = 0; i < defined.size(); ++i) {
    defined[i].copy_(fp8_quantize(defined[i], scale_of[i], amax_of[i], kE4M3).dequantize());
  }
}

Fp8GradientRounding::Fp8GradientRounding(std::vector<at::Tensor> weights)
    : weights_(std::move(weights)) {
  for (const at::Tensor& weight : weights_) is_weight_.insert(weight.unsafeGetTensorImpl());
}

void Fp8GradientRounding::round(const std::vector<at::Tensor>& parameters,
                                const std::vector<at::Tensor>& gradients,
                                c10d::ProcessGroup* group) const {
  std::vector<at::Tensor> of_weights;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (is_weight_.contains(parameters[i].unsafeGetTensorImpl())) {
      of_weights.push_back(gradients[i]);
    }
  }
  quantize_gradients(of_weights, group);
}

}  // namespace accelerate
