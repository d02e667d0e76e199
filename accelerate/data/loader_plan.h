/// All of a DataLoader that does not depend on the dataset's type: which indices make up the
/// batches of an epoch, and what the loader reports about them.
///
/// Threads: immutable.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "accelerate/data/batch_sampler.h"
#include "accelerate/data/batch_sampler_shard.h"
#include "accelerate/data/data_loader_options.h"
#include "accelerate/data/index_batches.h"
#include "accelerate/data/sampler.h"

namespace accelerate::internal {

class LoaderPlan {
 public:
  /// Errors: c10::ValueError unless the batch size is positive.
  LoaderPlan(int64_t dataset_size, const DataLoaderOptions& options);

  /// The plan of one rank. Errors: c10::ValueError, see BatchSamplerShard; c10::Error if this plan
  /// is a rank's already.
  LoaderPlan shard(const ShardOptions& options) const;

  const DataLoaderOptions& options() const { return options_; }
  /// What made it a rank's plan, if it is one.
  const std::optional<ShardOptions>& shard_options() const { return shard_options_; }

  int64_t dataset_size() const { return batch_sampler_.sampler().size(); }
  /// Batches in a pass.
  int64_t size() const;
  /// Samples of one round of batches over all ranks.
  int64_t total_batch_size() const;
  /// Real samples in the last round; 0: all. Unknown (-1) if a short round is dropped.
  int64_t remainder() const;

  IndexBatches batches(int64_t epoch) const;

 private:
  DataLoaderOptions options_;  // the seed is set if shuffling, and only then
  BatchSampler batch_sampler_;
  std::optional<ShardOptions> shard_options_;
  std::optional<BatchSamplerShard> shard_;  // only where there are several ranks
};

}  // namespace accelerate::internal
