/// Values that can travel between ranks: to bytes and tensors, and back.
///
/// Portable are tensors, numbers, booleans, enumerators, strings, vectors, arrays, pairs, tuples,
/// optionals and maps of portable values, c10::IValue, torch::data's examples and the tree_members
/// of a user's struct that can be made empty (members it does not list stay as made). The bytes are
/// for ranks of one job on machines of one kind; they are not a file format.
/// Errors: c10::Error for bytes that end too early.
/// Threads: functions of their arguments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "accelerate/tensors/tree.h"

namespace accelerate {

/// A value on its way: the tensors by themselves, everything else as bytes.
class PortableWriter {
 public:
  void write_bytes(const void* data, size_t size);
  void write_string(const std::string& text);
  /// Its dtype and shape go to the bytes.
  void write_tensor(const at::Tensor& tensor);
  void write_ivalue(const c10::IValue& value);

  const std::string& bytes() const { return bytes_; }
  const std::vector<at::Tensor>& tensors() const { return tensors_; }
  /// The bytes with the tensors' data after them.
  std::string pack() &&;

 private:
  std::string bytes_;
  std::vector<at::Tensor> tensors_;
};

class PortableReader {
 public:
  /// Reads the bytes that a writer wrote; the tensors are transferred separately.
  explicit PortableReader(std::string bytes) : bytes_(std::move(bytes)) {}

  void read_bytes(void* data, size_t size);
  std::string read_string();
  /// An empty tensor of the written dtype and shape on `device`, to be filled by the caller.
  at::Tensor read_tensor();
  void read_ivalue(c10::IValue& value);

  /// Fills the tensors made so far from what PortableWriter::pack put after the bytes.
  void unpack();

  void set_device(c10::Device device) { device_ = device; }
  /// The tensors made so far.
  const std::vector<at::Tensor>& tensors() const { return tensors_; }

 private:
  std::string bytes_;
  size_t used_ = 0;
  c10::Device device_ = c10::kCPU;
  std::vector<at::Tensor> tensors_;
};

namespace internal {

// Whether a T can travel if its parts can; `Around` are the types it is a part of, which may hold
// themselves.
template <typename T, typename... Around>
constexpr bool is_portable();

template <typename... Around, typename... Parts>
constexpr bool are_portable(std::tuple<Parts...>* /*type*/) {
  return (is_portable<std::remove_cvref_t<Parts>, Around...>() && ...);
}

template <typename T, typename... Around>
constexpr bool is_portable() {
  if constexpr ((std::is_same_v<T, Around> || ...)) {
    return true;
  } else if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T> ||
                       std::is_same_v<T, std::string> || std::is_same_v<T, at::Tensor> ||
                       std::is_same_v<T, c10::IValue>) {
    return true;
  } else if constexpr (kIsMap<T>) {
    return is_portable<typename T::key_type, T, Around...>() &&
           is_portable<typename T::mapped_type, T, Around...>();
  } else if constexpr (kIsVector<T> || kIsArray<T> || kIsOptional<T>) {
    return is_portable<typename T::value_type, T, Around...>();
  } else if constexpr (kHasMembers<T> && (kIsTuple<T> || std::is_default_constructible_v<T>)) {
    using Members = decltype(members_of(std::declval<T&>()));
    return are_portable<T, Around...>(static_cast<Members*>(nullptr));
  } else {
    return false;
  }
}

}  // namespace internal

template <typename T>
concept Portable = internal::is_portable<T>();

template <Portable T>
void write_portable(PortableWriter& out, const T& value) {
  using internal::kIsMap, internal::kIsOptional, internal::kIsVector;
  if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
    out.write_bytes(&value, sizeof(value));
  } else if constexpr (std::is_same_v<T, std::string>) {
    out.write_string(value);
  } else if constexpr (std::is_same_v<T, at::Tensor>) {
    out.write_tensor(value);
  } else if constexpr (std::is_same_v<T, c10::IValue>) {
    out.write_ivalue(value);
  } else if constexpr (internal::kHasMembers<T>) {
    std::apply([&](const auto&... member) { (write_portable(out, member), ...); },
               internal::members_of(const_cast<T&>(value)));
  } else if constexpr (kIsOptional<T>) {
    write_portable(out, value.has_value());
    if (value) write_portable(out, *value);
  } else if constexpr (kIsVector<T>) {
    write_portable(out, static_cast<uint64_t>(value.size()));
    for (const typename T::value_type& element : value) write_portable(out, element);
  } else if constexpr (kIsMap<T>) {
    write_portable(out, static_cast<uint64_t>(value.size()));
    for (const auto& [key, element] : value) {
      write_portable(out, key);
      write_portable(out, element);
    }
  } else {
    for (const auto& element : value) write_portable(out, element);
  }
}

template <Portable T>
void read_portable(PortableReader& in, T& value) {
  using internal::kIsMap, internal::kIsOptional, internal::kIsVector;
  if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
    in.read_bytes(&value, sizeof(value));
  } else if constexpr (std::is_same_v<T, std::string>) {
    value = in.read_string();
  } else if constexpr (std::is_same_v<T, at::Tensor>) {
    value = in.read_tensor();
  } else if constexpr (std::is_same_v<T, c10::IValue>) {
    in.read_ivalue(value);
  } else if constexpr (internal::kHasMembers<T>) {
    std::apply([&](auto&... member) { (read_portable(in, member), ...); },
               internal::members_of(value));
  } else if constexpr (kIsOptional<T>) {
    bool present = false;
    read_portable(in, present);
    value.reset();
    if (present) read_portable(in, value.emplace());
  } else if constexpr (kIsVector<T>) {
    uint64_t size = 0;
    read_portable(in, size);
    value.clear();
    for (uint64_t i = 0; i < size; ++i) {
      typename T::value_type element{};
      read_portable(in, element);
      value.push_back(std::move(element));
    }
  } else if constexpr (kIsMap<T>) {
    uint64_t size = 0;
    read_portable(in, size);
    value.clear();
    for (uint64_t i = 0; i < size; ++i) {
      typename T::key_type key{};
      read_portable(in, key);
      read_portable(in, value[std::move(key)]);
    }
  } else {
    for (auto& element : value) read_portable(in, element);
  }
}

/// A value as bytes only, its tensors' data included.
template <Portable T>
std::string to_bytes(const T& value) {
  PortableWriter writer;
  write_portable(writer, value);
  return std::move(writer).pack();
}

/// The value that `to_bytes` was given; tensors are on the CPU.
template <Portable T>
T from_bytes(std::string bytes) {
  PortableReader reader(std::move(bytes));
  T value{};
  read_portable(reader, value);
  reader.unpack();
  return value;
}

}  // namespace accelerate
