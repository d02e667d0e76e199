/// Reads the shard of a stream that the dataset made for this rank.
///
/// Shards may differ in length. Ranks agree before each batch whether anybody has one; a rank whose
/// shard has ended hands out its first batch again, none of whose rows is real. As with all
/// streams, even_batches makes no difference.
/// Collective: every call of next. Threads: the rank's.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include "accelerate/comm/operations.h"
#include "accelerate/data/batch_reader.h"
#include "accelerate/data/dataset_error.h"
#include "accelerate/data/loader_core.h"

namespace accelerate::internal {

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
    const bool anybody = agree(own, error);
    if (own != kEnded) {
      position_ = out.position;
    } else if (anybody) {
      repeat_first(out);
    }
    out.position.last = ended_;
    out.round.last = ended_;
    return anybody;
  }

  std::optional<Batch> first_rows(int64_t count) override { return source_->first_rows(count); }

 private:
  enum State : int64_t { kEnded, kLast, kMore, kFailed };

  bool read(ReadBatch<Batch>& out) {
    if (!source_) make_source();
    if (!source_->next(out)) return false;
    const int64_t own_rows = out.round.own_rows;
    out.round = {};
    out.round.own_rows = own_rows;
    out.round.ragged = true;
    out.remainder = std::nullopt;
    return true;
  }

  void make_source() {
    try {
      source_ = make_source_();
    } catch (...) {
      rethrow_with_place(describe_place(rank_, 0, {}));
    }
  }

  void repeat_first(ReadBatch<Batch>& out) {
    std::optional<Batch> first = source_->first_rows(batch_size_);
    // Where it ended without giving anything: it was entered there, or passed over.
    if (position_.taken < source_->taken()) position_ = {.taken = source_->taken()};
    TORCH_CHECK_VALUE(first.has_value(), "rank ", rank_,
                      "'s shard of the stream is empty, but other ranks' are not; make fewer or "
                      "other shards");
    out.batch.emplace(std::move(*first));
    out.round = {};
    out.round.own_rows = 0;
    out.round.ragged = true;
    out.remainder = std::nullopt;
    out.position = position_;
  }

  // Whether anybody has a batch; ended_ becomes whether it is everybody's last.
  bool agree(State own, const std::exception_ptr& error) {
    at::Tensor mine = at::empty({1}, at::kLong);
    *mine.mutable_data_ptr<int64_t>() = own;
    const at::Tensor all = gather_tensor(group_, mine);
    const int64_t* states = all.const_data_ptr<int64_t>();
    if (error) std::rethrow_exception(error);
    bool anybody = false;
    for (int64_t rank = 0; rank < all.numel(); ++rank) {
      if (states[rank] == kFailed) {
        throw DatasetError("rank " + std::to_string(rank) + " failed to read its shard");
      }
      anybody = anybody || states[rank] != kEnded;
      if (states[rank] == kMore) ended_ = false;
    }
    return anybody;
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

}  // namespace accelerate::internal
