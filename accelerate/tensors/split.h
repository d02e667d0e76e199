/// A rank's contiguous share of something that all ranks have: prompts, rows, files, a dataset.
///
/// With n entries, the first n mod size ranks get one more than the others. Local: a function of
/// rank and size. The argument is never changed.
/// Errors: c10::ValueError for a value without a length, members of different lengths, and padding
///         where there is no last entry.
/// Threads: functions of their arguments.
/// Mirrors: accelerate state.py, PartialState.split_between_processes.
/// Differs: tuples can be padded; a nested map is split by what is in it, not by its keys.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/Exception.h>

#include "accelerate/tensors/tree.h"

namespace accelerate {

/// Entries [begin, end), and then copies of the last entry of all until there are `length`.
struct ProcessShare {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t length = 0;

  /// Errors: c10::ValueError for a rank that is not in [0, size), and for padding nothing.
  static ProcessShare of(int64_t entries, int rank, int size, bool apply_padding);
  int64_t padding() const { return length - (end - begin); }
};

/// A rank's view of a dataset with `size()` and `get(index)`, which it owns.
template <typename Dataset>
class DatasetShare {
 public:
  DatasetShare(Dataset dataset, const ProcessShare& share, int64_t entries)
      : dataset_(std::move(dataset)), share_(share), last_(entries - 1) {}

  size_t size() const { return static_cast<size_t>(share_.length); }
  decltype(auto) get(size_t index) { return dataset_.get(source_index(index)); }
  /// The index in the whole dataset that `get(index)` reads.
  /// Errors: c10::IndexError beyond the share.
  size_t source_index(size_t index) const {
    TORCH_CHECK_INDEX(index < size(), "entry ", index, " of a share of ", size());
    const int64_t own = share_.begin + static_cast<int64_t>(index);
    return static_cast<size_t>(own < share_.end ? own : last_);
  }
  Dataset& dataset() { return dataset_; }

 private:
  Dataset dataset_;
  ProcessShare share_;
  int64_t last_;
};

namespace internal {

// The parts of split_between_processes for each type: its length, and the entries of a share.
int64_t split_length(const at::Tensor& tensor);
at::Tensor split_part(const at::Tensor& tensor, const ProcessShare& share);
int64_t split_length(const c10::IValue& value);
c10::IValue split_part(const c10::IValue& value, const ProcessShare& share);
[[noreturn]] void throw_no_length(const std::string& type);
int64_t common_length(std::optional<int64_t> so_far, int64_t length);

template <typename T>
concept IndexedDataset = requires(T& dataset, size_t index) {
  dataset.get(index);
  dataset.size();
} && !kHasChildren<T> && !kIsVector<T>;

template <typename T>
int64_t split_length_of(const T& value) {
  if constexpr (std::is_same_v<T, at::Tensor> || std::is_same_v<T, c10::IValue>) {
    return split_length(value);
  } else if constexpr (kIsVector<T> || std::is_same_v<T, std::string>) {
    return static_cast<int64_t>(value.size());
  } else if constexpr (kIsOptional<T>) {
    if (!value) throw_no_length("nullopt");
    return split_length_of(*value);
  } else {
    static_assert(kHasChildren<T>, "split_between_processes: this type has no length");
    std::optional<int64_t> length;
    for_each_child(value, [&length](const auto& child) {
      length = common_length(length, split_length_of(child));
    });
    if (!length) throw_no_length("empty map");
    return *length;
  }
}

template <typename T>
void split_in_place(T& value, const ProcessShare& share) {
  if constexpr (std::is_same_v<T, at::Tensor> || std::is_same_v<T, c10::IValue>) {
    value = split_part(value, share);
  } else if constexpr (kIsVector<T>) {
    T part(std::make_move_iterator(value.begin() + share.begin),
           std::make_move_iterator(value.begin() + share.end));
    if (share.padding() > 0) {
      // The last entry may have moved.
      const auto last = share.end == static_cast<int64_t>(value.size()) && !part.empty()
                            ? part.back()
                            : value.back();
      part.insert(part.end(), static_cast<size_t>(share.padding()), last);
    }
    value = std::move(part);
  } else if constexpr (kHasChildren<T>) {
    for_each_child(value, [&share](auto& child) { split_in_place(child, share); });
  }
}

}  // namespace internal

/// Rank `rank`'s share of `inputs`: entries of a std::vector, rows of a tensor, entries of a
/// c10::IValue's list or tuple. Maps, dicts, std::tuples, examples and user's structs are split
/// member by member, and all members must have one length. Text is not split: a std::string is
/// returned whole. A rank alone gets everything. With `apply_padding` shares are padded to equal
/// lengths with copies of the last of all entries.
template <typename T>
  requires(!internal::IndexedDataset<T>)
T split_between_processes(int rank, int size, T inputs, bool apply_padding = false) {
  if (size == 1) return inputs;
  const int64_t length = internal::split_length_of(inputs);
  if constexpr (!std::is_same_v<T, std::string>) {
    internal::split_in_place(inputs, ProcessShare::of(length, rank, size, apply_padding));
  }
  return inputs;
}

/// The same for a map-style dataset (see data/dataset.h), as a view that reads what is asked for.
template <internal::IndexedDataset Dataset>
DatasetShare<Dataset> split_between_processes(int rank, int size, Dataset inputs,
                                              bool apply_padding = false) {
  const auto entries = static_cast<int64_t>([&] {
    if constexpr (requires { inputs.size().value(); }) {
      return inputs.size().value();
    } else {
      return inputs.size();
    }
  }());
  const ProcessShare share = size == 1 ? ProcessShare{.begin = 0, .end = entries, .length = entries}
                                       : ProcessShare::of(entries, rank, size, apply_padding);
  return DatasetShare<Dataset>(std::move(inputs), share, entries);
}

}  // namespace accelerate
