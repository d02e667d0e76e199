/// The part of a DataLoader that does not depend on its types (what a pass visits, where it stands
/// and what it reports), and the interface of its readers.
///
/// Threads: one consumer.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <ATen/core/Tensor.h>
#include <nlohmann/json_fwd.hpp>

#include "accelerate/comm/operations.h"
#include "accelerate/comm/process_group.h"
#include "accelerate/data/batch_sampler_shard.h"
#include "accelerate/data/data_loader_options.h"
#include "accelerate/data/sampler.h"
#include "accelerate/state/gradient_state.h"
#include "accelerate/tensors/tree.h"

namespace accelerate::internal {

/// How ranks share the reading.
enum class LoaderMode {
  kWhole,      ///< There is one share: each rank reads everything.
  kShard,      ///< Each rank reads its share.
  kDispatch,   ///< Rank 0 reads, the others receive.
  kSelfShard,  ///< Each rank reads the shard that the dataset makes for its share.
};

struct DatasetFacts {
  std::optional<int64_t> size;
  bool is_stream = false;
  /// How many shards a stream can cut itself into; 0: it cannot.
  int64_t num_shards = 0;
  /// The stream's generator, if it has one.
  at::Generator generator = {};
};

/// How a pass begins.
struct PassStart {
  uint64_t base_seed = 0;
  /// Units taken before the first batch of this pass; see ShardedPass.
  int64_t taken = 0;
  /// The number of each rank's batches to be skipped after that.
  int64_t skip = 0;
  /// How many of the batches of the next round of a sequence_group to skip as well.
  int64_t skip_in_round = 0;
  /// The state of a stateful stream at that position; null: unknown.
  std::shared_ptr<const nlohmann::json> dataset_state;
};

/// The position of a pass after a batch.
struct BatchPosition {
  bool last = false;
  int64_t taken = 0;
  /// How many batches of the round of a sequence_group that begins there were returned.
  int64_t in_round = 0;
  std::shared_ptr<const nlohmann::json> dataset_state;
};

class LoaderCore {
 public:
  /// Errors: c10::ValueError naming the options that are wrong or contradict each other.
  LoaderCore(const DatasetFacts& facts, DataLoaderOptions options);

  /// One rank's. Collective where a seed is shared. Errors: as DataLoader::shard.
  std::shared_ptr<LoaderCore> shard(const ShardOptions& options) const;
  /// Errors: as DataLoader::with_batch_size.
  std::shared_ptr<LoaderCore> with_batch_size(int64_t batch_size) const;

  const DataLoaderOptions& options() const { return options_; }
  const std::optional<ShardOptions>& shard_options() const { return shard_; }
  LoaderMode mode() const { return mode_; }
  int share() const { return shard_ ? shard_->share : 0; }
  int num_shares() const { return shard_ ? shard_->num_shares : 1; }
  /// This rank's number, and how many ranks there are. Without a group each share is a rank.
  int rank() const { return group() ? group()->getRank() : share(); }
  int num_ranks() const { return group() ? group()->getSize() : num_shares(); }
  bool splits() const { return shard_ && shard_->split_batches; }
  /// How many ranks work through their batches together.
  int ranks_per_sequence() const { return size_of(shard_ ? shard_->sequence_group : nullptr); }

  /// The number of this rank's batches in a pass that skips the first `skip`.
  /// Errors: c10::ValueError if the dataset does not know its size.
  int64_t size(int64_t skip) const;
  /// Samples of one round over all shares. Errors: c10::ValueError where batches differ in length.
  int64_t total_batch_size() const;
  /// Samples of the dataset over all shares. Errors: c10::ValueError where it does not know.
  int64_t total_dataset_length() const;
  bool drop_last() const;
  bool even_batches() const { return !shard_ || shard_->even_batches; }
  /// Whether that can be overridden: for map-style data that is not dispatched.
  bool can_set_even_batches() const;
  void set_even_batches(bool even_batches);

  /// Null for streams and for batch samplers of the user's own.
  std::shared_ptr<Sampler> sampler() const;
  void set_sampler(std::shared_ptr<Sampler> sampler);

  int64_t epoch() const { return epoch_; }
  void set_epoch(int64_t epoch);

  // ---- A pass. In this order.

