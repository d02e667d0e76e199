#include "accelerate/data/batch_sampler.h"

#include <utility>

#include <c10/util/Exception.h>

namespace accelerate {

BatchSampler::BatchSampler(std::shared_ptr<const Sampler> sampler, int64_t batch_size,
                           bool drop_last)
    : sampler_(std::move(sampler)), batch_size_(batch_size), drop_last_(drop_last) {
  TORCH_CHECK_VALUE(batch_size_ > 0, "batch_size must be positive, got ", batch_size_);
}

int64_t BatchSampler::size() const {
  const int64_t samples = sampler_->size();
  const bool short_batch = !drop_last_ && samples % batch_size_ != 0;
  return samples / batch_size_ + (short_batch ? 1 : 0);
}

IndexBatches BatchSampler::batches(int64_t epoch) const {
  at::Tensor order = sampler_->indices(epoch);
  const int64_t samples = order.numel();
  const int64_t full = samples / batch_size_;
  const int64_t rest = samples % batch_size_;
  at::Tensor last;
  if (rest > 0 && !drop_last_) last = order.narrow(0, full * batch_size_, rest);
  return IndexBatches(std::move(order),
                      {.first = 0, .stride = batch_size_, .length = batch_size_, .count = full},
                      std::move(last));
}

}  // namespace accelerate
