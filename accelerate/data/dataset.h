/// The datasets that a DataLoader can read.
///
/// Map-style: samples by index. One of
///     Batch get_batch(const at::Tensor& indices)            int64 [B] on the CPU: TensorDataset
///     Batch get_batch(c10::ArrayRef<size_t> indices)        torch::data's map-style datasets
///     Sample get(size_t index)                              samples, to be collated
///   with `size()`; or a std::vector<Sample>.
/// Streams: samples in a sequence of the dataset's own. One of
///     std::optional<Sample> next()        nothing at the end
///     Batch get_batch(size_t count)       torch::data's StreamDataset (a std::vector of samples,
///                                         up to its size()) and StatefulDataset (an optional)
///   with `void reset()`, which begins a pass, if the sequence can begin again.
///
/// Any dataset may have
///     void set_epoch(int64_t)             called before each pass
///     at::Generator& generator()          streams: reseeded with the epoch at each pass of a
///                                         shard, unless there is set_epoch
///     nlohmann::json state_dict(), void load_state_dict(const nlohmann::json&)
///                                         streams: their position, so that resuming need not read
///                                         the samples before it
///     int64_t num_shards(), Dataset shard(int64_t index, int64_t count)
///                                         streams that can shard themselves, for instance by files
/// Threads: with workers, a map-style dataset is read by several threads at once, through a
///          non-const reference; a stream by one thread at a time.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/Exception.h>
#include <nlohmann/json_fwd.hpp>

#include "accelerate/base/fields.h"
#include "accelerate/tensors/tree.h"

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
concept ItemIndexedDataset = requires(Dataset& dataset, size_t index) {
  dataset.get(index);
  dataset.size();
};

namespace internal {

template <typename Dataset>
concept ItemStream = requires(Dataset& dataset) {
  { dataset.next().has_value() } -> std::convertible_to<bool>;
  *dataset.next();
};

template <typename Dataset>
concept BlockStream = !ListIndexedDataset<Dataset> && requires(Dataset& dataset, size_t count) {
  requires kIsVector<typename Unwrapped<decltype(dataset.get_batch(count))>::Type>;
};

}  // namespace internal

template <typename Dataset>
concept MapStyleDataset = TensorIndexedDataset<Dataset> || ListIndexedDataset<Dataset> ||
                          ItemIndexedDataset<Dataset> || internal::kIsVector<Dataset>;

template <typename Dataset>
concept StreamStyleDataset =
    !MapStyleDataset<Dataset> && (internal::ItemStream<Dataset> || internal::BlockStream<Dataset>);

template <typename Dataset>
concept ReadableDataset = MapStyleDataset<Dataset> || StreamStyleDataset<Dataset>;

template <typename Dataset>
concept SelfShardingDataset =
    StreamStyleDataset<Dataset> && requires(Dataset& dataset, int64_t number) {
      { dataset.num_shards() } -> std::convertible_to<int64_t>;
      { dataset.shard(number, number) } -> std::convertible_to<Dataset>;
    };

template <typename Dataset>
concept StatefulDataset = requires(Dataset& dataset, const nlohmann::json& state) {
  { dataset.state_dict() } -> std::same_as<nlohmann::json>;
  dataset.load_state_dict(state);
};

namespace internal {

template <typename Dataset>
concept HasSetEpoch = requires(Dataset& dataset, int64_t epoch) { dataset.set_epoch(epoch); };

template <typename Dataset>
concept HasGenerator = requires(Dataset& dataset) {
  { dataset.generator() } -> std::convertible_to<at::Generator>;
};

/// How many samples there are; nothing where the dataset does not know.
template <typename Dataset>
std::optional<int64_t> dataset_size(const Dataset& dataset) {
  if constexpr (requires { dataset.size().has_value(); }) {
    const auto size = dataset.size();
    return size ? std::optional(static_cast<int64_t>(*size)) : std::nullopt;
  } else if constexpr (requires { dataset.size(); }) {
    return static_cast<int64_t>(dataset.size());
  } else {
    return std::nullopt;
  }
}

/// Reads any stream sample by sample.
template <StreamStyleDataset Dataset>
auto next_sample(Dataset& dataset, int64_t samples_before) {
  if constexpr (ItemStream<Dataset>) {
    return dataset.next();
  } else {
    using Block = decltype(dataset.get_batch(size_t{1}));
    using Sample = typename Unwrapped<Block>::Type::value_type;
    std::optional<Sample> sample;
    const std::optional<int64_t> size = dataset_size(dataset);
    if (size && samples_before >= *size) return sample;
    Block block = dataset.get_batch(1);
    auto take = [&sample](auto& samples) {
      if (!samples.empty()) sample.emplace(std::move(samples.front()));
    };
    if constexpr (requires { block.has_value(); }) {
      if (block.has_value()) take(*block);
    } else {
      take(block);
    }
    return sample;
  }
}

template <typename Dataset>
using SampleOfStream =
    typename Unwrapped<decltype(next_sample(std::declval<Dataset&>(), int64_t{}))>::Type;

}  // namespace internal
}  // namespace accelerate