  /// Collective if ranks synchronise generators or seeds. Errors: c10::ValueError for a skip where
  /// the pass goes on at a loaded position.
  PassStart begin_pass(int64_t skip);
  /// For map-style data. Returns this rank's batches or, for kDispatch, rank 0's rounds.
  ShardedPass begin_map_pass(const PassStart& start);
  /// For kDispatch: rank 0 describes its pass and the others load it, so that every rank knows the
  /// position.
  std::string describe_pass() const;
  void load_pass(const std::string& description);
  /// What a round of all shares takes; see ShardedPass.
  int64_t units_per_round() const { return round() > 0 ? round() : batches_per_round(); }
  /// The remainder that GradientState gets at the start of the pass.
  int64_t remainder(const PassStart& start) const;
  /// Whether the rank's Runtime lets the loader give a batch; see Runtime::record_batch().
  static bool may_give_batch();
  /// Counts a batch that the loop receives, and keeps its position.
  void count_batch(const BatchPosition& position);
  /// The loop came to its end. An epoch in which no rank had a batch is not counted.
  void finish_pass(bool had_batches);
  /// Whether any rank has a batch in the map-style pass that was begun.
  bool pass_has_batches() const { return progress_.has_batches; }

  // ---- Resuming.

  /// The position of the loop as a JSON object; a loader that loads it continues with the batch
  /// after the last one returned.
  nlohmann::json state_dict() const;
  /// Errors: c10::ValueError if it is of another kind of loader or of other data.
  void load_state_dict(const nlohmann::json& state);

 private:
  // The position of a pass, or its start. It is finished once the last batch was counted.
  struct Progress : BatchPosition {
    bool begun = false;
    bool has_batches = false;
    uint64_t base_seed = 0;
    int64_t batches = 0;
  };

  void make_sampler();
  ProcessGroupPtr group() const { return shard_ ? shard_->group : nullptr; }
  // Whether several ranks have the same share.
  bool shares_are_replicated() const { return num_ranks() > num_shares(); }
  // Whether ranks must draw alike to agree on the order. Where rank 0 reads, its draws decide.
  bool draws_alike() const;
  void set_share(const ShardOptions& options);
  void share_shuffling();
  void share_batches();
  void synchronize_generators();
  // PyTorch's loaders read one batch ahead: of a pass that was left before a last round that is
  // short, they have seen the end of the sampler, which draws a random number there.
  void end_unfinished_pass();
  at::Generator shared_generator() const;
  int64_t batches_per_round() const;
  // Samples of a round; 0 where batches differ in length.
  int64_t round() const;
  std::string units() const;
  // The kind of order, which a loaded state must have too.
  std::string order_kind() const;

  DatasetFacts facts_;
  DataLoaderOptions options_;
  std::optional<ShardOptions> shard_;
  LoaderMode mode_ = LoaderMode::kWhole;
  std::shared_ptr<BatchSampler> batch_sampler_;       // null for streams
  std::shared_ptr<BatchSamplerShard> sampler_shard_;  // only for kShard of map-style data
  int64_t epoch_ = 0;
  Progress progress_;
  bool resume_ = false;  // progress_ is where the next pass begins
};

/// The tensor in page-locked memory, if a device profits from that.
at::Tensor pinned(const at::Tensor& tensor);

/// A dataset's state for the position of the batch after which it was taken.
std::shared_ptr<const nlohmann::json> share_state(nlohmann::json state);

template <typename Batch>
struct ReadBatch {
  std::optional<Batch> batch;
  BatchRound round;
  BatchPosition position;
  /// The value of GradientState::remainder() with this batch.
  std::optional<int64_t> remainder;
};

/// Reads the batches of one pass, one after the other.
template <typename Batch>
class BatchReader {
 public:
  virtual ~BatchReader() = default;
  /// Reads the next batch, or returns false at the end.
  virtual bool next(ReadBatch<Batch>& out) = 0;
  /// The batch of the first samples of the pass, wherever it was entered: `count` of them, or all
  /// that are known; nothing where there are none. \pre Only once the last batch was read.
  virtual std::optional<Batch> first_rows(int64_t count) = 0;
  /// How many samples of a stream were read. \pre As first_rows.
  virtual int64_t taken() const { return 0; }
};

template <typename Batch>
Batch pin_batch(Batch batch) {
  return tree_map(std::move(batch), [](const at::Tensor& tensor) { return pinned(tensor); });
}

}  // namespace accelerate::internal
