/// Iterates over a dataset in batches, pass by pass; all of it, or one rank's share.
///
///     DataLoader loader(make_tensor_dataset(images, labels), {.batch_size = 32, .shuffle = true});
///     for (auto& [images, labels] : loader) { ... }
///
/// Datasets are map-style or streams (see dataset.h). The result of `get_batch` is a batch; samples
/// are collated (see collate.h). A callable as third argument replaces the collation, and also gets
/// the results of `get_batch`. A batch is any tree (see tensors/tree.h).
///
/// A pass begins with begin(). Only a complete pass advances the epoch; leaving a loop early
/// repeats the epoch next time. The share of a rank (see shard()) further moves batches to the
/// device and, while an iterator lives, registers with the rank's GradientState.
/// Errors:    a dataset's exception leaves the loop as a DatasetError (or stays a c10::Error) that
///            names rank, batch and samples; the iterator and its threads have then ended, and the
///            loader can be iterated again. After a time-out the hanging worker's thread remains: a
///            dataset that two threads cannot read must not be read again before it returns.
/// Ownership: a loader is a handle; copies share everything, such as the dataset and the epoch.
/// Threads:   one consumer.
/// Mirrors:   torch.utils.data.DataLoader; accelerate data_loader.py, DataLoaderShard (here
///            DataLoader) and DataLoaderDispatcher (here DataLoader); torchdata's
///            StatefulDataLoader.
/// Differs:   the last batch of map-style data is known by its number, so no batch is read ahead;
///            the destructor of an iterator ends its registration.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <iterator>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include <c10/util/Exception.h>
#include <nlohmann/json_fwd.hpp>

#include "accelerate/base/access.h"
#include "accelerate/data/collate.h"
#include "accelerate/data/data_loader_options.h"
#include "accelerate/data/dataset.h"
#include "accelerate/data/dispatch_reader.h"
#include "accelerate/data/loader_core.h"
#include "accelerate/data/map_reader.h"
#include "accelerate/data/sequence_reader.h"
#include "accelerate/data/stream_reader.h"
#include "accelerate/state/gradient_state.h"
#include "accelerate/tensors/tree_operations.h"

namespace accelerate {

template <ReadableDataset Dataset, typename Collate = DefaultCollate>
class DataLoader {
  template <typename D>
  struct BatchOf {
    using Type = internal::StreamBatch<D, Collate>;
  };
  template <MapStyleDataset D>
  struct BatchOf<D> {
    using Type = internal::MapBatch<D, Collate>;
  };

 public:
  using Batch = typename BatchOf<Dataset>::Type;
  class Iterator;

  /// Errors: c10::ValueError for options that are wrong, contradict each other or do not fit the
  ///         dataset: see DataLoaderOptions. Shuffling an empty dataset is one.
  explicit DataLoader(Dataset dataset, const DataLoaderOptions& options = {}, Collate collate = {})
      : state_(std::make_shared<State>(std::make_shared<Dataset>(std::move(dataset)),
                                       std::make_shared<const Collate>(std::move(collate)))) {
    state_->core = std::make_shared<internal::LoaderCore>(facts(*state_->dataset), options);
  }

  /// This loader over the same dataset, from the same epoch on, as the share of one rank. One share
  /// alone has all batches as they are, whether one rank reads it or several. Collective where
  /// ranks share a seed. `slice` replaces the slicing by rows of batches that are dispatched.
  /// Errors: c10::ValueError for a share that does not exist, ranks that cannot be divided into
  ///         that many shares, if splitting and the batch size is not divisible by their number,
  ///         and if the batches cannot be dispatched; c10::Error if this loader is a share already.
  DataLoader shard(const ShardOptions& options, SliceFunction<Batch> slice = {}) const {
    auto state = std::make_shared<State>(state_->dataset, state_->collate);
    state->core = state_->core->shard(options);
    state->slice = std::move(slice);
    TORCH_CHECK_VALUE(
        state->core->mode() != internal::LoaderMode::kDispatch || state->core->num_ranks() == 1 ||
            kCanDispatch,
        "dispatch_batches: these batches hold types that cannot be sent between ranks (see "
        "accelerate/tensors/portable.h)");
    TORCH_CHECK_VALUE(
        state->core->ranks_per_sequence() == 1 || kCanDispatch,
        "DataLoader: ranks that divide sequences send each other their batches, but these hold "
        "types that cannot be sent (see accelerate/tensors/portable.h)");
    return DataLoader(std::move(state), skip_);
  }
  /// This loader over the same dataset, from the same epoch on, with other batches; it leaves none
  /// out. Local. Errors: c10::ValueError for a size below 1, and for a loader with a batch_sampler;
  ///         c10::Error if this loader is a share.
  DataLoader with_batch_size(int64_t batch_size) const {
    auto state = std::make_shared<State>(state_->dataset, state_->collate);
    state->core = core().with_batch_size(batch_size);
    return DataLoader(std::move(state), /*skip=*/0);
  }
  bool is_prepared() const { return core().shard_options().has_value(); }

