/// Reads map-style datasets, on the loop's thread or on workers ahead of it.
///
/// Threads: one consumer; with workers the dataset is read by several threads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/ArrayRef.h>

#include "accelerate/data/collate.h"
#include "accelerate/data/dataset.h"
#include "accelerate/data/dataset_error.h"
#include "accelerate/data/loader_core.h"
#include "accelerate/data/worker.h"

namespace accelerate::internal {

template <typename Collate, typename Samples>
auto collate_batch(const Collate& collate, Samples samples) {
  if constexpr (std::is_same_v<Collate, DefaultCollate>) {
    return samples;
  } else {
    return collate(std::move(samples));
  }
}

// Reads sample by sample, so that an error can name its sample.
template <typename Dataset>
auto read_samples(Dataset& dataset, c10::ArrayRef<int64_t> indices, int rank, int64_t batch) {
  using Sample = decltype([&] {
    if constexpr (kIsVector<Dataset>) {
      return typename Dataset::value_type(dataset.at(0));
    } else {
      return dataset.get(size_t{0});
    }
  }());
  std::vector<Sample> samples;
  samples.reserve(indices.size());
  for (const int64_t& index : indices) {
    try {
      if constexpr (kIsVector<Dataset>) {
        samples.push_back(dataset.at(static_cast<size_t>(index)));
      } else {
        samples.push_back(dataset.get(static_cast<size_t>(index)));
      }
    } catch (...) {
      rethrow_with_place(describe_place(rank, batch, index));
    }
  }
  return samples;
}

// `indices` is a contiguous int64 vector on the CPU; a dataset may keep it.
template <typename Dataset, typename Collate>
auto read_indices(Dataset& dataset, const Collate& collate, const at::Tensor& indices, int rank,
                  int64_t batch) {
  if constexpr (TensorIndexedDataset<Dataset>) {
    return collate_batch(collate, dataset.get_batch(indices));
  } else if constexpr (ListIndexedDataset<Dataset>) {
    static_assert(sizeof(size_t) == sizeof(int64_t));
    // Indices are not negative, and signed and unsigned views of an integer may alias.
    const auto* data = reinterpret_cast<const size_t*>(indices.const_data_ptr<int64_t>());
    const c10::ArrayRef<size_t> list(data, static_cast<size_t>(indices.numel()));
    if constexpr (ItemIndexedDataset<Dataset>) {
      try {
        return collate_batch(collate, dataset.get_batch(list));
      } catch (...) {
        // Each sample by itself, to find the one that fails.
        read_samples(dataset, {indices.const_data_ptr<int64_t>(), list.size()}, rank, batch);
        throw;
      }
    } else {
      return collate_batch(collate, dataset.get_batch(list));
    }
  } else {
    const c10::ArrayRef<int64_t> list(indices.const_data_ptr<int64_t>(),
                                      static_cast<size_t>(indices.numel()));
    return collate(read_samples(dataset, list, rank, batch));
  }
}

template <typename Dataset, typename Collate>
using MapBatch = decltype(read_indices(std::declval<Dataset&>(), std::declval<const Collate&>(),
                                       std::declval<const at::Tensor&>(), 0, int64_t{}));

// Makes batches of a map-style dataset, on any thread.
template <MapStyleDataset Dataset, typename Collate>
struct MapSource {
  using Batch = MapBatch<Dataset, Collate>;

  const std::shared_ptr<Dataset> dataset;
  const std::shared_ptr<const Collate> collate;
  const ShardedPass pass;
  const bool pin_memory;
  const int rank;
  const int share;
  const int num_shares;
  std::vector<std::optional<Batch>> slots = {};  // of workers

  // The place of batch i, which determines its random numbers; it differs between shares.
  int64_t place(int64_t i) const { return pass.taken_after(i) * num_shares + share; }

