/// Gives one rank its share of the batches of a BatchSampler.
///
/// With b the batch size, W the world size and N the samples, an epoch falls into rounds of
/// T samples, of which every rank gets a slice of p:
///
///     without splitting   T = b * W   p = b        each rank takes whole batches
///     with splitting      T = b       p = b / W    each rank takes a slice of every batch
///
///     round g:  [ rank 0: p | rank 1: p | ... | rank W-1: p ]      at order[g * T]
///
/// Only the last round can be short. It is left out if the sampler drops its last batch; filled up
/// with the epoch's first samples if `even_batches`; else ranks get what there is of their slice,
/// and those whose slice is empty have one batch fewer.
/// Filling goes round and round through the first min(N, T) samples. Concatenating the ranks'
/// last batches hence gives the real samples first and the filling after them.
///
/// Threads: immutable.
/// Mirrors: accelerate data_loader.py, BatchSamplerShard.
/// Differs: size() tells the number of batches really given, also when splitting unevenly.
#pragma once

#include <cstdint>

#include "accelerate/data/batch_sampler.h"
#include "accelerate/data/index_batches.h"

namespace accelerate {

/// Whose share, and how it is cut.
struct BatchShardOptions {
  int rank = 0;
  int world_size = 1;
  bool split_batches = false;
  bool even_batches = true;
};

class BatchSamplerShard {
 public:
  /// Errors: c10::ValueError if the rank is not in the world, or if splitting and the batch size is
  ///         not divisible by the world size.
  BatchSamplerShard(BatchSampler batch_sampler, const BatchShardOptions& options);

  const BatchSampler& batch_sampler() const { return batch_sampler_; }

  /// Samples of one round over all ranks.
  int64_t total_batch_size() const { return round_; }

  /// How many batches this rank gets in an epoch.
  int64_t size() const;

  IndexBatches batches(int64_t epoch) const;

 private:
  // How many samples the sampler has for this rank in a short last round; 0 where there is none.
  int64_t rows_in_short_round(int64_t samples) const;
  // Whether this rank gives a batch for the short last round.
  bool joins_short_round(int64_t samples) const;
  at::Tensor last_batch(const at::Tensor& order) const;

  BatchSampler batch_sampler_;
  BatchShardOptions options_;
  int64_t round_;  // T
  int64_t slice_;  // p
};

}  // namespace accelerate
