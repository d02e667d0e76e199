/// Gives one rank its share of the batches of a BatchSampler.
///
/// With b the batch size, W the world size and N the samples, a pass falls into rounds of T
/// samples, of which every rank gets a slice of p:
///
///     without splitting   T = b * W   p = b        each rank takes whole batches
///     with splitting      T = b       p = b / W    each rank takes a slice of every batch
///
///     round g:  [ rank 0: p | rank 1: p | ... | rank W-1: p ]      at order[g * T]
///
/// Only the last round can be short. It is left out if the sampler drops its last batch, and padded
/// with the pass's first samples if `even_batches`; otherwise ranks get the existing part of their
/// slice, and those whose slice is empty have one batch fewer.
/// The padding repeats the first min(N, T) samples. Concatenating the ranks' last batches hence
/// gives the real samples first and the padding after them.
///
/// Where batches differ in length (the sampler has no batch_size, or does not keep to it), rank r
/// takes batches r, r + W, ...; ranks that miss one in the last round repeat the pass's first ones.
///
/// A pass may begin in the middle, after the units that any number of ranks took before: samples,
/// or batches where they differ in length.
/// Threads: one, as samplers.
/// Mirrors: accelerate data_loader.py, BatchSamplerShard.
/// Differs: size() is the true number of batches, also when splitting unevenly; batches of other
///          lengths than the batch size are returned, not lost.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "accelerate/data/sampler.h"

namespace accelerate {

/// The rank of the share, and how batches are cut.
struct BatchShardOptions {
  int rank = 0;
  int world_size = 1;
  bool split_batches = false;
  bool even_batches = true;
};

/// One rank's share of a pass.
struct ShardedPass {
  IndexBatches batches = {};

  /// How many ranks have a batch in the last round: the first ones.
  int ranks_in_last_round = 1;
  /// How many rows of all ranks' batches in the last round are real; they come first.
  int64_t real_rows_in_last_round = 0;
  /// How many rows of this rank's batch in the last round are real; they come first.
  int64_t own_rows_in_last_round = 0;
  /// Whether ranks' batches may differ in length: in the last round, or in all of them.
  bool ragged_last_round = false;
  bool ragged = false;

  /// Rounds of all ranks; this rank's batch i is of round i.
  int64_t rounds = 0;
  /// The position at which the pass began, the size of a round, and that of the dataset, in units.
  int64_t begin = 0;
  int64_t units_per_round = 1;
  int64_t units = 0;

  /// The units taken once this rank has had `count` batches.
  int64_t taken_after(int64_t count) const;
};

class BatchSamplerShard : public BatchSampler {
 public:
  /// Errors: c10::ValueError if the rank is not in the world, or if splitting and the batch size is
  ///         unknown or not divisible by the world size.
  BatchSamplerShard(std::shared_ptr<BatchSampler> batch_sampler, const BatchShardOptions& options);

  const std::shared_ptr<BatchSampler>& batch_sampler() const { return batch_sampler_; }
  const BatchShardOptions& options() const { return options_; }
  /// Takes effect with the next pass.
  void set_even_batches(bool even_batches) { options_.even_batches = even_batches; }

  /// Samples of one round over all ranks; nothing where batches differ in length.
  std::optional<int64_t> total_batch_size() const;

  /// This rank's slice of a batch; nothing where batches differ in length.
  std::optional<int64_t> batch_size() const override;
  bool drop_last() const override { return batch_sampler_->drop_last(); }
  int64_t size() const override { return size_after(0); }
  /// How many batches are left after `taken` units.
  int64_t size_after(int64_t taken) const;

  IndexBatches begin_pass() override { return begin_pass_after(0).batches; }
  /// The pass after `taken` units. Errors: c10::ValueError if there are fewer units, and if
  /// splitting while batches differ in length.
  ShardedPass begin_pass_after(int64_t taken) { return share(taken, drop_last()); }

  void end_pass() override { batch_sampler_->end_pass(); }
  void set_epoch(int64_t epoch) override { batch_sampler_->set_epoch(epoch); }
  at::Generator* generator() override { return batch_sampler_->generator(); }
  nlohmann::json state_dict() const override;
  void load_state_dict(const nlohmann::json& state) override;
  void discard_loaded_pass() override { batch_sampler_->discard_loaded_pass(); }

 private:
  friend ShardedPass begin_unshared_pass(BatchSampler& batch_sampler, int64_t taken);

  // How many batches this rank has where there are `samples` left, or `batches` of any lengths.
  int64_t count_of_samples(int64_t samples) const;
  int64_t count_of_batches(int64_t batches) const;
  int64_t own_rows_of_rest(int64_t samples) const;
  ShardedPass share(int64_t taken, bool drop_last);
  ShardedPass share_samples(IndexOrder order, int64_t taken, bool drop_last) const;
  ShardedPass share_batches(const IndexBatches& all, int64_t taken) const;
  std::vector<int64_t> fill_last(const IndexOrder& order, int64_t begin, int64_t rows) const;

  std::shared_ptr<BatchSampler> batch_sampler_;
  BatchShardOptions options_;
  int64_t round_ = 0;  // T; 0 where batches differ in length
  int64_t slice_ = 0;  // p
};

/// The whole pass for a rank alone: batches as they are, the last one not padded.
ShardedPass begin_unshared_pass(BatchSampler& batch_sampler, int64_t taken = 0);

namespace internal {

/// Errors: c10::ValueError if the rank is not in the world.
void check_rank(int rank, int world_size);
/// How many samples all ranks get together in a round. Errors: c10::ValueError if splitting and the
/// batch size is not divisible by the world size.
int64_t round_of(int64_t batch_size, int world_size, bool split_batches);

}  // namespace internal

}  // namespace accelerate
