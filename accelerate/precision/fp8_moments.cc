#include "accelerate/precision/fp8_moments.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/exp2.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>

#include "accelerate/precision/fp8_quantize.h"

namespace accelerate {
namespace {

constexpr double kHalfMax = 65504;

// The largest power of two with which nothing saturates.
at::Tensor power_of_two(const at::Tensor& tensor, double limit) {
  const at::Tensor amax = fp8_amax(tensor).clamp_min_(kLeastFp8Amax);
  return at::exp2((amax.reciprocal() * limit).log2_().floor_());
}

// Calls with a parameter's state as what it is.
template <typename Visit>
void with_adam_state(torch::optim::OptimizerParamState& state, const Visit& visit) {
  if (auto* adam = dynamic_cast<torch::optim::AdamParamState*>(&state)) return visit(*adam);
  if (auto* adamw = dynamic_cast<torch::optim::AdamWParamState*>(&state)) return visit(*adamw);
}

}  // namespace

Fp8Moments::Fp8Moments(torch::optim::Optimizer& optimizer) : optimizer_(optimizer) {
  TORCH_CHECK_VALUE(dynamic_cast<torch::optim::Adam*>(&optimizer) != nullptr ||
                        dynamic_cast<torch::optim::AdamW*>(&optimizer) != nullptr,
                    "MSAMPRecipeKwargs: opt_level O2 keeps the moments of Adam or AdamW in fp8; "
                    "this optimizer is neither. Use O1");
}

void Fp8Moments::pack() {
  at::NoGradGuard no_grad;
  for (auto& [key, state] : optimizer_.state()) {
    with_adam_state(*state, [&, key = key](auto& moments) {
      if (!moments.exp_avg().defined()) return;
      const at::Tensor first = moments.exp_avg(), second = moments.exp_avg_sq();
      const at::Tensor first_scale = power_of_two(first, fp8_max(kE4M3)),
                       second_scale = power_of_two(second, kHalfMax);
      packed_[key] = {fp8_cast(first, first_scale, kE4M3), first_scale,
                      (second.to(at::kFloat) * second_scale).to(at::kHalf), second_scale};
      moments.exp_avg({});
      moments.exp_avg_sq({});
    });
  }
}

void Fp8Moments::unpack() {
  at::NoGradGuard no_grad;
  for (auto& [key, state] : optimizer_.state()) {
    const auto packed = packed_.find(key);
    if (packed == packed_.end()) continue;
    const Packed& kept = packed->second;
    with_adam_state(*state, [&](auto& moments) {
      moments.exp_avg(kept.first.to(at::kFloat) / kept.first_scale);
      moments.exp_avg_sq(kept.second.to(at::kFloat) / kept.second_scale);
    });
  }
  packed_.clear();
}

int64_t Fp8Moments::packed_bytes() const {
  int64_t bytes = 0;
  for (const auto& [key, packed] : packed_) {
    for (const at::Tensor& tensor :
         {packed.first, packed.first_scale, packed.second, packed.second_scale}) {
      bytes += static_cast<int64_t>(tensor.nbytes());
    }
  }
  return bytes;
}

}  // namespace accelerate
