/// Joins trees tensor by tensor.
///
/// Local. Threads: functions of their arguments.
/// Errors: c10::ValueError for nothing to join, structures that differ, and leaves that are no
///         tensors; c10::Error for tensors that do not fit.
/// Mirrors: accelerate utils/operations.py, concatenate.
/// Differs: structures must be equal; HF Accelerate leaves out what the first one does not have.
#pragma once

#include <cstddef>
#include <cstdint>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/Exception.h>
#include <c10/util/Type.h>

#include "accelerate/tensors/tree.h"

namespace accelerate {
namespace internal {

[[noreturn]] void throw_not_concatenable(const std::string& type);
void check_same_structure(bool same, const char* what);
at::Tensor concatenate_tensors(const std::vector<const at::Tensor*>& parts, int64_t dim);
c10::IValue concatenate_ivalues(const std::vector<const c10::IValue*>& parts, int64_t dim);

// Puts the parts' join into `whole`, which is a copy of the first part.
template <typename T>
void concatenate_into(T& whole, const std::vector<const T*>& parts, int64_t dim);

template <typename Members, size_t... I>
void concatenate_members(Members whole, const std::vector<Members>& parts, int64_t dim,
                         std::index_sequence<I...> /*which*/) {
  auto join = [&]<size_t kIndex>(std::integral_constant<size_t, kIndex>) {
    using Member = std::remove_cvref_t<std::tuple_element_t<kIndex, Members>>;
    std::vector<const Member*> of_parts;
    for (const Members& part : parts) of_parts.push_back(&std::get<kIndex>(part));
    concatenate_into(std::get<kIndex>(whole), of_parts, dim);
  };
  (join(std::integral_constant<size_t, I>()), ...);
}

// The parts of a type whose number is known, by reference.
template <typename T>
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

template <typename T>
void concatenate_into(T& whole, const std::vector<const T*>& parts, int64_t dim) {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    whole = concatenate_tensors(parts, dim);
  } else if constexpr (std::is_same_v<T, c10::IValue>) {
    whole = concatenate_ivalues(parts, dim);
  } else if constexpr (kIsOptional<T>) {
    std::vector<const typename T::value_type*> values;
    for (const T* part : parts) {
      check_same_structure(part->has_value() == whole.has_value(), "an optional value");
      if (*part) values.push_back(&**part);
    }
    if (whole) concatenate_into(*whole, values, dim);
  } else if constexpr (kIsMap<T>) {
    for (const T* part : parts) check_same_structure(part->size() == whole.size(), "keys");
    for (auto& [key, element] : whole) {
      std::vector<const typename T::mapped_type*> elements;
      for (const T* part : parts) {
        auto found = part->find(key);
        check_same_structure(found != part->end(), "keys");
        elements.push_back(&found->second);
      }
      concatenate_into(element, elements, dim);
    }
  } else if constexpr (kIsSequence<T> && !kIsList<T>) {
    for (const T* part : parts) check_same_structure(part->size() == whole.size(), "lengths");
    for (size_t i = 0; i < whole.size(); ++i) {
      std::vector<const typename T::value_type*> elements;
      for (const T* part : parts) elements.push_back(&(*part)[i]);
      concatenate_into(whole[i], elements, dim);
    }
  } else if constexpr (kHasChildren<T>) {
    using Members = decltype(members_of(whole));
    std::vector<Members> of_parts;
    for (const T* part : parts) of_parts.push_back(members_of(const_cast<T&>(*part)));
    concatenate_members(members_of(whole), of_parts, dim,
                        std::make_index_sequence<std::tuple_size_v<Members>>());
  } else if (parts.size() > 1) {
    throw_not_concatenable(std::string(c10::demangle_type<T>()));
  }
}

}  // namespace internal

/// The trees' tensors, joined along `dim` at each place. A single tree is returned as it is.
template <typename Tree>
Tree concatenate(const std::vector<Tree>& data, int64_t dim = 0) {
  TORCH_CHECK_VALUE(!data.empty(), "concatenate: there is nothing to join");
  Tree whole = data.front();
  if (data.size() == 1) return whole;
  std::vector<const Tree*> parts;
  parts.reserve(data.size());
  for (const Tree& part : data) parts.push_back(&part);
  internal::concatenate_into(whole, parts, dim);
  return whole;
}

}  // namespace accelerate
