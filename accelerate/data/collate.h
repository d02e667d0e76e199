/// Makes a batch of samples.
///
///     samples                          batch
///     tensors, trees of tensors        the same tree, tensors stacked along a new dim 0
///     numbers, booleans                a tensor: int64, bool, and the floating type as it is
///     tuples, pairs                    a tuple of what their members give
///     torch::data::Example             an Example of what data and target give
///     anything else                    a std::vector of the samples
///
/// A tree is one of tensors/tree.h with tensors only, such as a user's struct.
/// Threads: functions of their arguments.
/// Mirrors: torch.utils.data.default_collate
/// Differs: float stays float32.
#pragma once

#include <algorithm>
#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/Exception.h>

#include "absl/container/inlined_vector.h"
#include "accelerate/tensors/tree.h"

namespace accelerate {
namespace internal {

// Stacks one tensor of each sample. Errors: c10::ValueError naming the place in the batch of the
// first that differs from the first sample's, and both shapes or dtypes.
at::Tensor stack_samples(const std::vector<at::Tensor>& tensors);

template <typename Sample>
using Samples = std::vector<const Sample*>;

template <typename Sample>
constexpr bool kIsNumber = std::is_arithmetic_v<Sample>;

template <typename Sample>
auto collate(const Samples<Sample>& samples);

template <typename Sample>
at::Tensor collate_numbers(const Samples<Sample>& samples) {
  using Wide = std::conditional_t<std::is_floating_point_v<Sample>, double, int64_t>;
  std::vector<Wide> numbers;
  numbers.reserve(samples.size());
  for (const Sample* sample : samples) numbers.push_back(static_cast<Wide>(*sample));
  const at::Tensor tensor = at::tensor(c10::ArrayRef<Wide>(numbers));
  if constexpr (std::is_same_v<Sample, bool>) return tensor.to(at::kBool);
  if constexpr (std::is_same_v<Sample, float>) return tensor.to(at::kFloat);
  return tensor;
}

template <typename Sample, size_t... I>
auto collate_tuple(const Samples<Sample>& samples, std::index_sequence<I...> /*members*/) {
  auto member = [&samples]<size_t J>(std::integral_constant<size_t, J> /*number*/) {
    using Member = std::tuple_element_t<J, Sample>;
    Samples<Member> members;
    members.reserve(samples.size());
    for (const Sample* sample : samples) members.push_back(&std::get<J>(*sample));
    return collate(members);
  };
  // Not std::tuple{...}, which would copy a lone member that is a tuple itself.
  return std::tuple<decltype(member(std::integral_constant<size_t, I>()))...>(
      member(std::integral_constant<size_t, I>())...);
}

// Whether both have the same containers of the same sizes, keys and alternatives.
template <typename T>
bool same_structure(const T& a, const T& b) {
  if constexpr (kIsOptional<T>) {
    if (a.has_value() != b.has_value()) return false;
  } else if constexpr (kIsMap<T>) {
    auto key = [](const auto& entry) -> const auto& { return entry.first; };
    if (!std::ranges::equal(a, b, {}, key, key)) return false;
  } else if constexpr (kIsSequence<T>) {
    if (a.size() != b.size()) return false;
  }
  bool same = true;
  if constexpr (kHasChildren<T>) {
    // Now the children at one place are of one type.
    absl::InlinedVector<const void*, 8> others;
    for_each_child(b, [&others](const auto& child) { others.push_back(&child); });
    auto other = others.begin();
    for_each_child(a, [&]<typename Child>(const Child& child) {
      same = same && same_structure(child, *static_cast<const Child*>(*other++));
    });
  }
  return same;
}

template <typename Sample>
Sample collate_tree(const Samples<Sample>& samples) {
  std::vector<std::vector<at::Tensor>> columns;
  for (size_t i = 0; i < samples.size(); ++i) {
    size_t column = 0;
    Overloaded collect{[&](const at::Tensor& tensor) {
                         if (i == 0) columns.emplace_back();
                         if (column < columns.size()) columns[column].push_back(tensor);
                         ++column;
                       },
                       [](LeafTag /*tag*/, const auto& /*leaf*/) {
                         TORCH_CHECK_VALUE(false,
                                           "collate: a sample's tree holds something else than "
                                           "tensors, of which a batch of the same type has room "
                                           "for one; pass a collate function");
                       }};
    visit_leaves(*samples[i], collect);
    TORCH_CHECK_VALUE(column == columns.size() && same_structure(*samples[0], *samples[i]),
                      "collate: samples of a batch must have one structure: sample ", i,
                      " of the batch differs from sample 0 in its members, lengths or keys");
  }
  size_t column = 0;
  return tree_map(*samples.front(),
                  [&](const at::Tensor& /*first*/) { return stack_samples(columns[column++]); });
}

// torch::data::Example has members `data` and `target` of the types it is a template of.
template <typename Sample>
struct ExampleOf;
template <template <typename, typename> typename Example, typename Data, typename Target>
struct ExampleOf<Example<Data, Target>> {
  template <typename NewData, typename NewTarget>
  using With = Example<NewData, NewTarget>;
};

template <typename Sample>
concept IsTorchExample = IsExample<Sample> && requires {
  typename ExampleOf<Sample>;
} && !HasTreeMembers<Sample> && requires { typename ExampleOf<Sample>::template With<int, int>; };

template <typename Sample>
concept IsUnlabelledTorchExample =
    IsUnlabelledExample<Sample> && !HasTreeMembers<Sample> &&
    requires { typename ExampleOf<Sample>::template With<int, void>; };

template <typename Sample>
auto collate(const Samples<Sample>& samples) {
  if constexpr (kIsNumber<Sample>) {
    return collate_numbers(samples);
  } else if constexpr (kIsTuple<Sample>) {
    return collate_tuple(samples, std::make_index_sequence<std::tuple_size_v<Sample>>());
  } else if constexpr (IsTorchExample<Sample>) {
    Samples<decltype(Sample::data)> data;
    Samples<decltype(Sample::target)> targets;
    for (const Sample* sample : samples) {
      data.push_back(&sample->data);
      targets.push_back(&sample->target);
    }
    using Data = decltype(collate(data));
    using Target = decltype(collate(targets));
    return typename ExampleOf<Sample>::template With<Data, Target>(collate(data), collate(targets));
  } else if constexpr (IsUnlabelledTorchExample<Sample>) {
    Samples<decltype(Sample::data)> data;
    for (const Sample* sample : samples) data.push_back(&sample->data);
    using Data = decltype(collate(data));
    return typename ExampleOf<Sample>::template With<Data, void>(collate(data));
  } else if constexpr (kMayHoldTensors<Sample>) {
    return collate_tree(samples);
  } else {
    std::vector<Sample> list;
    list.reserve(samples.size());
    for (const Sample* sample : samples) list.push_back(*sample);
    return list;
  }
}

}  // namespace internal

/// The rule above. A collate function of one's own is any callable that takes a
/// std::vector<Sample> and returns the batch.
struct DefaultCollate {
  /// Errors: c10::ValueError for no samples, and for samples of different shapes, dtypes or
  ///         structures, and for trees with members other than tensors.
  template <typename Sample>
  auto operator()(const std::vector<Sample>& samples) const {
    TORCH_CHECK_VALUE(!samples.empty(), "collate: a batch has no samples");
    if constexpr (std::is_same_v<Sample, bool>) {
      // A std::vector<bool> has no booleans to point to.
      const std::vector<int64_t> numbers(samples.begin(), samples.end());
      return at::tensor(c10::ArrayRef<int64_t>(numbers)).to(at::kBool);
    } else {
      internal::Samples<Sample> pointers;
      pointers.reserve(samples.size());
      for (const Sample& sample : samples) pointers.push_back(&sample);
      return internal::collate(pointers);
    }
  }
};

}  // namespace accelerate
