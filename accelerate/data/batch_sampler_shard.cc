#include "accelerate/data/batch_sampler_shard.h"

#include <algorithm>
#include <typeinfo>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

namespace accelerate {
namespace {

// Whether all batches but the last have `batch_size` samples, and the last no more.
bool keeps_to(const IndexBatches& batches, std::optional<int64_t> batch_size) {
  if (!batch_size) return false;
  const int64_t count = batches.size();
  for (int64_t i = 0; i + 1 < count; ++i) {
    if (batches.length(i) != *batch_size) return false;
  }
  return count == 0 || batches.length(count - 1) <= *batch_size;
}

// The same batches as spans of an order in which they lie one after the other.
IndexBatches flattened(const IndexBatches& batches) {
  std::vector<IndexBatches::Span> spans;
  int64_t samples = 0;
  for (int64_t i = 0; i < batches.size(); ++i) {
    spans.push_back({.begin = samples, .length = batches.length(i)});
    samples += spans.back().length;
  }
  at::Tensor indices = at::empty({samples}, at::kLong);
  int64_t* const out = indices.mutable_data_ptr<int64_t>();
  for (size_t i = 0; i < spans.size(); ++i) {
    batches.copy(static_cast<int64_t>(i), out + spans[i].begin);
  }
  return IndexBatches(IndexOrder(std::move(indices)), std::move(spans));
}

// Whether the sampler cuts batches as FixedSizeBatchSampler itself does; classes derived from it
// may do as they like.
bool cuts_plainly(const BatchSampler& sampler) {
  return typeid(sampler) == typeid(FixedSizeBatchSampler);
}

// The order that the sampler's batches cut up, if they are equally long.
std::optional<IndexOrder> order_of_equal_batches(const BatchSampler& sampler,
                                                 const IndexBatches& batches) {
  // Batches of FixedSizeBatchSampler follow from its order, so they are not looked at one by one.
  if (cuts_plainly(sampler)) return batches.order();
  if (!keeps_to(batches, sampler.batch_size())) return std::nullopt;
  return flattened(batches).order();
}

void check_taken(int64_t taken, int64_t units, const char* unit) {
  TORCH_CHECK_VALUE(taken >= 0 && taken <= units, "the pass has ", units, " ", unit,
                    ", it cannot go on after ", taken);
}

}  // namespace

int64_t ShardedPass::taken_after(int64_t count) const {
  return std::min(begin + count * units_per_round, units);
}

void internal::check_rank(int rank, int world_size) {
  TORCH_CHECK_VALUE(rank >= 0 && rank < world_size, "rank ", rank, " is not in a world of ",
                    world_size);
}

int64_t internal::round_of(int64_t batch_size, int world_size, bool split_batches) {
  TORCH_CHECK_VALUE(!split_batches || batch_size % world_size == 0,
                    "split_batches: the batch size ", batch_size,
                    " is not divisible by the number of data shares, ", world_size);
  return split_batches ? batch_size : batch_size * world_size;
}

BatchSamplerShard::BatchSamplerShard(std::shared_ptr<BatchSampler> batch_sampler,
                                     const BatchShardOptions& options)
    : batch_sampler_(std::move(batch_sampler)), options_(options) {
  const int world_size = options_.world_size;
  TORCH_CHECK_VALUE(batch_sampler_ != nullptr, "BatchSamplerShard: there is no batch sampler");
  internal::check_rank(options_.rank, world_size);
  const std::optional<int64_t> batch_size = batch_sampler_->batch_size();
  TORCH_CHECK_VALUE(!options_.split_batches || batch_size,
                    "split_batches: the batch sampler has no batch size, which says into what "
                    "parts its batches are cut");
  if (!batch_size) return;
  round_ = internal::round_of(*batch_size, world_size, options_.split_batches);
  slice_ = round_ / world_size;
}

std::optional<int64_t> BatchSamplerShard::total_batch_size() const {
  return round_ > 0 ? std::optional(round_) : std::nullopt;
}

std::optional<int64_t> BatchSamplerShard::batch_size() const {
  return slice_ > 0 ? std::optional(slice_) : std::nullopt;
}

int64_t BatchSamplerShard::own_rows_of_rest(int64_t samples) const {
  return std::clamp<int64_t>(samples % round_ - options_.rank * slice_, 0, slice_);
}

int64_t BatchSamplerShard::count_of_samples(int64_t samples) const {
  const bool short_round = !drop_last() && samples % round_ != 0 &&
                           (options_.even_batches || own_rows_of_rest(samples) > 0);
  return samples / round_ + (short_round ? 1 : 0);
}

int64_t BatchSamplerShard::count_of_batches(int64_t batches) const {
  const int64_t rest = batches % options_.world_size;
  const bool short_round =
      !drop_last() && rest != 0 && (options_.even_batches || options_.rank < rest);
  return batches / options_.world_size + (short_round ? 1 : 0);
}

int64_t BatchSamplerShard::size_after(int64_t taken) const {
  if (round_ == 0) return count_of_batches(batch_sampler_->size() - taken);
  if (const auto samples = batch_sampler_->num_samples()) {
    // A list may break its promise of equal lengths, which only its batches can tell.
    if (auto* list = dynamic_cast<ListBatchSampler*>(batch_sampler_.get());
        list != nullptr && !keeps_to(list->begin_pass(), list->batch_size())) {
      return count_of_batches(list->size() - taken);
    }
    return count_of_samples(*samples - taken);
  }
  if (options_.split_batches) return batch_sampler_->size() - taken / round_;
  return count_of_batches(batch_sampler_->size() - taken / *batch_sampler_->batch_size());
}

ShardedPass BatchSamplerShard::share(int64_t taken, bool drop_last) {
  const IndexBatches all = batch_sampler_->begin_pass();
  if (auto order = order_of_equal_batches(*batch_sampler_, all)) {
    return share_samples(std::move(*order), taken, drop_last);
  }
  TORCH_CHECK_VALUE(!options_.split_batches,
                    "split_batches: the batch sampler's batches differ in length");
  return share_batches(all, taken);
}

ShardedPass BatchSamplerShard::share_samples(IndexOrder order, int64_t taken,
                                             bool drop_last) const {
  check_taken(taken, order.size(), "samples");
  const int64_t samples = order.size() - taken;
  const int64_t full_rounds = samples / round_;
  const int64_t rest = drop_last ? 0 : samples % round_;
  const int64_t rows = own_rows_of_rest(rest);

  ShardedPass pass{.ranks_in_last_round = options_.world_size,
                   .real_rows_in_last_round = round_,
                   .own_rows_in_last_round = slice_,
                   .rounds = full_rounds + (rest > 0 ? 1 : 0),
                   .begin = taken,
                   .units_per_round = round_,
                   .units = order.size()};
  std::vector<int64_t> last;
  if (rest > 0) {
    pass.real_rows_in_last_round = rest;
    pass.own_rows_in_last_round = rows;
    pass.ragged_last_round = !options_.even_batches;
    if (pass.ragged_last_round) {
      pass.ranks_in_last_round = static_cast<int>((rest + slice_ - 1) / slice_);
    }
    last = fill_last(order, taken + full_rounds * round_ + options_.rank * slice_, rows);
  }
  pass.batches = IndexBatches(std::move(order),
                              {.first = taken + options_.rank * slice_,
                               .stride = round_,
                               .length = slice_,
                               .count = full_rounds},
                              std::move(last));
  return pass;
}

std::vector<int64_t> BatchSamplerShard::fill_last(const IndexOrder& order, int64_t begin,
                                                  int64_t rows) const {
  std::vector<int64_t> batch(static_cast<size_t>(options_.even_batches ? slice_ : rows));
  if (rows > 0) order.copy(begin, rows, batch.data());
  // All ranks fill from one cycle; this one enters it where the ranks before it stop.
  const int64_t cycle = std::min(order.size(), round_);
  for (int64_t i = rows; i < static_cast<int64_t>(batch.size()); ++i) {
    order.copy((begin + i - order.size()) % cycle, 1, &batch[static_cast<size_t>(i)]);
  }
  return batch;
}

ShardedPass BatchSamplerShard::share_batches(const IndexBatches& all, int64_t taken) const {
  check_taken(taken, all.size(), "batches");
  const int64_t world_size = options_.world_size;
  const int64_t left = all.size() - taken;
  const int64_t rest = drop_last() ? 0 : left % world_size;
  const int64_t cycle = std::min(all.size(), world_size);
  const IndexBatches flat = flattened(all);

  ShardedPass pass{.ranks_in_last_round = options_.world_size,
                   .ragged_last_round = true,
                   .ragged = true,
                   .rounds = left / world_size + (rest > 0 ? 1 : 0),
                   .begin = taken,
                   .units_per_round = world_size,
                   .units = all.size()};
  std::vector<IndexBatches::Span> own;
  int64_t own_rows = 0;
  for (int64_t round = 0; round < count_of_batches(left); ++round) {
    const int64_t number = taken + round * world_size + options_.rank;
    const bool real = number < all.size();
    own.push_back(flat.spans()[static_cast<size_t>(real ? number : (number - all.size()) % cycle)]);
    own_rows = real ? own.back().length : 0;
  }
  pass.own_rows_in_last_round = own_rows;
  if (rest > 0 && !options_.even_batches) pass.ranks_in_last_round = static_cast<int>(rest);
  pass.batches = IndexBatches(flat.order(), std::move(own));
  return pass;
}

nlohmann::json BatchSamplerShard::state_dict() const { return batch_sampler_->state_dict(); }

void BatchSamplerShard::load_state_dict(const nlohmann::json& state) {
  batch_sampler_->load_state_dict(state);
}

ShardedPass begin_unshared_pass(BatchSampler& batch_sampler, int64_t taken) {
  // The pointer does not own the sampler.
  BatchSamplerShard alone(std::shared_ptr<BatchSampler>(std::shared_ptr<void>(), &batch_sampler),
                          {.even_batches = false});
  // Samples that other samplers leave out are not in the order.
  ShardedPass pass = alone.share(taken, cuts_plainly(batch_sampler) && batch_sampler.drop_last());
  pass.ragged_last_round = pass.ragged;
  pass.real_rows_in_last_round = pass.own_rows_in_last_round;
  return pass;
}

}  // namespace accelerate
