/// Readers of streams: of a whole stream, and of the shard that a dataset makes for each share.
///
/// Threads: one consumer; with workers the stream is read by a thread of its own.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include "accelerate/comm/operations.h"
#include "accelerate/data/dataset.h"
#include "accelerate/data/dataset_error.h"
#include "accelerate/data/iterable_dataset_shard.h"
#include "accelerate/data/loader_core.h"
#include "accelerate/data/worker.h"

namespace accelerate::internal {

/// Reads the shard of a stream that the dataset made for this rank's share.
///
/// Shards may differ in length. Before each batch the ranks agree whether any rank has one; a rank
/// whose shard has ended returns its first batch again, none of whose rows is real. As with all
/// streams, even_batches makes no difference.
/// Collective: every call of next.
template <typename Batch>
class SelfShardReader : public BatchReader<Batch> {
 public:
  using MakeSource = std::function<std::unique_ptr<BatchReader<Batch>>()>;

  /// `make_source` makes the reader of the shard when the first batch is read.
  SelfShardReader(MakeSource make_source, const LoaderCore& core, const PassStart& start)
      : make_source_(std::move(make_source)),
        group_(core.shard_options()->group),
        rank_(core.rank()),
        batch_size_(core.options().batch_size),
        position_{.taken = start.taken, .dataset_state = start.dataset_state} {}

  bool next(ReadBatch<Batch>& out) override {
    if (ended_) return false;
    State own = kEnded;
    std::exception_ptr error;
    try {
      if (read(out)) own = out.position.last ? kLast : kMore;
    } catch (...) {
      own = kFailed;
      error = std::current_exception();
    }
    ended_ = true;
    const bool any_rank = agree(own, error);
    if (own != kEnded) {
      position_ = out.position;
    } else if (any_rank) {
      repeat_first(out);
    }
    out.position.last = ended_;
    out.round.last = ended_;
    return any_rank;
  }

  std::optional<Batch> first_rows(int64_t count) override { return source_->first_rows(count); }

 private:
  enum State : int64_t { kEnded, kLast, kMore, kFailed };

  bool read(ReadBatch<Batch>& out) {
    try {
      if (!source_) source_ = make_source_();
    } catch (...) {
      rethrow_with_place(describe_place(rank_, 0, {}));
    }
    if (!source_->next(out)) return false;
    out.round = {.own_rows = out.round.own_rows, .ragged = true};
    out.remainder = std::nullopt;
    return true;
  }

  void repeat_first(ReadBatch<Batch>& out) {
    std::optional<Batch> first = source_->first_rows(batch_size_);
    // The shard ended without a batch: the pass began at its end, or skipped all its batches.
    if (position_.taken < source_->taken()) position_ = {.taken = source_->taken()};
    TORCH_CHECK_VALUE(first.has_value(), "rank ", rank_,
                      "'s shard of the stream is empty, but other ranks' are not; make fewer or "
                      "other shards");
    out.batch.emplace(std::move(*first));
    out.round = {.own_rows = 0, .ragged = true};
    out.remainder = std::nullopt;
    out.position = position_;
  }

  // Returns whether any rank has a batch; sets ended_ if it is every rank's last.
  bool agree(State own, const std::exception_ptr& error) {
    at::Tensor mine = at::empty({1}, at::kLong);
    *mine.mutable_data_ptr<int64_t>() = own;
    const at::Tensor all = gather_tensor(group_, mine);
    const int64_t* states = all.const_data_ptr<int64_t>();
    if (error) std::rethrow_exception(error);
    bool any_rank = false;
    for (int64_t rank = 0; rank < all.numel(); ++rank) {
      if (states[rank] == kFailed) {
        throw DatasetError("rank " + std::to_string(rank) + " failed to read its shard");
      }
      any_rank = any_rank || states[rank] != kEnded;
      if (states[rank] == kMore) ended_ = false;
    }
    return any_rank;
  }

