/// The weights of layers in fp8 whose shards are gathered in 8 bits.
///
/// A weight has one scale, from its largest value on all ranks, so that the gathered weight has the
/// bits of one that was quantised whole. The scales of all weights are one small all-reduce, in the
/// first pass after shards have changed.
///
/// Only current scaling (torchao's recipe) has such weights: a delayed scale needs the values of
/// past steps, and blocks cross shards.
///
/// Threads: the rank's thread.
/// Mirrors: torchao.float8, enable_fsdp_float8_all_gather and
///          precompute_float8_dynamic_scale_for_fsdp.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>

#include "accelerate/comm/process_group.h"
#include "accelerate/parallel/residency/packed_parameters.h"
#include "accelerate/parallel/residency/shards.h"
#include "accelerate/precision/fp8_model.h"

namespace accelerate {

class Fp8Shards final : public PackedParameters {
 public:
  /// `model`: its weights are the parameters' tensors; those that a module other than a Linear has
  /// as well are left alone.
  Fp8Shards(const torch::nn::Module& module, std::shared_ptr<Fp8Model> model);

  bool packs(const at::Tensor& parameter) const override;
  at::ScalarType dtype() const override { return kE4M3; }
  void set_values(const at::Tensor& parameter, at::Tensor values) override;
  at::Tensor pack(const at::Tensor& parameter, const at::Tensor& rows) override;

  void refresh(const std::vector<ParameterShard>& shards, const ProcessGroupPtr& group) override;

 private:
  struct Weight {
    at::Tensor values;
    at::Tensor scale;
  };

  const std::shared_ptr<Fp8Model> model_;
  std::unordered_map<const at::TensorImpl*, Weight> weights_;
  // The sum over the shards that the scales are of; versions only grow.
  int64_t versions_ = -1;
};

}  // namespace accelerate
