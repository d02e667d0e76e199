/// Static trees as dynamic nested values (c10::IValue), and what has another type than its input.
///
/// All functions are local.
/// Threads: functions of their arguments.
/// Mirrors: accelerate utils/operations.py, get_shape, listify.
#pragma once

#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include "accelerate/tensors/tree.h"

namespace accelerate {
namespace internal {

c10::IValue shapes_of(const c10::IValue& value);
c10::IValue lists_of(const c10::IValue& value);

}  // namespace internal

/// A tree as a dynamic value: numbers, booleans, strings and tensors as such; std::vector and array
/// as lists; pairs, tuples, examples and user's structs (their tree_members) as tuples; maps as
/// dicts; an empty optional as None.
template <typename T>
c10::IValue to_ivalue(const T& value) {
  if constexpr (std::is_same_v<T, c10::IValue>) {
    return value;
  } else if constexpr (std::is_same_v<T, bool> || std::is_same_v<T, at::Tensor> ||
                       std::is_same_v<T, std::string>) {
    return value;
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<int64_t>(value);
  } else if constexpr (std::is_floating_point_v<T>) {
    return static_cast<double>(value);
  } else if constexpr (internal::kIsOptional<T>) {
    return value ? to_ivalue(*value) : c10::IValue();
  } else if constexpr (internal::kIsVector<T> || internal::kIsArray<T>) {
    c10::impl::GenericList list(c10::AnyType::get());
    list.reserve(value.size());
    for (const typename T::value_type& element : value) list.push_back(to_ivalue(element));
    return list;
  } else if constexpr (internal::kIsMap<T>) {
    using Key = typename T::key_type;
    static_assert(std::is_integral_v<Key> || std::is_same_v<Key, std::string>,
                  "a dynamic dict has numbers or strings as keys");
    using Keys = std::conditional_t<std::is_integral_v<Key>, c10::IntType, c10::StringType>;
    c10::impl::GenericDict dict(Keys::get(), c10::AnyType::get());
    dict.reserve(value.size());
    for (const auto& [key, element] : value) dict.insert(to_ivalue(key), to_ivalue(element));
    return dict;
  } else {
    static_assert(internal::kHasChildren<T>, "this type has no form as a dynamic value");
    std::vector<c10::IValue> elements;
    internal::for_each_child(
        value, [&elements](const auto& child) { elements.push_back(to_ivalue(child)); });
    return c10::ivalue::Tuple::create(std::move(elements));
  }
}

/// The same value with a list of its sizes for each tensor.
template <typename Tree>
c10::IValue get_shape(const Tree& data) {
  return internal::shapes_of(to_ivalue(data));
}

/// The same value with nested lists of numbers for each tensor, and a number for one of 0 dims.
/// Half-precision numbers come as double, like all that are not integers.
template <typename Tree>
c10::IValue listify(const Tree& data) {
  return internal::lists_of(to_ivalue(data));
}

}  // namespace accelerate
