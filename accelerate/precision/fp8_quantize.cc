#include "accelerate/precision/fp8_quantize.h"

#include <cmath>
#include <limits>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/exp2.h>
#include <ATen/ops/frexp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace accelerate {
namespace {

constexpr double kE4M3Max = 448;
constexpr double kE5M2Max = 57344;
constexpr int64_t kExponentBias = 127;
constexpr int64_t kExponentNan = 255;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
// 448 = 7/8 x 2^9, 57344 = 7/8 x 2^16.
constexpr double kLastFraction = 0.875;
constexpr int64_t kE4M3Power = 9;
constexpr int64_t kE5M2Power = 16;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Scalars that share the tensor's memory.
std::vector<at::Tensor> scalars_of(const at::Tensor& tensor) { return tensor.view({-1}).unbind(); }

size_t place(int64_t layer, Fp8Role role) {
  return static_cast<size_t>(layer) * 3 + static_cast<size_t>(role);
}

}  // namespace

double fp8_max(at::ScalarType format) {
  TORCH_CHECK_VALUE(format == kE4M3 || format == kE5M2, "fp8: ", format,
                    " is neither Float8_e4m3fn nor Float8_e5m2");
  return format == kE4M3 ? kE4M3Max : kE5M2Max;
}

at::Tensor fp8_amax(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return at::zeros({}, tensor.options().dtype(at::kFloat));
  return at::amax(tensor.detach().abs()).to(at::kFloat);
}

at::Tensor amax_of_ranks(const at::Tensor& amax, c10d::ProcessGroup* group) {
  std::vector<at::Tensor> tensors{amax.nan_to_num(kInfinity, kInfinity)};
  if (group != nullptr && group->getSize() > 1 && amax.numel() > 0) {
    c10d::AllreduceOptions maximum;
    maximum.reduceOp = c10d::ReduceOp::MAX;
    group->allreduce(tensors, maximum)->wait();
  }
  return tensors[0];
}

at::Tensor fp8_scale(const at::Tensor& amax, at::ScalarType format) {
  return at::full({}, fp8_max(format), amax.options()) / amax.clamp_min(kLeastFp8Amax);
}

at::Tensor fp8_cast(const at::Tensor& tensor, const at::Tensor& scale, at::ScalarType format) {
  const double limit = fp8_max(format);
  return (tensor.to(at::kFloat) * scale).clamp_(-limit, limit).to(format);
}

at::Tensor Fp8Tensor::dequantize() const { return data.to(at::kFloat) * inverse_scale; }

Fp8Tensor fp8_quantize(const at::Tensor& tensor, at::ScalarType format) {
  const at::Tensor amax = fp8_amax(tensor);
  return fp8_quantize(tensor, fp8_scale(amax, format), amax, format);
}

Fp8Tensor fp8_quantize(const at::Tensor& tensor, const at::Tensor& scale, const at::Tensor& amax,
                       at::ScalarType format) {
  // amax - amax is 0, or NaN where amax is not finite.
  return {fp8_cast(tensor, scale, format), scale.reciprocal().add_(amax - amax)};
}

at::Tensor MxTensor::dequantize() const {
  const at::Tensor exponents_of_blocks = exponents.to(at::kFloat) - kExponentBias;
  const at::Tensor factors =
      at::where(exponents == kExponentNan, at::Scalar(kNan), at::exp2(exponents_of_blocks));
  return data.to(at::kFloat) * factors.repeat_interleave(kMxBlock, 1).narrow(1, 0, data.size(1));
}

MxTensor mx_quantize(const at::Tensor& tensor, at::ScalarType format) {
  TORCH_CHECK_VALUE(tensor.dim() == 2, "mx_quantize: a matrix is needed, not ", tensor.dim(),
                    " dimensions");
  const int64_t rows = tensor.size(0), cols = tensor.size(1);
  const int64_t blocks = (cols + kMxBlock - 1) / kMxBlock;
  at::Tensor values = tensor.detach().to(at::kFloat);
  if (blocks * kMxBlock != cols)
    values = at::constant_pad_nd(values, {0, blocks * kMxBlock - cols});
  values = values.reshape({rows, blocks, kMxBlock});
  const at::Tensor amax = blocks == 0 ? values.sum(2) : values.abs().amax(2);
  // Both formats end at 7/8 of a power of two.
  const auto [fraction, power] = at::frexp(amax);
  const int64_t last_power = format == kE4M3 ? kE4M3Power : kE5M2Power;
  at::Tensor exponent = power + at::where(fraction > kLastFraction, 1, 0) - last_power;
  exponent = at::where(amax == 0, -kExponentBias, exponent).clamp_(-kExponentBias, kExponentBias);
  const at::Tensor scale = at::exp2(-exponent.to(at::kFloat)).unsqueeze(2);
  const double limit = fp8_max(format);
  const at::Tensor data = (values * scale).clamp_(-limit, limit).to(format);
  return {data.reshape({rows, blocks * kMxBlock}).narrow(1, 0, cols),
          at::where(amax.isfinite(), exponent + kExponentBias, kExponentNan).to(at::kByte)};
}

