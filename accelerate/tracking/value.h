/// The values that trackers log: numbers, texts, tensors, and lists and dictionaries of them.
///
///   accelerator.log({{"loss", 0.25}, {"epoch", 3}, {"lr", {{"head", 0.1}, {"body", 0.01}}}});
///
/// A value is a copy and does not depend on LibTorch, so that trackers are built without it.
/// Include accelerate/tracking/run/trackers.h to make values of tensors.
/// Threads: as for any value.
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace accelerate {

class TrackerValue;

using TrackerList = std::vector<TrackerValue>;
/// Entries in the order in which they were written. The last entry of a name counts.
using TrackerDict = std::vector<std::pair<std::string, TrackerValue>>;

/// A tensor's elements, in row-major order.
struct TensorValue {
  /// Empty for a scalar.
  std::vector<int64_t> sizes;
  /// In PyTorch's spelling: "float32", "bfloat16", "int64", "bool", ...
  std::string dtype;
  std::vector<double> values;

  bool operator==(const TensorValue&) const = default;
};

/// Specialise it with `static TrackerValue make(const T&)` for types that can be logged directly.
template <typename T>
struct TrackerValueOf;

class TrackerValue {
 public:
  using Variant = std::variant<std::monostate, bool, int64_t, double, std::string, TensorValue,
                               TrackerList, TrackerDict>;

  // Values are written in braces, so the constructors are implicit.
  // NOLINTBEGIN(google-explicit-constructor)
  TrackerValue() = default;
  TrackerValue(std::nullopt_t) {}
  TrackerValue(std::same_as<bool> auto value) : value_(value) {}
  /// An integer beyond int64_t becomes a float.
  template <std::integral Integer>
    requires(!std::same_as<Integer, bool>)
  TrackerValue(Integer value) {
    if (std::in_range<int64_t>(value)) {
      value_ = static_cast<int64_t>(value);
    } else {
      value_ = static_cast<double>(value);
    }
  }
  template <std::floating_point Float>
  TrackerValue(Float value) : value_(static_cast<double>(value)) {}
  /// Null becomes None.
  TrackerValue(const char* text) {
    if (text != nullptr) value_ = std::string(text);
  }
  TrackerValue(std::string_view text) : value_(std::string(text)) {}
  TrackerValue(std::string text) : value_(std::move(text)) {}
  TrackerValue(TensorValue tensor) : value_(std::move(tensor)) {}
  TrackerValue(TrackerList list) : value_(std::move(list)) {}
  TrackerValue(TrackerDict dict) : value_(std::move(dict)) {}
  /// Braces make dictionaries; lists are written `TrackerList{1, 2}`.
  TrackerValue(std::initializer_list<std::pair<std::string, TrackerValue>> dict)
      : value_(TrackerDict(dict)) {}
  template <typename T>
  TrackerValue(const std::optional<T>& value) {
    if (value) *this = TrackerValue(*value);
  }
  template <typename T>
  TrackerValue(const std::vector<T>& values) : value_(TrackerList(values.begin(), values.end())) {}
  template <typename T>
    requires requires(const T& value) {
      { TrackerValueOf<T>::make(value) } -> std::convertible_to<TrackerValue>;
    }
  TrackerValue(const T& value) : TrackerValue(TrackerValueOf<T>::make(value)) {}
  // NOLINTEND(google-explicit-constructor)

  const Variant& variant() const { return value_; }
  bool is_none() const { return std::holds_alternative<std::monostate>(value_); }
  /// The T in it, or null; T is a type of the Variant.
  template <typename T>
  const T* get_if() const {
    return std::get_if<T>(&value_);
  }
  /// The number of a bool, an int or a float.
  std::optional<double> number() const;

  bool operator==(const TrackerValue& other) const;

 private:
  Variant value_;
};

/// The name of its type in HF Accelerate: "NoneType", "bool", "int", "float", "str",
/// "torch.Tensor", "list", "dict".
std::string_view type_name(const TrackerValue& value);

/// The text of Python's str(): "None", "True", "0.5", "tensor([1., 2.])", "{'a': 1}". Tensors
/// of more than a thousand elements are shown without their elements.
std::string value_text(const TrackerValue& value);

/// The value of that name, or null.
const TrackerValue* find(const TrackerDict& dict, std::string_view name);

}  // namespace accelerate
