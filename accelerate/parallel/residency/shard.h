/// A rank's part of a parameter that is divided among ranks, the ranks that divide it, and how they
/// gather it in fewer bytes.
///
/// Threads: values, where nothing else is said.
#pragma once

#include <string>
#include <vector>

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

/// Parameters gathered as fp8 bytes and used packed: weights in fp8.
///
/// While such a parameter is in memory, `set_values` has been given a tensor of its sizes with the
/// packed values, which is managed like a parameter; the parameter itself has no values in passes.
/// Threads: as ParameterSource.
class PackedParameters {
 public:
  virtual ~PackedParameters() = default;

  virtual bool packs(const at::Tensor& parameter) const = 0;
  /// A dtype of one byte.
  virtual at::ScalarType dtype() const = 0;
  /// `values`: [sizes of the parameter] in dtype(); absent, but while operators use it.
  virtual void set_values(const at::Tensor& parameter, at::Tensor values) = 0;
  /// Rows of the parameter, as they are kept, in dtype(). Shapes: rows [n], result [n].
  virtual at::Tensor pack(const at::Tensor& parameter, const at::Tensor& rows) = 0;
  /// Before values are packed, in passes or for unshard(). Collective over the ranks with shards
  /// where these have changed.
  virtual void refresh(const std::vector<ParameterShard>& shards, const ProcessGroupPtr& group) = 0;
};

}  // namespace accelerate
