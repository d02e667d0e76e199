/// This rank's rows of a model's values, before the model is divided.
///
/// Values that parameters have, or those of their recorded construction, are made whole, some
/// parameters at a time, and are rank 0's on all ranks. Where values wait in a checkpoint
/// (operators/deferred_values.h), each rank reads its rows alone; where only rank 0 has them, it
/// reads whole ones and sends them.
///
/// Threads: the rank's thread.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include "accelerate/comm/agree.h"
#include "accelerate/parallel/residency/shard.h"
#include "accelerate/parallel/residency/shard_memory.h"
#include "accelerate/parallel/residency/sharding_options.h"

namespace accelerate::internal {

class InitialParts {
 public:
  /// What it refers to outlives it.
  InitialParts(const ShardGroups& groups, c10::Device device, const ShardingOptions& options)
      : groups_(groups), device_(device), options_(options) {}

  struct Wanted {
    at::Tensor parameter;
    at::ScalarType dtype = at::kFloat;  // of its shard
    bool on_host = false;               // where that is
  };

  /// The rows of parameters that have values, padded, as memory of shards. Collective.
  std::vector<at::Tensor> of(const std::vector<Wanted>& wanted);

  /// The same of parameters on "meta", in the order of the model, in which random numbers were
  /// drawn. No more than a group's bytes, or one parameter, is whole at a time. Collective.
  /// Errors: those of reading, on all ranks, naming the ranks.
  std::vector<at::Tensor> of_empty(const std::vector<Wanted>& wanted);

 private:
  at::Tensor own_rows(const Wanted& wanted);
  at::TensorOptions place_of(const Wanted& wanted) const {
    return shard_place(options_, device_, wanted.on_host).dtype(wanted.dtype);
  }
  std::vector<at::Tensor> recorded(const std::vector<at::Tensor>& tensors);

  const ShardGroups& groups_;
  const c10::Device device_;
  const ShardingOptions& options_;
  RankOutcome reading_;
};

}  // namespace accelerate::internal
