#include "accelerate/parallel/sharded/fp8_shards.h"

#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/stack.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>

#include "accelerate/operators/operator_mode.h"
#include "accelerate/precision/fp8_quantize.h"

namespace accelerate {

Fp8Shards::Fp8Shards(const torch::nn::Module& module, std::shared_ptr<Fp8Model> model)
    : model_(std::move(model)) {
  for (const at::Tensor& weight : model_->weights()) {
    weights_.emplace(weight.unsafeGetTensorImpl(), Weight());
  }
  // One that is tied to an embedding is needed in high precision as well.
  for (const auto& part : module.modules()) {
    if (dynamic_cast<const torch::nn::LinearImpl*>(part.get()) != nullptr) continue;
    for (const at::Tensor& parameter : part->parameters(/*recurse=*/false)) {
      if (parameter.defined()) weights_.erase(parameter.unsafeGetTensorImpl());
    }
  }
}

bool Fp8Shards::packs(const at::Tensor& parameter) const {
  return weights_.contains(parameter.unsafeGetTensorImpl());
}

void Fp8Shards::set_values(const at::Tensor& parameter, at::Tensor values) {
  weights_.at(parameter.unsafeGetTensorImpl()).values = std::move(values);
}

at::Tensor Fp8Shards::pack(const at::Tensor& parameter, const at::Tensor& rows) {
  return fp8_cast(rows, weights_.at(parameter.unsafeGetTensorImpl()).scale, kE4M3);
}

void Fp8Shards::refresh(const std::vector<ParameterShard>& shards, const ProcessGroupPtr& group) {
  int64_t versions = 0;
  for (const auto& each : shards) {
    if (packs(each.parameter)) versions += each.shard._version();
  }
  if (weights_.empty() || versions == versions_) return;
  const at::NoGradGuard no_grad;
  const OperatorModeScope plain{OperatorHandlers()};
  std::vector<at::Tensor> largest;
  std::vector<const at::Tensor*> parameters;
  for (const auto& each : shards) {
    if (!packs(each.parameter)) continue;
    largest.push_back(fp8_amax(each.shard));
    parameters.push_back(&each.parameter);
  }
  if (parameters.empty()) return;
  const at::Tensor amax =
      amax_of_ranks(at::stack(largest).to(parameters.front()->device()), group.get());
  const at::Tensor scales = fp8_scale(amax, kE4M3);
  // amax - amax is 0, or NaN where amax is not finite.
  const at::Tensor inverse = scales.reciprocal().add_(amax - amax);
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto place = static_cast<int64_t>(i);
    Weight& weight = weights_.at(parameters[i]->unsafeGetTensorImpl());
    weight.scale = scales.select(0, place);
    model_->set_gathered_weight(*parameters[i], {weight.values, inverse.select(0, place)});
  }
  versions_ = versions;
}

}  // namespace accelerate
