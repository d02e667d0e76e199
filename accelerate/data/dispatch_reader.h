/// Distributes the batches that rank 0 reads: each round it reads a batch for all shares together,
/// of which every rank cuts out the rows of its share; shares have equally many.
///
/// Missing rows are padded with the pass's first rows, repeated as often as needed. So the real
/// rows come first, share by share. Collective: every call of next.
/// Threads: the rank's thread.
/// Mirrors: accelerate data_loader.py, DataLoaderDispatcher.
/// Differs: a round is read and collated as one batch, so batches of unequal shapes are never
///          joined; rank 0's errors reach all ranks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include "accelerate/comm/operations.h"
#include "accelerate/data/batch_rows.h"
#include "accelerate/data/loader_core.h"
#include "accelerate/tensors/portable.h"
#include "accelerate/tensors/tensor_memory.h"
#include "accelerate/tensors/tree_operations.h"

namespace accelerate::internal {

/// Carries rank 0's rounds to the other ranks.
///
/// A pass begins with a description of it. Each round broadcasts a header of eight numbers, the
/// batch's structure if it differs from the last round's, and then the tensors. If rank 0 fails,
/// the header says so, and every rank throws.
class DispatchChannel {
 public:
  /// Numbers alone, because they are sent as they lie in memory.
  struct Header {
    enum Kind : int64_t { kPass, kBatch, kEnd, kError };
    static constexpr int64_t kSameStructure = -1;
    int64_t kind = kBatch;
    /// Rows that are real, and rows of each share.
    int64_t real_rows = 0;
    int64_t rows_per_share = 0;
    /// See BatchPosition; `last` is 0 or 1.
    int64_t last = 0;
    int64_t taken = 0;
    /// The size of the batch's structure; kSameStructure: that of the last round.
    int64_t structure_bytes = kSameStructure;
  };

  explicit DispatchChannel(ProcessGroupPtr group) : group_(std::move(group)) {}

  // ---- On rank 0.

  /// A round.
  void send(Header header, const std::string& structure, const std::vector<at::Tensor>& tensors);
  /// A message without a round: a pass that begins, with its description; the end; an error's text.
  void send(Header::Kind kind, const std::string& text = {});

  // ---- On the others.

  /// Errors: as receive_header.
  std::string receive_pass();
  /// Errors: DatasetError with rank 0's message if it failed.
  Header receive_header();
  /// The structure of the header's batch; the tensors are made from it.
  const std::string& structure() const { return structure_; }
  void receive_tensors(const std::vector<at::Tensor>& tensors) { broadcast_tensors(tensors); }

 private:
  void broadcast_header(Header& header);
  void broadcast_tensors(const std::vector<at::Tensor>& tensors);

  ProcessGroupPtr group_;
  std::string structure_;
};

}  // namespace accelerate::internal

namespace accelerate {

/// Cuts rows [begin, end) out of a batch for data share `share` of `num_shares`.
template <typename Batch>
using SliceFunction =
    std::function<Batch(const Batch& batch, int64_t begin, int64_t end, int share, int num_shares)>;

namespace internal {

template <typename Batch>
class DispatchReader : public BatchReader<Batch> {
 public:
  using MakeSource = std::function<std::unique_ptr<BatchReader<Batch>>()>;

  /// `make_source` makes the reader of rounds; rank 0 calls it when it reads the first round, and
  /// then sends the others a description of the pass. `may_be_empty` is for a pass that begins at
  /// its end or skips all batches.
  DispatchReader(MakeSource make_source, LoaderCore& core, SliceFunction<Batch> slice,
                 bool may_be_empty)
      : make_source_(std::move(make_source)),
        core_(core),
        may_be_empty_(may_be_empty),
        rank_(core.rank()),
        share_(core.share()),
        num_shares_(core.num_shares()),
        device_(core.shard_options()->device),
        non_blocking_(core.shard_options()->non_blocking),
        slice_(std::move(slice)),
        channel_(core.num_ranks() > 1 ? core.shard_options()->group : nullptr) {}

