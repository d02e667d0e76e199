/// A rank's part of a parameter that is divided among ranks, and the ranks that divide it.
///
/// Threads: values.
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include "accelerate/comm/process_group.h"

namespace accelerate {

/// Who divides the parameters. One rank has the only shard of each.
struct ShardGroups {
  /// The ranks that have a shard each; null for one rank.
  ProcessGroupPtr shards = nullptr;
  /// The ranks with the same shard of other replicas; null where there is one replica.
  ProcessGroupPtr replicas = nullptr;
  /// The ranks that begin with the values of its rank 0; null where ranks have equal values.
  ProcessGroupPtr all = nullptr;
  /// Those of `shards` among which parameters are divided from a forward pass to its backward pass,
  /// as many on each; null: all of them.
  ProcessGroupPtr after_forward = nullptr;
};

struct ParameterShard {
  std::string name;
  at::Tensor parameter;
  at::Tensor shard;  // [rows of this rank, ...]
};

}  // namespace accelerate
