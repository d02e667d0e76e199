/// Gives one rank its share of a stream of samples, which every rank reads as a whole.
///
/// The stream falls into blocks of R samples, of which every rank gets a slice of s:
///
///     without splitting   R = b * W   s = b
///     with splitting      R = b       s = b / W
///
///     block:  [ rank 0: s | rank 1: s | ... | rank W-1: s ]
///
/// A last block that is short is left out with `drop_last`, otherwise padded with the samples of
/// the first block, repeated (its own if it is the first). So the real samples come first.
/// Every rank must see the same sequence: that is up to the stream.
/// Ownership: copies share the stream.
/// Threads: one.
/// Mirrors: accelerate data_loader.py, IterableDatasetShard.
/// Differs: size() is right under splitting; a batch size that the world size does not divide is an
///          error there, also 1.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

#include "accelerate/data/batch_sampler_shard.h"
#include "accelerate/data/dataset.h"

namespace accelerate {

struct IterableShardOptions {
  int64_t batch_size = 1;
  bool drop_last = false;
  int rank = 0;
  int world_size = 1;
  bool split_batches = false;
  /// Seed a stream's generator with the epoch at each pass.
  bool reseed = true;
};

template <StreamStyleDataset Dataset>
class IterableDatasetShard {
 public:
  using Sample = internal::SampleOfStream<Dataset>;

  /// A rank's slice of a block.
  struct Slice {
    std::vector<Sample> samples;
    /// How many of them are real, and how many of the whole block; they come first.
    int64_t own_rows = 0;
    int64_t real_rows = 0;
    /// How many samples of the stream lie before the end of the block.
    int64_t taken = 0;
  };

  /// Errors: c10::ValueError for a batch size that is not positive or, when splitting, not
  ///         divisible by the world size, and for a rank outside its world.
  template <std::same_as<std::shared_ptr<Dataset>> Pointer>
  IterableDatasetShard(Pointer dataset, const IterableShardOptions& options)
      : dataset_(std::move(dataset)), options_(options) {
    TORCH_CHECK_VALUE(options.batch_size > 0, "batch_size must be positive, got ",
                      options.batch_size);
    internal::check_rank(options.rank, options.world_size);
    block_ = internal::round_of(options.batch_size, options.world_size, options.split_batches);
    slice_ = block_ / options.world_size;
  }
  IterableDatasetShard(Dataset dataset, const IterableShardOptions& options)
      : IterableDatasetShard(std::make_shared<Dataset>(std::move(dataset)), options) {}

  Dataset& dataset() { return *dataset_; }

  /// How many samples this rank gets in a pass; nothing where the stream does not know its size.
  std::optional<int64_t> size() const {
    const std::optional<int64_t> samples = internal::dataset_size(*dataset_);
    if (!samples) return std::nullopt;
    const int64_t blocks = *samples / block_;
    const bool short_block = !options_.drop_last && *samples % block_ != 0;
    return (blocks + (short_block ? 1 : 0)) * slice_;
  }

  /// The number of the next pass.
  void set_epoch(int64_t epoch) {
    epoch_ = epoch;
    if constexpr (internal::HasSetEpoch<Dataset>) dataset_->set_epoch(epoch);
  }

  /// Begins a pass.
  void reset() {
    if constexpr (internal::HasGenerator<Dataset> && !internal::HasSetEpoch<Dataset>) {
      at::Generator generator = dataset_->generator();
      if (options_.reseed && generator.defined())
        generator.set_current_seed(static_cast<uint64_t>(epoch_));
    }
    if constexpr (requires { dataset_->reset(); }) dataset_->reset();
    taken_ = 0;
    ended_ = false;
    first_block_.clear();
    buffer_ = {};
    used_ = 0;
  }

  /// This rank's slice of the next block; nothing at the end.
  std::optional<Slice> next_slice() {
    Slice slice;
    const int64_t begin = options_.rank * slice_;
    int64_t read = 0;
    for (; read < block_ && !ended_; ++read) {
      std::optional<Sample> sample = internal::next_sample(*dataset_, taken_);
      // A stream that ended is not asked again: it might begin anew.
      ended_ = !sample.has_value();
      if (ended_) break;
      ++taken_;
      const bool own = read >= begin && read < begin + slice_;
      if (static_cast<int64_t>(first_block_.size()) < block_) first_block_.push_back(*sample);
      if (own) slice.samples.push_back(std::move(*sample));
    }
    if (read == 0 || (read < block_ && options_.drop_last)) return std::nullopt;
    slice.own_rows = static_cast<int64_t>(slice.samples.size());
    slice.real_rows = read;
    slice.taken = taken_;
    const auto cycle = static_cast<int64_t>(first_block_.size());
    while (static_cast<int64_t>(slice.samples.size()) < slice_) {
      const int64_t place = begin + static_cast<int64_t>(slice.samples.size()) - read;
      slice.samples.push_back(first_block_[static_cast<size_t>(place % cycle)]);
    }
    return slice;
  }

  /// How many samples of the stream were read in this pass.
  int64_t taken() const { return taken_; }

  /// The samples of the pass's first block that were read: the padding of the last one.
  const std::vector<Sample>& first_block() const { return first_block_; }

  /// This rank's next sample; nothing at the end.
  std::optional<Sample> next() {
    if (used_ == buffer_.samples.size()) {
      std::optional<Slice> slice = next_slice();
      used_ = 0;
      buffer_ = slice ? std::move(*slice) : Slice{};
      if (buffer_.samples.empty()) return std::nullopt;
    }
    return std::move(buffer_.samples[used_++]);
  }

  /// Goes on after `taken` samples of the pass just begun, by reading them.
  /// Errors: c10::ValueError if the stream has fewer.
  void skip_to(int64_t taken) {
    while (taken_ < taken) {
      std::optional<Sample> sample = internal::next_sample(*dataset_, taken_);
      TORCH_CHECK_VALUE(sample.has_value(), "the stream ended after ", taken_,
                        " samples, it cannot go on after ", taken);
      ++taken_;
      if (static_cast<int64_t>(first_block_.size()) < block_) {
        first_block_.push_back(std::move(*sample));
      }
    }
  }

  /// The same without reading more than the first block, for a stream that knows how.
  void jump_to(int64_t taken, const nlohmann::json& state)
    requires StatefulDataset<Dataset>
  {
    skip_to(taken < block_ ? taken : block_);
    dataset_->load_state_dict(state);
    taken_ = taken;
  }

 private:
  std::shared_ptr<Dataset> dataset_;
  IterableShardOptions options_;
  int64_t block_ = 0;  // R
  int64_t slice_ = 0;  // s
  int64_t epoch_ = 0;
  int64_t taken_ = 0;  // samples read in this pass
  bool ended_ = false;
  std::vector<Sample> first_block_;
  Slice buffer_;  // what next() gives out
  size_t used_ = 0;
};

}  // namespace accelerate