  /// The same loader, whose passes leave out this share's first `count` batches; of map-style data
  /// they are not even read. A complete pass completes the epoch, as one of the original does: use
  /// it for the rest of an epoch that was interrupted, and the original afterwards.
  /// Errors: c10::ValueError for a negative count; begin() throws it where the loader has loaded a
  ///         position within a pass, which it goes on from by itself.
  DataLoader skip_first(int64_t count) const {
    TORCH_CHECK_VALUE(count >= 0, "skip_first_batches: the number must not be negative, got ",
                      count);
    return DataLoader(state_, skip_ + count);
  }

  /// Starts a pass. The first batch is read now. Collective if ranks share a generator's state, or
  /// if batches are dispatched; then each further batch is, too.
  Iterator begin() const {
    core();
    return Iterator(state_, skip_);
  }
  std::default_sentinel_t end() const { return {}; }

  /// How many batches this loader gives in a pass; where ranks divide sequences, as many as all of
  /// them would have if each had as many as this one. Errors: c10::ValueError for a stream that
  /// does not know its size.
  int64_t size() const { return core().size(skip_); }
  /// How many samples the dataset has, over all shares. Errors: as size.
  int64_t total_dataset_length() const { return core().total_dataset_length(); }
  /// How many samples all shares together get per step. Errors: c10::ValueError where batches
  /// differ in length.
  int64_t total_batch_size() const { return core().total_batch_size(); }
  /// As given; with split_batches each share's batches are smaller.
  int64_t batch_size() const { return core().options().batch_size; }
  bool drop_last() const { return core().drop_last(); }

  /// Whether the last round is padded. Setting it takes effect with the next pass.
  bool even_batches() const { return core().even_batches(); }
  bool can_set_even_batches() const { return core().can_set_even_batches(); }
  void set_even_batches(bool even_batches) { core().set_even_batches(even_batches); }

  /// The sampler that decides about the order; null for streams and for batch samplers of the
  /// user's own.
  std::shared_ptr<Sampler> sampler() const { return core().sampler(); }
  /// Takes effect with the next pass; all ranks must set samplers that give the same order.
  /// Errors: c10::ValueError where sampler() is null.
  void set_sampler(std::shared_ptr<Sampler> sampler) { core().set_sampler(std::move(sampler)); }

  /// The number of the next pass, and how many complete ones there were unless it was set.
  int64_t epoch() const { return core().epoch(); }
  /// Takes effect with the next pass, whose number the sampler and the dataset get if they have
  /// set_epoch. During a pass it sets the number of that pass, which its end increments.
  void set_epoch(int64_t epoch) { core().set_epoch(epoch); }

  /// The position of the loop as a JSON object. A loader over the same data that loads it continues
  /// with the sample after the last one that was returned, in the same order, with any number of
  /// shares. Call it between batches: with even batches it is equal on all ranks; without them take
  /// share 0's, which never ends before the others. Each share of a stream that shards itself has a
  /// position of its own, valid for that number of shares. After the last batch the epoch counts as
  /// complete, though a loop that is left there repeats it.
  /// Errors: c10::ValueError if the state is of another kind of loader or of other data.
  /// Its caller includes <nlohmann/json.hpp>.
  template <typename Json = nlohmann::json>
  Json state_dict() const {
    return core().state_dict();
  }
  void load_state_dict(const nlohmann::json& state) { core().load_state_dict(state); }