  Batch make(int64_t i, at::Tensor& buffer) const {
    // The buffer is reused unless the dataset kept it.
    const int64_t length = pass.batches.length(i);
    if (!buffer.defined() || buffer.use_count() > 1 || !buffer.storage().unique() ||
        buffer.numel() != length) {
      buffer = at::empty({length}, at::kLong);
    }
    pass.batches.copy(i, static_cast<int64_t*>(buffer.mutable_data_ptr()));
    try {
      Batch batch = read_indices(*dataset, *collate, buffer, rank, i);
      return pin_memory ? pin_batch(std::move(batch)) : batch;
    } catch (...) {
      const auto* data = buffer.const_data_ptr<int64_t>();
      rethrow_with_place(
          describe_place(rank, i, c10::ArrayRef<int64_t>(data, static_cast<size_t>(length))));
    }
  }
};

template <MapStyleDataset Dataset, typename Collate>
class MapReader : public BatchReader<MapBatch<Dataset, Collate>> {
 public:
  using Batch = MapBatch<Dataset, Collate>;

  MapReader(std::shared_ptr<Dataset> dataset, std::shared_ptr<const Collate> collate,
            const LoaderCore& core, ShardedPass pass, const PassStart& start)
      : source_(new Source{.dataset = std::move(dataset),
                           .collate = std::move(collate),
                           .pass = std::move(pass),
                           .pin_memory = core.options().pin_memory,
                           .rank = core.rank(),
                           .share = core.share(),
                           .num_shares = core.num_shares()}),
        dispatches_(core.mode() == LoaderMode::kDispatch),
        next_(start.skip),
        count_(source_->pass.batches.size()) {
    const DataLoaderOptions& options = core.options();
    if (options.num_workers == 0 || next_ >= count_) return;
    const int64_t capacity = int64_t{options.num_workers} * options.prefetch_factor;
    source_->slots.resize(static_cast<size_t>(capacity));
    workers_ = std::make_unique<OrderedWorkers>(
        OrderedWorkers::Options{.num_workers = options.num_workers,
                                .capacity = capacity,
                                .base_seed = start.base_seed,
                                .place = [source = source_, first = next_](
                                             int64_t i) { return source->place(first + i); },
                                .timeout = options.timeout,
                                .init = options.worker_init},
        [source = source_, first = next_, count = count_](int64_t i, size_t slot) {
          if (first + i >= count) return false;
          at::Tensor buffer;
          source->slots[slot].emplace(source->make(first + i, buffer));
          return true;
        });
  }

  bool next(ReadBatch<Batch>& out) override {
    if (next_ >= count_) return false;
    if (workers_) {
      workers_->next([&](size_t slot) {
        out.batch.emplace(std::move(*source_->slots[slot]));
        source_->slots[slot].reset();
      });
    } else {
      out.batch.emplace(source_->make(next_, buffer_));
    }
    ++next_;
    describe(next_ - 1, out);
    return true;
  }

  std::optional<Batch> first_rows(int64_t count) override {
    const IndexOrder& order = source_->pass.batches.order();
    if (order.size() == 0) return std::nullopt;
    at::Tensor indices = at::empty({std::min(count, order.size())}, at::kLong);
    order.copy(0, indices.numel(), indices.mutable_data_ptr<int64_t>());
    return read_indices(*source_->dataset, *source_->collate, indices, source_->rank, 0);
  }

 private:
  using Source = MapSource<Dataset, Collate>;

  void describe(int64_t i, ReadBatch<Batch>& out) const {
    const ShardedPass& pass = source_->pass;
    out.position.last = i + 1 == count_;
    out.position.taken = pass.taken_after(i + 1);
    if (dispatches_) {
      out.round.real_rows =
          i + 1 == pass.rounds ? pass.real_rows_in_last_round : pass.batches.length(i);
    } else if (i + 1 == pass.rounds) {
      out.round = {.own_rows = pass.own_rows_in_last_round,
                   .real_rows = pass.real_rows_in_last_round,
                   .ragged = pass.ragged || pass.ragged_last_round,
                   .shares = pass.ranks_in_last_round,
                   .last = true};
    } else {
      out.round = {.ragged = pass.ragged};
    }
  }

  const std::shared_ptr<Source> source_;
  const bool dispatches_;
  int64_t next_;
  const int64_t count_;
  at::Tensor buffer_;
  std::unique_ptr<OrderedWorkers> workers_;
};

}  // namespace accelerate::internal
