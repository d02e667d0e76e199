/// Walks a dataset in batches, epoch by epoch; on its own, or as one rank's share.
///
///     DataLoader loader(make_tensor_dataset(images, labels), {.batch_size = 32, .shuffle = true});
///     for (auto& [images, labels] : loader) { ... }
///
/// A dataset has a `size()` and a `get_batch`, which gets the wanted indices in one of two forms:
///     Batch get_batch(const at::Tensor& indices)            int64 [B] on the CPU: TensorDataset
///     Batch get_batch(c10::ArrayRef<size_t> indices)        torch::data's map-style datasets
/// A Batch is any tree (see util/tree.h).
///
/// A pass begins with begin() and reads one batch at a time. Only a complete pass advances the
/// epoch, and with it the shuffled order; leaving a loop early repeats the epoch next time.
/// The share of a rank (see shard()) further moves batches to the device and, while an iterator
/// lives, registers with the rank's GradientState. The dataset's exceptions leave the loop as they
/// are; the iterator has then ended, and the loader can be iterated again.
///
/// Ownership: a loader is a handle; copies share the dataset, the epoch and all else.
/// Threads:   one consumer.
/// Mirrors:   torch.utils.data.DataLoader; accelerate data_loader.py, DataLoaderShard.
/// Differs:   the last batch is known by its number, so no batch is read ahead of the one in the
///            user's hands; an iterator that dies takes its registration with it.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/Exception.h>

#include "accelerate/data/data_loader_options.h"
#include "accelerate/data/index_batches.h"
#include "accelerate/data/loader_plan.h"
#include "accelerate/state/gradient_state.h"
#include "accelerate/util/tree.h"

namespace accelerate {

template <typename Dataset>
concept TensorIndexedDataset = requires(Dataset& dataset, const at::Tensor& indices) {
  dataset.get_batch(indices);
  dataset.size();
};

template <typename Dataset>
concept ListIndexedDataset = requires(Dataset& dataset, c10::ArrayRef<size_t> indices) {
  dataset.get_batch(indices);
  dataset.size();
};

template <typename Dataset>
concept IndexedDataset = TensorIndexedDataset<Dataset> || ListIndexedDataset<Dataset>;

namespace internal {

template <typename Dataset>
int64_t checked_dataset_size(const Dataset& dataset) {
  const auto size = dataset.size();
  if constexpr (requires { size.has_value(); }) {
    TORCH_CHECK_VALUE(size.has_value(), "DataLoader: the dataset does not know its size");
    return static_cast<int64_t>(*size);
  } else {
    return static_cast<int64_t>(size);
  }
}

// `indices` is a contiguous int64 vector on the CPU.
template <typename Dataset>
auto read_batch(Dataset& dataset, const at::Tensor& indices) {
  if constexpr (TensorIndexedDataset<Dataset>) {
    return dataset.get_batch(indices);
  } else {
    static_assert(sizeof(size_t) == sizeof(int64_t));
    // Indices are not negative, and signed and unsigned views of an integer may alias.
    const auto* data = reinterpret_cast<const size_t*>(indices.const_data_ptr<int64_t>());
    return dataset.get_batch(c10::ArrayRef<size_t>(data, static_cast<size_t>(indices.numel())));
  }
}

template <typename Batch>
Batch move_to_device(Batch batch, c10::Device device) {
  return tree_map(std::move(batch), [device](const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.device() == device) return tensor;
    return tensor.to(at::TensorOptions().device(device));
  });
}

}  // namespace internal

template <IndexedDataset Dataset>
class DataLoader {
 public:
  using Batch = decltype(internal::read_batch(std::declval<Dataset&>(), at::Tensor()));
  class Iterator;

  /// Errors: c10::ValueError unless the batch size is positive and the dataset knows its size.
  explicit DataLoader(Dataset dataset, const DataLoaderOptions& options = {})
      : state_(make_state(std::make_shared<Dataset>(std::move(dataset)), options)) {}

  /// This loader over the same dataset, from the same epoch on, as the share of one rank. A rank
  /// alone gets all batches as they are. No collective: that all ranks pass the same options and
  /// have the same seed is up to the caller.
  /// Errors: c10::ValueError for a rank outside its world, and if splitting and the batch size is
  ///         not divisible by the world size; c10::Error if this loader is a share already.
  DataLoader shard(const ShardOptions& options) const {
    return DataLoader(std::make_shared<State>(
        State{state_->dataset, state_->plan.shard(options), state_->epoch}));
  }
  bool is_prepared() const { return state_->plan.shard_options().has_value(); }