  Dataset& dataset() const { return *state_->dataset; }
  const std::optional<ShardOptions>& shard_options() const { return core().shard_options(); }

  /// Whether it was not reset.
  explicit operator bool() const { return state_ != nullptr; }
  /// Releases the dataset and the workers; the loader cannot be used afterwards.
  void reset() { state_.reset(); }

 private:
  friend struct internal::Access;
  const std::shared_ptr<internal::LoaderCore>& internals() const { return state_->core; }

  static constexpr bool kCanDispatch = Portable<Batch> && std::is_default_constructible_v<Batch>;

  struct State {
    State(std::shared_ptr<Dataset> dataset, std::shared_ptr<const Collate> collate)
        : dataset(std::move(dataset)), collate(std::move(collate)) {}

    std::shared_ptr<Dataset> dataset;
    std::shared_ptr<const Collate> collate;
    std::shared_ptr<internal::LoaderCore> core;
    SliceFunction<Batch> slice;
  };
  class Pass;

  static internal::DatasetFacts facts(Dataset& dataset) {
    internal::DatasetFacts facts{.size = internal::dataset_size(dataset),
                                 .is_stream = StreamStyleDataset<Dataset>};
    if constexpr (SelfShardingDataset<Dataset>) facts.num_shards = dataset.num_shards();
    if constexpr (StreamStyleDataset<Dataset> && internal::HasGenerator<Dataset>) {
      facts.generator = dataset.generator();
    }
    return facts;
  }

  DataLoader(std::shared_ptr<State> state, int64_t skip) : state_(std::move(state)), skip_(skip) {}

  internal::LoaderCore& core() const {
    TORCH_CHECK(state_ != nullptr, "this data loader was freed");
    return *state_->core;
  }

  std::shared_ptr<State> state_;
  int64_t skip_ = 0;
};

// One walk over the batches of an epoch.
template <ReadableDataset Dataset, typename Collate>
class DataLoader<Dataset, Collate>::Pass {
 public:
  Pass(std::shared_ptr<State> state, int64_t skip)
      : state_(std::move(state)),
        start_(core().begin_pass(skip)),
        completes_(start_.taken > 0 || start_.skip > 0 || start_.skip_in_round > 0) {
    const std::optional<ShardOptions>& shard = core().shard_options();
    if (shard) {
      if (shard->device_placement) device_ = shard->device;
      prefetch_ = device_ ? shard->device_prefetch : 0;
      non_blocking_ = shard->non_blocking || prefetch_ > 0;
      if (shard->gradient_state) {
        scope_.emplace(*shard->gradient_state, core().remainder(start_));
      }
    }
    reader_ = make_reader();
    if constexpr (kCanDispatch) {
      if (core().ranks_per_sequence() > 1) {
        reader_ =
            std::make_unique<internal::SequenceReader<Batch>>(std::move(reader_), core(), start_);
      }
    }
  }

  // Reads the next batch and returns true, or ends the pass.
  bool advance() {
    // The old batch goes first: its memory is the new one's.
    read_.batch.reset();
    if (!core().may_give_batch() || !fetch()) {
      core().finish_pass(completes_ || core().pass_has_batches());
      return false;
    }
    completes_ = true;
    core().count_batch(read_.position);
    if (!scope_) return true;
    scope_->set_end_of_dataloader(read_.position.last);
    scope_->set_round(read_.round);
    if (read_.remainder) scope_->set_remainder(*read_.remainder);
    return true;
  }

  Batch& batch() { return *read_.batch; }

 private:
  using Reader = internal::BatchReader<Batch>;

  internal::LoaderCore& core() const { return *state_->core; }

  std::unique_ptr<Reader> make_source(const std::shared_ptr<Dataset>& dataset) {
    if constexpr (MapStyleDataset<Dataset>) {
      if constexpr (internal::HasSetEpoch<Dataset>) dataset->set_epoch(core().epoch());
      return std::make_unique<internal::MapReader<Dataset, Collate>>(
          dataset, state_->collate, core(), core().begin_map_pass(start_), start_);
    } else {
      return std::make_unique<internal::StreamReader<Dataset, Collate>>(dataset, state_->collate,
                                                                        core(), start_);
    }
  }