DelayedScales::DelayedScales(int64_t num_layers, const DelayedScalingOptions& options)
    : options_(options) {
  TORCH_CHECK_VALUE(options.margin >= 0, "delayed scaling: margin is ", options.margin);
  TORCH_CHECK_VALUE(options.interval >= 1, "delayed scaling: interval is ", options.interval);
  TORCH_CHECK_VALUE(options.amax_history_len >= 1, "delayed scaling: amax_history_len is ",
                    options.amax_history_len);
  const double forward = fp8_max(kE4M3), gradient = fp8_max(options.gradient_format);
  formats_max_ = at::tensor({forward, forward, gradient}, at::kFloat);
  // Without use_max only the newest is read.
  const int64_t length = options.use_max ? options.amax_history_len : 1;
  history_ = at::zeros({length, num_layers, kRoles}, at::kFloat);
  set_scales(at::ones({num_layers, kRoles}, at::kFloat));
  set_amax(at::zeros({num_layers, kRoles}, at::kFloat));
}

void DelayedScales::set_scales(at::Tensor scales) {
  scales_ = std::move(scales);
  scale_views_ = scalars_of(scales_);
}

void DelayedScales::set_amax(at::Tensor amax) {
  amax_ = std::move(amax);
  amax_views_ = scalars_of(amax_);
}

void DelayedScales::to(c10::Device device) {
  if (scales_.device() == device) return;
  formats_max_ = formats_max_.to(device);
  history_ = history_.to(device);
  set_scales(scales_.to(device));
  set_amax(amax_.to(device));
}

const at::Tensor& DelayedScales::scale(int64_t layer, Fp8Role role) const {
  return scale_views_.at(place(layer, role));
}

void DelayedScales::record(int64_t layer, Fp8Role role, const at::Tensor& amax) {
  at::Tensor& slot = amax_views_.at(place(layer, role));
  at::maximum_out(slot, slot, amax);
}

void DelayedScales::begin_step(c10d::ProcessGroup* group) {
  const int64_t done = steps_++;
  const c10::InferenceMode normal_tensors(false);
  const at::NoGradGuard no_grad;
  at::Tensor amax = amax_of_ranks(amax_, group);
  amax = at::where(amax.isfinite(), amax, at::zeros_like(amax));
  history_.select(0, done % history_.size(0)).copy_(amax);
  if (done % options_.interval == 0) {
    if (options_.use_max) amax = history_.amax(0);
    // The lower bound is fp8_scale's.
    const at::Tensor scales =
        formats_max_ / amax.clamp_min(kLeastFp8Amax) * std::exp2(-options_.margin);
    set_scales(at::where(amax > 0, scales, scales_));
  }
  set_amax(at::zeros_like(amax_));
}

std::map<std::string, at::Tensor> DelayedScales::state_dict() const {
  return {{"scales", scales_.to(at::kCPU, at::kFloat, false, true)},
          {"amax", amax_.to(at::kCPU, at::kFloat, false, true)},
          {"history", history_.to(at::kCPU, at::kFloat, false, true)},
          {"steps", at::full({1}, steps_, at::kLong)}};
}

void DelayedScales::load_state_dict(const std::map<std::string, at::Tensor>& state) {
  const auto find = [&](const char* name, at::IntArrayRef sizes) {
    const auto found = state.find(name);
    TORCH_CHECK_VALUE(found != state.end(), "fp8 state: \"", name, "\" is missing");
    TORCH_CHECK_VALUE(found->second.sizes() == sizes, "fp8 state: \"", name, "\" has shape ",
                      found->second.sizes(), ", not ", sizes,
                      ": it was saved by another model or with other options");
    return found->second;
  };
  const at::Tensor scales = find("scales", scales_.sizes()), amax = find("amax", amax_.sizes()),
                   history = find("history", history_.sizes()), steps = find("steps", {1});
  const auto mine = [this](const at::Tensor& tensor) {
    return tensor.to(scales_.options(), false, /*copy=*/true);
  };
  set_scales(mine(scales));
  set_amax(mine(amax));
  history_ = mine(history);
  steps_ = steps.item<int64_t>();
}

}  // namespace accelerate