  bool next(ReadBatch<Batch>& out) override {
    if (std::exchange(ended_, true)) return false;
    Header header;
    if (!std::exchange(begun_, true)) begin();
    std::optional<Batch> round = rank_ == 0 ? send(header, out) : receive(header);
    if (!round) {
      TORCH_CHECK_VALUE(rounds_ > 0 || may_be_empty_,
                        "dispatch_batches: rank 0's loader has no batch to hand out on rank ",
                        rank_, ": the dataset is empty, or drop_last leaves nothing of it");
      return false;
    }
    ++rounds_;
    ended_ = header.last != 0;
    const int64_t begin = share_ * header.rows_per_share;
    const int64_t end = begin + header.rows_per_share;
    out.batch.emplace(slice_ ? slice_(*round, begin, end, share_, num_shares_)
                             : slice_rows(std::move(*round), begin, end));
    out.position.last = header.last != 0;
    out.position.taken = header.taken;
    out.round = {
        .own_rows = std::clamp<int64_t>(header.real_rows - begin, 0, header.rows_per_share),
        .real_rows = header.real_rows,
        .last = header.last != 0};
    out.remainder = header.last ? std::optional(header.real_rows) : std::nullopt;
    return true;
  }

  std::optional<Batch> first_rows(int64_t count) override { return source_->first_rows(count); }

 private:
  using Header = DispatchChannel::Header;

  // Makes the source, and sends all ranks the start and the order of the pass.
  void begin() {
    try {
      if (rank_ == 0) {
        source_ = make_source_();
        channel_.send(Header::kPass, core_.describe_pass());
      } else {
        core_.load_pass(channel_.receive_pass());
      }
    } catch (const std::exception& error) {
      if (rank_ == 0) channel_.send(Header::kError, error.what());
      throw;
    }
  }

  // Reads a round, pads it, places it on the device and sends it.
  std::optional<Batch> send(Header& header, ReadBatch<Batch>& read) {
    std::optional<Batch> round;
    PortableWriter writer;
    try {
      if (source_->next(read)) {
        round = send_to_device(pad(read, header), device_, {.non_blocking = non_blocking_});
        // Memory is sent as it lies; rank 0 keeps the same tensors.
        round = tree_map(std::move(*round), [](const at::Tensor& tensor) {
          return tensor.defined() ? without_flags(tensor).contiguous() : tensor;
        });
        if constexpr (Portable<Batch>) write_portable(writer, *round);
      }
    } catch (const std::exception& error) {
      channel_.send(Header::kError, error.what());
      throw;
    }
    if (round) {
      channel_.send(header, writer.bytes(), writer.tensors());
    } else {
      channel_.send(Header::kEnd);
    }
    return round;
  }

  Batch pad(ReadBatch<Batch>& read, Header& header) {
    const std::optional<int64_t> rows = batch_rows(*read.batch);
    TORCH_CHECK_VALUE(rows.has_value() && *rows > 0,
                      "dispatch_batches: a batch without rows cannot be distributed");
    // Samples are padded before collating; batches of different lengths are padded here.
    header.real_rows = read.round.real_rows;
    header.rows_per_share = (*rows + num_shares_ - 1) / num_shares_;
    header.last = read.position.last;
    header.taken = read.position.taken;
    int64_t missing = header.rows_per_share * num_shares_ - *rows;
    if (missing == 0) return std::move(*read.batch);
    std::vector<Batch> parts;
    parts.push_back(std::move(*read.batch));
    const Batch filling = header.last ? source_->first_rows(num_shares_).value() : parts.front();
    while (missing > 0) {
      parts.push_back(slice_rows(filling, 0, missing));
      missing -= *batch_rows(parts.back());
    }
    return concatenate_rows(std::move(parts));
  }

  std::optional<Batch> receive(Header& header) {
    header = channel_.receive_header();
    if (header.kind == Header::kEnd) return std::nullopt;
    TORCH_CHECK(header.kind == Header::kBatch,
                "dispatch_batches: rank 0 began another pass while "
                "rank ",
                rank_, " is in its loop: all ranks must leave it after the same batch");
    // Which batches can be dispatched is checked before.
    if constexpr (Portable<Batch> && std::is_default_constructible_v<Batch>) {
      Batch round{};
      PortableReader reader(channel_.structure());
      reader.set_device(device_);
      read_portable(reader, round);
      channel_.receive_tensors(reader.tensors());
      return round;
    } else {
      TORCH_INTERNAL_ASSERT(false);
    }
  }

  const MakeSource make_source_;
  LoaderCore& core_;
  const bool may_be_empty_;
  std::unique_ptr<BatchReader<Batch>> source_;  // rank 0's
  const int rank_;
  const int share_;
  const int num_shares_;
  const c10::Device device_;
  const bool non_blocking_;
  const SliceFunction<Batch> slice_;
  DispatchChannel channel_;
  int64_t rounds_ = 0;
  bool begun_ = false;
  bool ended_ = false;  // also while a round is on its way: an error ends the pass
};

}  // namespace internal
}  // namespace accelerate
