/// Reads the batches of one pass, one after the other.
///
/// The readers of map-style datasets and of streams, each on the loop's thread or ahead of it.
/// Threads: one consumer.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/Exception.h>
#include <nlohmann/json_fwd.hpp>

#include "accelerate/data/batch_rows.h"
#include "accelerate/data/collate.h"
#include "accelerate/data/dataset.h"
#include "accelerate/data/dataset_error.h"
#include "accelerate/data/iterable_dataset_shard.h"
#include "accelerate/data/loader_core.h"
#include "accelerate/data/worker.h"
#include "accelerate/state/gradient_state.h"
#include "accelerate/util/tree.h"

namespace accelerate::internal {

template <typename Batch>
struct ReadBatch {
  std::optional<Batch> batch;
  BatchRound round;
  BatchPosition position;
  /// What GradientState::remainder() becomes with this batch.
  std::optional<int64_t> remainder;
};

template <typename Batch>
class BatchReader {
 public:
  virtual ~BatchReader() = default;
  /// Reads the next batch, or returns false at the end.
  virtual bool next(ReadBatch<Batch>& out) = 0;
  /// The batch of the first samples of the pass, wherever it was entered: `count` of them, or all
  /// that are known; nothing where there are none. \pre Only once the last batch was read.
  virtual std::optional<Batch> first_rows(int64_t count) = 0;
};

template <typename Collate, typename Samples>
auto collate_batch(const Collate& collate, Samples samples) {
  if constexpr (std::is_same_v<Collate, DefaultCollate>) {
    return samples;
  } else {
    return collate(std::move(samples));
  }
}

// Sample by sample, so that an exception can be told its sample.
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
    return collate_batch(collate, dataset.get_batch(list));
  } else {
    const c10::ArrayRef<int64_t> list(indices.const_data_ptr<int64_t>(),
                                      static_cast<size_t>(indices.numel()));
    return collate(read_samples(dataset, list, rank, batch));
  }
}

template <typename Batch>
Batch pin_batch(Batch batch) {
  return tree_map(std::move(batch), [](const at::Tensor& tensor) { return pinned(tensor); });
}

template <typename Dataset, typename Collate>
using MapBatch = decltype(read_indices(std::declval<Dataset&>(), std::declval<const Collate&>(),
                                       std::declval<const at::Tensor&>(), 0, int64_t{}));

// ---- Map-style datasets

// Makes batches of a map-style dataset, on any thread.
template <MapStyleDataset Dataset, typename Collate>
struct MapSource {
  using Batch = MapBatch<Dataset, Collate>;

  const std::shared_ptr<Dataset> dataset;
  const std::shared_ptr<const Collate> collate;
  const ShardedPass pass;
  const bool pin_memory;
  const int rank;
  std::vector<std::optional<Batch>> slots = {};  // of workers