  const MakeSource make_source_;
  std::unique_ptr<BatchReader<Batch>> source_;
  const ProcessGroupPtr group_;
  const int rank_;
  const int64_t batch_size_;
  // After the last batch of its own.
  BatchPosition position_;
  bool ended_ = false;
};

template <typename Dataset, typename Collate>
using StreamBatch =
    decltype(std::declval<const Collate&>()(std::declval<std::vector<SampleOfStream<Dataset>>>()));

// Makes the batches of a stream one after the other, on one thread at a time.
template <StreamStyleDataset Dataset, typename Collate>
struct StreamSource {
  using Batch = StreamBatch<Dataset, Collate>;

  IterableDatasetShard<Dataset> shard;
  const std::shared_ptr<const Collate> collate;
  const bool pin_memory;
  const int rank;
  /// Whether the shard pads a short last slice; otherwise it is padded to a multiple of this.
  const bool pads;
  const int64_t multiple;
  int64_t made;
  /// When every rank reads the whole stream, all ranks get the same random numbers; those with
  /// different shards get different ones.
  const int64_t first_place;
  const int64_t place_stride;
  std::vector<std::optional<ReadBatch<Batch>>> slots = {};  // of the worker

  // The place of the next batch, which determines its random numbers.
  int64_t place() const { return first_place + shard.taken() * place_stride; }

  bool make(ReadBatch<Batch>& out) {
    try {
      auto slice = shard.next_slice();
      if (!slice) return false;
      if (!pads) {
        slice->samples.erase(slice->samples.begin() + slice->own_rows, slice->samples.end());
        const auto& first = shard.first_block();
        for (size_t i = 0; static_cast<int64_t>(slice->samples.size()) % multiple != 0; ++i) {
          slice->samples.push_back(first[i % first.size()]);
        }
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

/// Reads a stream, on the loop's thread or on a thread of its own ahead of it; either way one batch
/// ahead, because only the end of a stream shows which batch is the last.
template <StreamStyleDataset Dataset, typename Collate>
class StreamReader : public BatchReader<StreamBatch<Dataset, Collate>> {
 public:
  using Batch = StreamBatch<Dataset, Collate>;

  StreamReader(std::shared_ptr<Dataset> dataset, std::shared_ptr<const Collate> collate,
               const LoaderCore& core, const PassStart& start)
      : source_(new Source{.shard = {std::move(dataset), shard_options(core)},
                           .collate = std::move(collate),
                           .pin_memory = core.options().pin_memory,
                           .rank = core.rank(),
                           .pads = core.mode() == LoaderMode::kShard,
                           .multiple = core.mode() == LoaderMode::kDispatch ? core.num_shares() : 1,
                           .made = start.skip,
                           .first_place = core.mode() == LoaderMode::kSelfShard ? core.share() : 0,
                           .place_stride = core.num_shares()}),
        round_(core.options().batch_size *
               (core.splits() || core.mode() != LoaderMode::kShard ? 1 : core.num_shares())),
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
                                .place = [source = source_](int64_t) { return source->place(); },
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
    // Only the end of the stream shows which batch is the last. An error there leaves this batch
    // valid.
    look_ahead();
    out.position.last = !ahead_ && !error_;
    out.round.last = out.position.last;
    if (out.position.last && !drop_last_) out.remainder = out.round.real_rows % round_;
    return true;
  }

  int64_t taken() const override { return source_->shard.taken(); }

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
              .rank = core.share(),
              .world_size = core.num_shares(),
              .split_batches = core.splits()};
    }
    // Rank 0 reads what all shares take together.
    const bool rounds = core.mode() == LoaderMode::kDispatch && !core.splits();
    return {.batch_size = options.batch_size * (rounds ? core.num_shares() : 1),
            .drop_last = options.drop_last,
            .reseed = false};
  }

  void go_to(const PassStart& start, int64_t epoch) {
    auto& shard = source_->shard;
    try {
      shard.set_epoch(epoch);
      shard.reset();
      if constexpr (StatefulDataset<Dataset>) {
        if (start.dataset_state) shard.jump_to(start.taken, *start.dataset_state);
      }
      shard.skip_to(start.taken);
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