  std::unique_ptr<Reader> make_reader() {
    using internal::LoaderMode;
    if (core().mode() == LoaderMode::kDispatch) {
      return std::make_unique<internal::DispatchReader<Batch>>(
          [this] { return make_source(state_->dataset); }, core(), state_->slice,
          /*may_be_empty=*/completes_);
    }
    if constexpr (SelfShardingDataset<Dataset>) {
      if (core().mode() == LoaderMode::kSelfShard) {
        return std::make_unique<internal::SelfShardReader<Batch>>(
            [this] {
              return make_source(std::make_shared<Dataset>(
                  state_->dataset->shard(int64_t{core().share()}, int64_t{core().num_shares()})));
            },
            core(), start_);
      }
    }
    return make_source(state_->dataset);
  }

  // The next batch, on the device, and others on their way there.
  bool fetch() {
    if (prefetch_ == 0) return read_one();
    if (!std::exchange(prefetching_, true)) look_ahead();
    if (ahead_.empty()) {
      if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
      return false;
    }
    internal::ReadBatch<Batch> next = std::move(ahead_.front());
    ahead_.pop_front();
    look_ahead();
    read_ = std::move(next);
    return true;
  }

  // An error waits for its turn.
  void look_ahead() {
    try {
      while (!error_ && static_cast<int>(ahead_.size()) < prefetch_ && read_one()) {
        ahead_.push_back(std::move(read_));
        read_.batch.reset();
      }
    } catch (...) {
      error_ = std::current_exception();
    }
  }

  bool read_one() {
    if (!reader_->next(read_)) return false;
    if (device_) {
      read_.batch.emplace(
          send_to_device(std::move(*read_.batch), *device_, {.non_blocking = non_blocking_}));
    }
    return true;
  }

  std::shared_ptr<State> state_;
  internal::PassStart start_;
  // Whether coming to the end completes the epoch: an empty dataset has none.
  bool completes_;
  std::optional<c10::Device> device_;
  bool non_blocking_ = false;
  int prefetch_ = 0;
  std::optional<GradientState::LoaderScope> scope_;
  std::unique_ptr<Reader> reader_;
  internal::ReadBatch<Batch> read_;
  std::deque<internal::ReadBatch<Batch>> ahead_;
  bool prefetching_ = false;
  std::exception_ptr error_;
};

/// A single-pass input iterator that owns its pass and so can be moved, not copied. The batch is
/// the user's until the next increment.
template <ReadableDataset Dataset, typename Collate>
class DataLoader<Dataset, Collate>::Iterator {
 public:
  using iterator_concept = std::input_iterator_tag;
  using value_type = Batch;
  using difference_type = std::ptrdiff_t;

  Batch& operator*() const { return pass_->batch(); }
  Batch* operator->() const { return &pass_->batch(); }

  Iterator& operator++() {
    // The pass is held here while it advances: if it throws, it ends and unregisters.
    std::unique_ptr<Pass> pass = std::move(pass_);
    if (pass->advance()) pass_ = std::move(pass);
    return *this;
  }
  void operator++(int) { ++*this; }

  friend bool operator==(const Iterator& iterator, std::default_sentinel_t) {
    return iterator.pass_ == nullptr;
  }

 private:
  friend class DataLoader;

  Iterator(std::shared_ptr<State> state, int64_t skip)
      : pass_(std::make_unique<Pass>(std::move(state), skip)) {
    ++*this;
  }

  std::unique_ptr<Pass> pass_;  // null at the end
};

/// As DataLoader::skip_first. Mirrors: accelerate data_loader.py, skip_first_batches.
template <typename Dataset, typename Collate>
DataLoader<Dataset, Collate> skip_first_batches(const DataLoader<Dataset, Collate>& loader,
                                                int64_t num_batches = 0) {
  return loader.skip_first(num_batches);
}

}  // namespace accelerate
