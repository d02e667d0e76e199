#include "accelerate/data/batch_sampler.h"

#include <utility>

#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

namespace accelerate {

using nlohmann::json;

json BatchSampler::state_dict() const { return json::object(); }

void BatchSampler::load_state_dict(const json& state) {}

FixedSizeBatchSampler::FixedSizeBatchSampler(std::shared_ptr<Sampler> sampler, int64_t batch_size,
                                             bool drop_last)
    : sampler_(std::move(sampler)), batch_size_(batch_size), drop_last_(drop_last) {
  TORCH_CHECK_VALUE(sampler_ != nullptr, "the batch sampler has no sampler");
  TORCH_CHECK_VALUE(batch_size_ > 0, "batch_size must be positive, got ", batch_size_);
}

int64_t FixedSizeBatchSampler::size() const {
  const int64_t samples = sampler_->size();
  const bool short_batch = !drop_last_ && samples % batch_size_ != 0;
  return samples / batch_size_ + (short_batch ? 1 : 0);
}

IndexBatches FixedSizeBatchSampler::begin_pass() {
  return internal::cut_into_batches(sampler_->begin_pass(), 0, batch_size_, drop_last_);
}

json FixedSizeBatchSampler::state_dict() const { return sampler_->state_dict(); }

void FixedSizeBatchSampler::load_state_dict(const json& state) { sampler_->load_state_dict(state); }

ListBatchSampler::ListBatchSampler(const std::vector<std::vector<int64_t>>& batches,
                                   ListBatchSamplerOptions options)
    : batches_(IndexBatches::from_lists(batches)), options_(options) {
  TORCH_CHECK_VALUE(options_.batch_size.value_or(1) > 0, "batch_size must be positive, got ",
                    *options_.batch_size);
}

namespace internal {

IndexBatches cut_into_batches(IndexOrder order, int64_t begin, int64_t batch_size, bool drop_last) {
  const int64_t samples = order.size() - begin;
  const int64_t full = samples / batch_size;
  std::vector<int64_t> last;
  if (samples % batch_size != 0 && !drop_last) {
    last.resize(static_cast<size_t>(samples % batch_size));
    order.copy(begin + full * batch_size, samples % batch_size, last.data());
  }
  return IndexBatches(std::move(order),
                      {.first = begin, .stride = batch_size, .length = batch_size, .count = full},
                      std::move(last));
}

}  // namespace internal
}  // namespace accelerate
