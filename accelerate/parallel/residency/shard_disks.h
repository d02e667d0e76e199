/// The disks on which shards are between steps, and the rows of them that are gathered. For
/// shards.cc.
///
/// A rank whose disk fails goes on, with NaN where it has no values, because the others wait for it
/// in collectives; the next check() tells all of them.
/// Threads: as ParameterSource.
#pragma once

#include <exception>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

#include "accelerate/comm/process_group.h"
#include "accelerate/parallel/residency/sharding_options.h"
#include "accelerate/swap/swapped_tensors.h"

namespace accelerate::internal {

class ShardDisks {
 public:
  /// `everyone`: the ranks that train the model. Collective.
  /// Errors: on all ranks, for a folder that one cannot use.
  ShardDisks(const ShardingOptions& options, ProcessGroupPtr everyone);

  /// Null: in memory.
  const std::shared_ptr<SwappedTensors>& shards() const { return shards_; }
  const std::shared_ptr<SwappedTensors>& rows() const { return rows_; }

  /// The values on that disk; those in memory once something has failed. Local.
  at::Tensor moved(SwappedTensors& disk, const std::string& name, const at::Tensor& values);
  /// For a rank that goes on without values. Local.
  void record_failure(std::exception_ptr failure);
  /// Throws on all ranks if one has noted a failure since the last call. What waits to be told of
  /// either disk is forgotten then, and so are all values that were gathered (see generation()).
  /// Collective.
  void check();
  /// Greater after each failure that check() has told of.
  int generation() const { return generation_; }

 private:
  const ProcessGroupPtr everyone_;
  std::shared_ptr<SwappedTensors> shards_, rows_;
  std::exception_ptr failure_;
  int generation_ = 0;
};

}  // namespace accelerate::internal
