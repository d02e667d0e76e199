#include "accelerate/data/batch_sampler_shard.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

namespace accelerate {

BatchSamplerShard::BatchSamplerShard(BatchSampler batch_sampler, const BatchShardOptions& options)
    : batch_sampler_(std::move(batch_sampler)), options_(options) {
  const int64_t batch_size = batch_sampler_.batch_size();
  const int world_size = options_.world_size;
  TORCH_CHECK_VALUE(options_.rank >= 0 && options_.rank < world_size, "rank ", options_.rank,
                    " is not in a world of ", world_size);
  TORCH_CHECK_VALUE(!options_.split_batches || batch_size % world_size == 0,
                    "split_batches: the batch size ", batch_size,
                    " is not divisible by the world size ", world_size);
  round_ = options_.split_batches ? batch_size : batch_size * world_size;
  slice_ = round_ / world_size;
}

int64_t BatchSamplerShard::rows_in_short_round(int64_t samples) const {
  return std::clamp<int64_t>(samples % round_ - options_.rank * slice_, 0, slice_);
}

bool BatchSamplerShard::joins_short_round(int64_t samples) const {
  if (batch_sampler_.drop_last() || samples % round_ == 0) return false;
  return options_.even_batches || rows_in_short_round(samples) > 0;
}

int64_t BatchSamplerShard::size() const {
  const int64_t samples = batch_sampler_.sampler().size();
  return samples / round_ + (joins_short_round(samples) ? 1 : 0);
}

IndexBatches BatchSamplerShard::batches(int64_t epoch) const {
  at::Tensor order = batch_sampler_.sampler().indices(epoch);
  at::Tensor last;
  if (joins_short_round(order.numel())) last = last_batch(order);
  const IndexBatches::Layout layout{.first = options_.rank * slice_,
                                    .stride = round_,
                                    .length = slice_,
                                    .count = order.numel() / round_};
  return IndexBatches(std::move(order), layout, std::move(last));
}

at::Tensor BatchSamplerShard::last_batch(const at::Tensor& order) const {
  const int64_t samples = order.numel();
  const int64_t begin = samples / round_ * round_ + options_.rank * slice_;
  const int64_t rows = rows_in_short_round(samples);
  if (rows == slice_ || !options_.even_batches) return order.narrow(0, begin, rows);

  at::Tensor batch = at::empty({slice_}, order.options());
  int64_t* out = batch.mutable_data_ptr<int64_t>();
  const int64_t* in = order.const_data_ptr<int64_t>();
  if (rows > 0) std::copy_n(in + begin, rows, out);
  // All ranks fill from one cycle; this one enters it where the ranks before it stop.
  const int64_t cycle = std::min(samples, round_);
  for (int64_t i = rows; i < slice_; ++i) out[i] = in[(begin + i - samples) % cycle];
  return batch;
}

}  // namespace accelerate
