#include "accelerate/precision/fp8_moments.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/exp2.h>
#include <ATen/ops/where.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>

#include "accelerate/precision/fp8_quantize.h"

namespace accelerate {
namespace {

constexpr int64_t kBlock = 128;
constexpr double kHalfMax = 65504;
constexpr double kLeastHalf = 1.0 / (1 << 14);  // the smallest normal fp16 number
// How many bits fewer than float32's the formats' fractions have.
constexpr int64_t kE4M3Lacks = 20;
constexpr int64_t kHalfLacks = 13;
// 2^32 times irrational numbers: multiples of them fill [0, 2^32) evenly.
constexpr int64_t kByStep = 2654435769;
constexpr int64_t kByPlace = 3242174889;

// Rounds away the last `bits` of each float32's fraction, up as often as their value says.
at::Tensor drop_bits(const at::Tensor& values, int64_t bits, int64_t step) {
  const int64_t last = (int64_t{1} << bits) - 1;
  at::Tensor offset = at::arange(values.numel(), values.options().dtype(at::kLong));
  offset.mul_(kByPlace).add_(step * kByStep).__irshift__(32 - bits).bitwise_and_(last);
  return values.view(at::kInt).add(offset.to(at::kInt)).bitwise_and_(~last).view(at::kFloat);
}

// Calls `visit` with the state as its own type; not for other optimizers' states.
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

Fp8Moments::Blocks Fp8Moments::round(const at::Tensor& tensor, at::ScalarType type, int64_t step) {
  const double limit = type == kE4M3 ? fp8_max(kE4M3) : kHalfMax;
  const int64_t size = tensor.numel(), blocks = (size + kBlock - 1) / kBlock;
  const at::Tensor values =
      at::constant_pad_nd(tensor.to(at::kFloat).flatten(), {0, blocks * kBlock - size})
          .view({blocks, kBlock});
  // The largest power of two with which no value saturates.
  const at::Tensor amax = values.abs().amax(1, /*keepdim=*/true).clamp_min_(kLeastFp8Amax);
  const at::Tensor scales = at::exp2(amax.reciprocal().mul_(limit).log2_().floor_());
  at::Tensor scaled = (values * scales).clamp_(-limit, limit).flatten().narrow(0, 0, size);
  if (type == at::kHalf) scaled = at::where(scaled > 0, scaled.clamp_min(kLeastHalf), scaled);
  return {drop_bits(scaled, type == kE4M3 ? kE4M3Lacks : kHalfLacks, step).to(type), scales};
}

at::Tensor Fp8Moments::restore(const Blocks& blocks, at::IntArrayRef sizes) {
  const int64_t size = blocks.data.numel(), padded = blocks.scales.numel() * kBlock;
  at::Tensor values = at::constant_pad_nd(blocks.data.to(at::kFloat), {0, padded - size});
  values = values.view({-1, kBlock}) / blocks.scales;
  return values.flatten().narrow(0, 0, size).reshape(sizes).clone();
}

void Fp8Moments::forget_replaced() {
  std::erase_if(packed_, [this](const auto& entry) {
    const auto found = optimizer_.state().find(entry.first);
    return found == optimizer_.state().end() || found->second.get() != entry.second.state;
  });
}

void Fp8Moments::pack() {
  at::NoGradGuard no_grad;
  forget_replaced();
  for (auto& [key, state] : optimizer_.state()) {
    with_adam_state(*state, [&, key = key, owner = state.get()](auto& moments) {
      const at::Tensor first = moments.exp_avg(), second = moments.exp_avg_sq();
      if (!first.defined()) return;
      packed_[key] = {owner, first.sizes().vec(), round(first, kE4M3, moments.step()),
                      round(second.sqrt(), at::kHalf, moments.step())};
      moments.exp_avg({});
      moments.exp_avg_sq({});
    });
  }
}

void Fp8Moments::unpack() {
  at::NoGradGuard no_grad;
  forget_replaced();
  for (auto& [key, state] : optimizer_.state()) {
    with_adam_state(*state, [&, key = key](auto& moments) {
      if (moments.exp_avg().defined()) return;
      const auto found = packed_.find(key);
      TORCH_CHECK_VALUE(found != packed_.end(),
                        "MSAMPRecipeKwargs: the optimizer's state has no moments: it was saved "
                        "while they were packed. Save it after Fp8Moments::unpack()");
      const Packed& packed = found->second;
      moments.exp_avg(restore(packed.first, packed.sizes));
      moments.exp_avg_sq(restore(packed.second_root, packed.sizes).square_());
    });
  }
  packed_.clear();
}

int64_t Fp8Moments::packed_bytes() const {
  int64_t bytes = 0;
  for (const auto& [key, packed] : packed_) {
    for (const Blocks& blocks : {packed.first, packed.second_root}) {
      bytes += static_cast<int64_t>(blocks.data.nbytes() + blocks.scales.nbytes());
    }
  }
  return bytes;
}

}  // namespace accelerate