  Batch make(int64_t i, at::Tensor& buffer) const {
    // The buffer serves again unless the dataset kept it.
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
                           .rank = core.rank()}),
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
      out.round.real_rows = pass.batches.length(i);
    } else if (i + 1 == pass.rounds) {
      out.round = {.own_rows = pass.own_rows_in_last_round,
                   .real_rows = pass.real_rows_in_last_round,
                   .ragged = pass.ragged || pass.ragged_last_round,
                   .ranks = pass.ranks_in_last_round,
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

// ---- Streams

// A dataset that others hold as well, as a dataset.
template <StreamStyleDataset Dataset>
class SharedStream {
 public:
  explicit SharedStream(std::shared_ptr<Dataset> dataset) : dataset_(std::move(dataset)) {}

  auto next() { return next_sample(*dataset_, read_++); }
  void reset() {
    read_ = 0;
    reset_stream(*dataset_);
  }
  /// So many samples lie before where it stands.
  void count_from(int64_t samples) { read_ = samples; }
  std::optional<int64_t> size() const { return dataset_size(*dataset_); }
  void set_epoch(int64_t epoch)
    requires HasSetEpoch<Dataset>
  {
    dataset_->set_epoch(epoch);
  }
  at::Generator generator()
    requires HasGenerator<Dataset>
  {
    return dataset_->generator();
  }
  auto state_dict()
    requires StatefulDataset<Dataset>
  {
    return dataset_->state_dict();
  }
  void load_state_dict(const nlohmann::json& state)
    requires StatefulDataset<Dataset>
  {
    dataset_->load_state_dict(state);
  }

 private:
  std::shared_ptr<Dataset> dataset_;
  int64_t read_ = 0;
};

template <typename Dataset, typename Collate>
using StreamBatch = decltype(std::declval<const Collate&>()(
    std::declval<std::vector<SampleOfStream<Dataset>>>()));

// Makes the batches of a stream one after the other, on one thread at a time.
template <StreamStyleDataset Dataset, typename Collate>
struct StreamSource {
  using Batch = StreamBatch<Dataset, Collate>;

  IterableDatasetShard<SharedStream<Dataset>> shard;
  const std::shared_ptr<const Collate> collate;
  const bool pin_memory;
  const int rank;
  /// Whether a short last slice is filled up.
  const bool fills_up;
  int64_t made;
  std::vector<std::optional<ReadBatch<Batch>>> slots = {};  // of the worker

  bool make(ReadBatch<Batch>& out) {
    try {
      auto slice = shard.next_slice();
      if (!slice) return false;
      if (!fills_up) {
        slice->samples.erase(slice->samples.begin() + slice->own_rows, slice->samples.end());
      }
      out.batch.emplace((*collate)(std::move(slice->samples)));
      if (pin_memory) out.batch.emplace(pin_batch(std::move(*out.batch)));
      out.round = {.own_rows = slice->own_rows, .real_rows = slice->real_rows};
      out.position.taken = slice->taken;
      if constexpr (StatefulDataset<Dataset>) {
        out.position.dataset_state = share_state(shard.dataset().state_dict());
      }
      ++made;
      return true;
    } catch (...) {
      rethrow_with_place(describe_place(rank, made, {}));
    }
  }
};

template <StreamStyleDataset Dataset, typename Collate>
class StreamReader : public BatchReader<StreamBatch<Dataset, Collate>> {
 public:
  using Batch = StreamBatch<Dataset, Collate>;

  StreamReader(std::shared_ptr<Dataset> dataset, std::shared_ptr<const Collate> collate,
               const LoaderCore& core, const PassStart& start)
      : source_(new Source{.shard = {SharedStream<Dataset>(std::move(dataset)),
                                     shard_options(core)},
                           .collate = std::move(collate),
                           .pin_memory = core.options().pin_memory,
                           .rank = core.rank(),
                           .fills_up = core.mode() == LoaderMode::kShard,
                           .made = start.skip}),
        round_(core.options().batch_size *
               (core.splits() || core.mode() != LoaderMode::kShard ? 1 : core.world_size())),
        drop_last_(core.options().drop_last) {
    go_to(start, core.epoch());
    const DataLoaderOptions& options = core.options();
    if (options.num_workers == 0) return;
    const int64_t capacity = int64_t{options.num_workers} * options.prefetch_factor;
    source_->slots.resize(static_cast<size_t>(capacity));
    worker_ = std::make_unique<OrderedWorkers>(
        OrderedWorkers::Options{.num_workers = 1,
                                .capacity = capacity,
                                .base_seed = start.base_seed,
                                .timeout = options.timeout,
                                .init = options.worker_init},
        [source = source_](int64_t /*i*/, size_t slot) {
          return source->make(source->slots[slot].emplace());
        });
  }

  bool next(ReadBatch<Batch>& out) override {
    if (!started_) look_ahead();
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
    if (!ahead_) return false;
    out = std::move(*ahead_);
    // Only the end of the stream tells which batch is the last. If it fails there, this batch is
    // still good.
    look_ahead();
    out.position.last = !ahead_ && !error_;
    out.round.last = out.position.last;
    if (out.position.last && !drop_last_) out.remainder = out.round.real_rows % round_;
    return true;
  }

  std::optional<Batch> first_rows(int64_t count) override {
    const auto& first = source_->shard.first_block();
    if (first.empty()) return std::nullopt;
    const auto end = first.begin() + std::min(count, static_cast<int64_t>(first.size()));
    return (*source_->collate)(std::vector<SampleOfStream<Dataset>>(first.begin(), end));
  }

 private:
  using Source = StreamSource<Dataset, Collate>;

  static IterableShardOptions shard_options(const LoaderCore& core) {
    const DataLoaderOptions& options = core.options();
    if (core.mode() == LoaderMode::kShard) {
      return {.batch_size = options.batch_size,
              .drop_last = options.drop_last,
              .rank = core.rank(),
              .world_size = core.world_size(),
              .split_batches = core.splits()};
    }
    // Rank 0 reads what all ranks take together.
    const bool rounds = core.mode() == LoaderMode::kDispatch && !core.splits();
    return {.batch_size = options.batch_size * (rounds ? core.world_size() : 1),
            .drop_last = options.drop_last,
            .reseed = false};
  }

  void go_to(const PassStart& start, int64_t epoch) {
    auto& shard = source_->shard;
    try {
      shard.set_epoch(epoch);
      shard.reset();
      bool there = false;
      if constexpr (StatefulDataset<Dataset>) {
        if (start.dataset_state) {
          shard.jump_to(start.taken, *start.dataset_state);
          there = true;
        }
      }
      if (!there) shard.skip_to(start.taken);
      for (int64_t i = 0; i < start.skip && shard.next_slice(); ++i) {
      }
    } catch (...) {
      rethrow_with_place(describe_place(source_->rank, 0, {}));
    }
  }

  void look_ahead() {
    started_ = true;
    ahead_.reset();
    try {
      if (worker_) {
        worker_->next([&](size_t slot) {
          ahead_.emplace(std::move(*source_->slots[slot]));
          source_->slots[slot].reset();
        });
      } else if (!source_->make(ahead_.emplace())) {
        ahead_.reset();
      }
    } catch (...) {
      ahead_.reset();
      error_ = std::current_exception();
    }
  }

  const std::shared_ptr<Source> source_;
  const int64_t round_;
  const bool drop_last_;
  bool started_ = false;
  std::optional<ReadBatch<Batch>> ahead_;
  std::exception_ptr error_;
  std::unique_ptr<OrderedWorkers> worker_;
};

}  // namespace accelerate::internal
