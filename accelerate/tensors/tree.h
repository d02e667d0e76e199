/// Nested values with tensors in them ("trees"): a batch, a model's output, an optimizer's state.
///
/// A tree is
///   - an at::Tensor;
///   - a std::vector, array, pair, tuple, map (its values) or optional of trees;
///   - a c10::IValue: tensor, list, tuple and dict (its values) are descended into;
///   - a user's type for which argument-dependent lookup finds
///         auto tree_members(T& value) { return std::tie(value.images, value.labels); }
///   - a type with public members `.data` and `.target`, or `.data` alone where `T::TargetType` is
///     void: torch::data::Example;
///   - anything else: a leaf. Leaves (numbers, strings, pointers, std::unordered_map, whose order
///     ranks would not share, ...) are passed through and never looked into.
/// Tensors are visited in a fixed order: members and elements as declared, maps by key, dicts by
/// insertion. What ranks exchange is visited by key in dicts too (internal::DictOrder), since ranks
/// with the same keys may have inserted them in another order.
///
/// An undefined tensor is visited like any other.
/// Threads: functions of their arguments.
#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/StringUtil.h>

#include "absl/functional/function_ref.h"

namespace c10 {
struct IValue;
}  // namespace c10

namespace accelerate {
namespace internal {

// The order in which the entries of a c10::IValue's dict are visited. They stay where they are.
enum class DictOrder { kInsertion, kKeys };

// A function sees each tensor of the value. To change one it assigns to it; an IValue whose lists
// and dicts others share is rebuilt and not changed under them.
void visit_ivalue(c10::IValue& value, absl::FunctionRef<void(at::Tensor&)> fn,
                  DictOrder order = DictOrder::kInsertion);
void visit_ivalue(const c10::IValue& value, absl::FunctionRef<void(const at::Tensor&)> fn,
                  DictOrder order = DictOrder::kInsertion);

// The value with fn(part) for each part of a container; itself where it is none.
c10::IValue map_ivalue_children(const c10::IValue& value,
                                absl::FunctionRef<c10::IValue(const c10::IValue&)> fn,
                                DictOrder order = DictOrder::kInsertion);
// For all that are not containers, tensors or not.
void visit_ivalue_leaves(const c10::IValue& value, absl::FunctionRef<void(const c10::IValue&)> fn);
c10::IValue map_ivalue_leaves(const c10::IValue& value,
                              absl::FunctionRef<c10::IValue(const c10::IValue&)> fn);

template <typename T>
concept HasTreeMembers = requires(T& value) { tree_members(value); };

template <typename T>
concept IsExample = std::is_class_v<T> && requires(T& value) {
  value.data;
  value.target;
};

template <typename T>
concept IsUnlabelledExample = std::is_class_v<T> && std::is_void_v<typename T::TargetType> &&
                              requires(T& value) { value.data; };

template <typename T>
constexpr bool kIsOptional = false;
template <typename T>
constexpr bool kIsOptional<std::optional<T>> = true;

template <typename T>
constexpr bool kIsVector = false;
template <typename T, typename Allocator>
constexpr bool kIsVector<std::vector<T, Allocator>> = true;

template <typename T>
constexpr bool kIsArray = false;
template <typename T, size_t N>
constexpr bool kIsArray<std::array<T, N>> = true;

// Elements that cannot hold a tensor are not worth a loop.
template <typename T>
constexpr bool kIsSequence = false;
template <typename T>
  requires(kIsVector<T> || kIsArray<T>)
constexpr bool kIsSequence<T> = !std::is_arithmetic_v<typename T::value_type>;

template <typename T>
constexpr bool kIsTuple = false;
template <typename First, typename Second>
constexpr bool kIsTuple<std::pair<First, Second>> = true;
template <typename... Elements>
constexpr bool kIsTuple<std::tuple<Elements...>> = true;

template <typename T>
constexpr bool kHoldsReferences = false;
template <typename First, typename Second>
constexpr bool kHoldsReferences<std::pair<First, Second>> =
    std::is_reference_v<First> || std::is_reference_v<Second>;
template <typename... Elements>
constexpr bool kHoldsReferences<std::tuple<Elements...>> = (std::is_reference_v<Elements> || ...);

template <typename T>
constexpr bool kIsMap = false;
template <typename Key, typename T, typename Compare, typename Allocator>
constexpr bool kIsMap<std::map<Key, T, Compare, Allocator>> = true;

// Tells a function that takes leaves besides tensors that this one is not a tensor:
// fn(LeafTag(), leaf).
struct LeafTag {};

// Functions for different kinds of leaves, as one.
template <typename... Fns>
struct Overloaded : Fns... {
  using Fns::operator()...;
};
template <typename... Fns>
Overloaded(Fns...) -> Overloaded<Fns...>;  // clang 16 does not deduce aggregates by itself

// Whether a T can hold a tensor.
template <typename T>
constexpr bool kMayHoldTensors = std::is_same_v<T, at::Tensor> || std::is_same_v<T, c10::IValue> ||
                                 HasTreeMembers<T> || IsExample<T> || IsUnlabelledExample<T>;
template <typename T>
constexpr bool kMayHoldTensors<std::optional<T>> = kMayHoldTensors<T>;
template <typename T, typename Allocator>
constexpr bool kMayHoldTensors<std::vector<T, Allocator>> = kMayHoldTensors<T>;
template <typename T, size_t N>
constexpr bool kMayHoldTensors<std::array<T, N>> = kMayHoldTensors<T>;
template <typename First, typename Second>
constexpr bool kMayHoldTensors<std::pair<First, Second>> =
    kMayHoldTensors<First> || kMayHoldTensors<Second>;
template <typename... Elements>
constexpr bool kMayHoldTensors<std::tuple<Elements...>> = (kMayHoldTensors<Elements> || ...);
template <typename Key, typename T, typename Compare, typename Allocator>
constexpr bool kMayHoldTensors<std::map<Key, T, Compare, Allocator>> = kMayHoldTensors<T>;

// A std::vector of what holds no tensors: one entry per sample, such as names or ids.
template <typename T>
constexpr bool kIsList = false;
template <typename T, typename Allocator>
constexpr bool kIsList<std::vector<T, Allocator>> = !kMayHoldTensors<T>;

// Whether a T has parts whose number and types are known.
template <typename T>
constexpr bool kHasMembers =
    HasTreeMembers<T> || kIsTuple<T> || IsExample<T> || IsUnlabelledExample<T>;

// The parts of such a type, by reference.
template <typename T>
  requires kHasMembers<T>
auto members_of(T& value) {
  if constexpr (HasTreeMembers<T>) {
    return tree_members(value);
  } else if constexpr (kIsTuple<T>) {
    return std::apply([](auto&... element) { return std::tie(element...); }, value);
  } else if constexpr (IsUnlabelledExample<T>) {
    return std::tie(value.data);
  } else {
    return std::tie(value.data, value.target);
  }
}

// Whether a T consists of others that are looked into.
template <typename T>
constexpr bool kHasChildren =
    kHasMembers<T> || kIsOptional<T> || (kIsSequence<T> && !kIsList<T>) || kIsMap<T>;

// Calls fn(child) for each part, in order; it is const where T is.
template <typename T, typename Fn>
  requires kHasChildren<std::remove_const_t<T>>
void for_each_child(T& value, Fn&& fn) {
  using Value = std::remove_const_t<T>;
  if constexpr (kHasMembers<Value>) {
    // Members come as std::tie gives them; they are as const as the whole.
    std::apply(
        [&fn](auto&... member) {
          if constexpr (std::is_const_v<T>) {
            (fn(std::as_const(member)), ...);
          } else {
            (fn(member), ...);
          }
        },
        members_of(const_cast<Value&>(value)));
  } else if constexpr (kIsOptional<Value>) {
    if (value.has_value()) fn(*value);
  } else if constexpr (kIsMap<Value>) {
    for (auto& [key, element] : value) fn(element);
  } else {
    for (auto& element : value) fn(element);
  }
}

// Calls fn(tensor) for each tensor and, if `fn` takes it, fn(LeafTag(), leaf) for each list and
// whatever else cannot be looked into; all are const where T is.
template <typename T, typename Fn>
void visit_leaves(T& value, Fn& fn, DictOrder order = DictOrder::kInsertion) {
  using Value = std::remove_const_t<T>;
  if constexpr (std::is_same_v<Value, at::Tensor>) {
    fn(value);
  } else if constexpr (std::is_same_v<Value, c10::IValue>) {
    visit_ivalue(value, fn, order);
  } else if constexpr (kHasChildren<Value>) {
    for_each_child(value, [&fn, order](auto& child) { visit_leaves(child, fn, order); });
  } else if constexpr (std::is_invocable_v<Fn&, LeafTag, T&>) {
    fn(LeafTag(), value);
  }
}

// A key of a map as text.
template <typename Key>
std::string key_text(const Key& key) {
  if constexpr (std::is_convertible_v<const Key&, std::string_view>) {
    return c10::str('"', std::string_view(key), '"');
  } else if constexpr (std::is_enum_v<Key>) {
    return c10::str(static_cast<int64_t>(key));
  } else if constexpr (kIsTuple<Key>) {
    std::string text;
    std::apply(
        [&text](const auto&... part) {
          ((text += (text.empty() ? "(" : ", ") + key_text(part)), ...);
        },
        key);
    return text + ")";
  } else if constexpr (!std::is_pointer_v<Key> && requires(std::ostream& out) { out << key; }) {
    return c10::str(key);
  } else {
    return "?";
  }
}

// The containers of a tree as text, as in {"accuracy", "loss": [Tensor, Tensor]}, and whether it
// has keys: what ranks that visit it by key must have in common.
struct TreeShape {
  std::string text;
  bool has_keys = false;
  bool has_tensors = false;
};
using IsLeaf = std::function<bool(const c10::IValue& value)>;
// `is_leaf`, if not null, says which containers are not looked into.
void describe_ivalue(const c10::IValue& value, TreeShape& shape, const IsLeaf& is_leaf = nullptr);

template <typename T>
void describe_tree(const T& value, TreeShape& shape);

template <typename T>
void describe_parts(const T& value, const char* open, const char* close, TreeShape& shape) {
  shape.text += open;
  bool is_first = true;
  for_each_child(value, [&](const auto& child) {
    if (!std::exchange(is_first, false)) shape.text += ", ";
    describe_tree(child, shape);
  });
  shape.text += close;
}

template <typename T>
void describe_tree(const T& value, TreeShape& shape) {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    shape.has_tensors = true;
    shape.text += "Tensor";
  } else if constexpr (std::is_same_v<T, c10::IValue>) {
    describe_ivalue(value, shape);
  } else if constexpr (kIsMap<T>) {
    shape.has_keys = true;
    shape.text += "{";
    bool is_first = true;
    for (const auto& [key, element] : value) {
      if (!std::exchange(is_first, false)) shape.text += ", ";
      shape.text += key_text(key);
      if constexpr (std::is_same_v<typename T::mapped_type, at::Tensor>) {
        shape.has_tensors = true;
      } else {
        shape.text += ": ";
        describe_tree(element, shape);
      }
    }
    shape.text += "}";
  } else if constexpr (kHasMembers<T>) {
    describe_parts(value, "(", ")", shape);
  } else if constexpr (kHasChildren<T>) {
    describe_parts(value, "[", "]", shape);
  } else {
    shape.text += "value";
  }
}

}  // namespace internal

/// The same tree with fn(tensor) for each tensor; `fn` takes a const at::Tensor& and returns an
/// at::Tensor. Leaves are copied, or moved where `value` is given as an rvalue. The argument's own
/// tensors and containers stay as they are.
template <typename T, typename Fn>
  requires std::is_invocable_r_v<at::Tensor, Fn&, const at::Tensor&>
T tree_map(T value, Fn&& fn) {
  static_assert(!internal::kHoldsReferences<T>,
                "tree_map of a tuple of references would change what they refer to");
  auto replace = [&fn](at::Tensor& tensor) { tensor = fn(std::as_const(tensor)); };
  internal::visit_leaves(value, replace);
  return value;
}

/// Calls fn(const at::Tensor&) for each tensor.
template <typename T, typename Fn>
  requires std::invocable<Fn&, const at::Tensor&>
void tree_for_each(const T& value, Fn&& fn) {
  auto visit = [&fn](const at::Tensor& tensor) { fn(tensor); };
  internal::visit_leaves(value, visit);
}

}  // namespace accelerate
