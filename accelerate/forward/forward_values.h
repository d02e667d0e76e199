/// The tensors among the inputs of a forward call, or in what it returns.
///
/// The arguments of a C++ forward have types, so they are seen as a tree of tensors (see
/// tensors/tree.h): each tensor may be looked at and replaced, and all of them sent to a device.
/// Other values pass unchanged. See forward_call.h for whose tensors are replaced.
/// Threads: that of the call.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "absl/functional/function_ref.h"
#include "accelerate/tensors/tree.h"
#include "accelerate/tensors/tree_operations.h"

namespace accelerate {

/// What tells values from others of their types, their tensors apart.
struct ValuesKey {
  std::string text;
  /// Whether there are values besides tensors and their containers.
  bool has_others = false;
  /// False where a value has no text, so that keys may be equal though the values differ.
  bool is_known = true;
};

namespace internal {

void append_ivalue_key(const c10::IValue& value, ValuesKey& key);

template <typename T>
void append_value_key(const T& value, ValuesKey& key) {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    key.text += 'T';
  } else if constexpr (std::is_same_v<T, c10::IValue>) {
    append_ivalue_key(value, key);
  } else if constexpr (kHoldsReferences<T>) {
    key.is_known = false;
  } else if constexpr (kIsMap<T>) {
    key.text += '{';
    for (const auto& [name, element] : value) {
      key.text += key_text(name);
      append_value_key(element, key);
    }
    key.text += '}';
  } else if constexpr (kHasChildren<T>) {
    key.text += '(';
    for_each_child(value, [&key](const auto& child) { append_value_key(child, key); });
    key.text += ')';
  } else if constexpr (kIsVector<T> || kIsArray<T>) {
    key.text += '[';
    for (const typename T::value_type each : value) append_value_key(each, key);
    key.text += ']';
  } else if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
    key.has_others = true;
    key.text.append(reinterpret_cast<const char*>(&value), sizeof(value));
  } else if constexpr (std::is_convertible_v<const T&, std::string_view>) {
    key.has_others = true;
    const std::string_view text = value;
    append_value_key(text.size(), key);
    key.text += text;
  } else if constexpr (std::is_empty_v<T>) {
    key.text += '-';  // std::nullopt
  } else {
    key.is_known = false;
  }
}

}  // namespace internal

class ForwardValues {
 public:
  /// Calls fn for each tensor, in the order of the arguments and, inside of one, of tree_for_each;
  /// assigning to it replaces it. Tensors may be undefined.
  virtual void for_each_tensor(absl::FunctionRef<void(at::Tensor&)> fn) = 0;
  /// The same tensors, as they are.
  virtual void for_each_tensor(absl::FunctionRef<void(const at::Tensor&)> fn) const = 0;
  /// Appends what tells these values from others, their tensors apart.
  virtual void append_key(ValuesKey& key) const = 0;
  /// As accelerate::send_to_device of each argument. Map entries under one of `skip_keys` stay.
  virtual void send_to_device(c10::Device device, const SendToDeviceOptions& options = {}) = 0;

  /// The tensors, in the order of for_each_tensor.
  std::vector<at::Tensor> tensors() const;
  /// Replaces them, in that order. Errors: c10::Error for another number of tensors.
  void set_tensors(std::vector<at::Tensor> tensors);

  /// That of the first tensor; absent without tensors.
  std::optional<c10::Device> find_device() const;

 protected:
  ~ForwardValues() = default;
};

namespace internal {

// Puts tensors without elements in the place of all, because containers of LibTorch take no
// undefined ones.
void forget_tensors(ForwardValues& values);

}  // namespace internal

}  // namespace accelerate