  /// Starts a pass. The first batch is read now.
  Iterator begin() const { return Iterator(state_); }
  std::default_sentinel_t end() const { return {}; }

  /// How many batches this loader gives in a pass.
  int64_t size() const { return state_->plan.size(); }
  /// How many samples the dataset has, over all ranks.
  int64_t dataset_size() const { return state_->plan.dataset_size(); }
  /// As given; with split_batches this rank's batches are smaller.
  int64_t batch_size() const { return state_->plan.options().batch_size; }
  /// How many samples all ranks together get per step.
  int64_t total_batch_size() const { return state_->plan.total_batch_size(); }
  bool drop_last() const { return state_->plan.options().drop_last; }

  /// The seed of the shuffling, given or drawn; nothing where nothing is shuffled.
  std::optional<uint64_t> seed() const { return state_->plan.options().seed; }

  /// The number of the next pass, and how many complete ones there were unless it was set.
  int64_t epoch() const { return state_->epoch; }
  /// Takes effect with the next pass.
  void set_epoch(int64_t epoch) { state_->epoch = epoch; }

  Dataset& dataset() const { return *state_->dataset; }
  const std::optional<ShardOptions>& shard_options() const { return state_->plan.shard_options(); }

 private:
  struct State {
    std::shared_ptr<Dataset> dataset;
    internal::LoaderPlan plan;
    int64_t epoch = 0;
  };
  class Pass;

  static std::shared_ptr<State> make_state(std::shared_ptr<Dataset> dataset,
                                           const DataLoaderOptions& options) {
    internal::LoaderPlan plan(internal::checked_dataset_size(*dataset), options);
    return std::make_shared<State>(State{std::move(dataset), std::move(plan)});
  }

  explicit DataLoader(std::shared_ptr<State> state) : state_(std::move(state)) {}

  std::shared_ptr<State> state_;
};

// One walk over the batches of an epoch.
template <IndexedDataset Dataset>
class DataLoader<Dataset>::Pass {
 public:
  explicit Pass(std::shared_ptr<State> state)
      : state_(std::move(state)), batches_(state_->plan.batches(state_->epoch)) {
    const std::optional<ShardOptions>& shard = state_->plan.shard_options();
    if (!shard) return;
    if (shard->device_placement) device_ = shard->device;
    if (shard->gradient_state) scope_.emplace(*shard->gradient_state, state_->plan.remainder());
  }

  // Reads the next batch and returns true, or ends the pass.
  bool advance() {
    // The old batch goes first: its memory is the new one's.
    batch_.reset();
    if (next_ == batches_.size()) {
      if (next_ > 0) ++state_->epoch;
      return false;
    }
    Batch batch = internal::read_batch(*state_->dataset, batches_[next_]);
    batch_.emplace(device_ ? internal::move_to_device(std::move(batch), *device_)
                           : std::move(batch));
    ++next_;
    if (scope_) scope_->set_end_of_dataloader(next_ == batches_.size());
    return true;
  }

  Batch& batch() { return *batch_; }

 private:
  std::shared_ptr<State> state_;
  IndexBatches batches_;
  int64_t next_ = 0;
  std::optional<c10::Device> device_;
  std::optional<GradientState::LoaderScope> scope_;
  std::optional<Batch> batch_;
};

/// A single-pass input iterator that owns its pass and so can be moved, not copied. The batch is
/// the user's until the next increment.
template <IndexedDataset Dataset>
class DataLoader<Dataset>::Iterator {
 public:
  using iterator_concept = std::input_iterator_tag;
  using value_type = Batch;
  using difference_type = std::ptrdiff_t;

  Batch& operator*() const { return pass_->batch(); }
  Batch* operator->() const { return &pass_->batch(); }

  Iterator& operator++() {
    // While it advances the pass is held here: however it ends, it is over and unregistered.
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

  explicit Iterator(std::shared_ptr<State> state)
      : pass_(std::make_unique<Pass>(std::move(state))) {
    ++*this;
  }

  std::unique_ptr<Pass> pass_;  // null at the end
};

}  // namespace accelerate
