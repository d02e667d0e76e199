/// Cuts the order in which a sampler visits the samples into batches.
///
/// Threads: immutable.
/// Mirrors: torch.utils.data.BatchSampler
#pragma once

#include <cstdint>
#include <memory>

#include "accelerate/data/index_batches.h"
#include "accelerate/data/sampler.h"

namespace accelerate {

class BatchSampler {
 public:
  /// With `drop_last` a last batch that is short is left out.
  /// Errors: c10::ValueError unless batch_size is positive.
  BatchSampler(std::shared_ptr<const Sampler> sampler, int64_t batch_size, bool drop_last = false);

  const Sampler& sampler() const { return *sampler_; }
  int64_t batch_size() const { return batch_size_; }
  bool drop_last() const { return drop_last_; }

  /// How many batches an epoch has.
  int64_t size() const;

  IndexBatches batches(int64_t epoch) const;

 private:
  std::shared_ptr<const Sampler> sampler_;
  int64_t batch_size_;
  bool drop_last_;
};

}  // namespace accelerate
