/// Structs of options as JSON and back, by the list of their fields (accelerate/base/fields.h), and
/// single fields of JSON objects as the type that they must have.
///
/// A field may be a bool, a number, a text, an enumeration (its text, or else its number), an
/// absl::Duration (seconds), an optional (absent: null), a list, a map from texts, or another such
/// struct. A std::function has no JSON and is left out.
/// Errors:  reading throws c10::ValueError naming the object, the field and what it has instead.
/// Threads: pure functions.
/// Mirrors: accelerate utils/dataclasses.py, KwargsHandler.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <map>
#include <ranges>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include "absl/time/time.h"
#include "accelerate/base/document.h"
#include "accelerate/base/enum_text.h"
#include "accelerate/base/fields.h"

namespace accelerate {

/// All fields by name, in their order.
template <HasFields T>
nlohmann::ordered_json to_dict(const T& object);

namespace internal {

template <typename T>
constexpr bool kIsFunctionField = false;
template <typename Signature>
constexpr bool kIsFunctionField<std::function<Signature>> = true;
template <typename T>
constexpr bool kIsOptionalField = requires(T& field) { field.has_value(); };
template <typename T>
constexpr bool kIsMapField = false;
template <typename T>
constexpr bool kIsMapField<std::map<std::string, T>> = true;
template <typename T>
concept ListField = std::ranges::input_range<T> && !std::convertible_to<T, std::string_view> &&
                    !kIsMapField<T> && !std::same_as<T, nlohmann::ordered_json>;

template <typename T>
nlohmann::ordered_json to_json_value(const T& field) {
  if constexpr (HasFields<T>) {
    return to_dict(field);
  } else if constexpr (EnumWithText<T>) {
    return to_string(field);
  } else if constexpr (std::is_enum_v<T>) {
    return static_cast<std::underlying_type_t<T>>(field);
  } else if constexpr (std::same_as<T, absl::Duration>) {
    return absl::ToDoubleSeconds(field);
  } else if constexpr (kIsOptionalField<T>) {
    return field ? to_json_value(*field) : nlohmann::ordered_json();
  } else if constexpr (kIsMapField<T>) {
    auto object = nlohmann::ordered_json::object();
    for (const auto& [name, value] : field) object[name] = to_json_value(value);
    return object;
  } else if constexpr (ListField<T>) {
    auto list = nlohmann::ordered_json::array();
    for (const auto& value : field) list.push_back(to_json_value(value));
    return list;
  } else {
    return field;
  }
}

/// False where the value is of another type; the field is unspecified then.
template <typename T>
bool json_to(const nlohmann::ordered_json& value, T& field) {
  if constexpr (HasFields<T>) {
    bool fits = value.is_object();
    visit_fields(field, [&](const char* name, auto& member) {
      fits = fits && value.contains(name) && json_to(value.at(name), member);
    });
    return fits;
  } else if constexpr (std::is_enum_v<T>) {
    std::underlying_type_t<T> number{};
    if (!json_to(value, number)) return false;
    field = static_cast<T>(number);
    return true;
  } else if constexpr (std::integral<T> && !std::same_as<T, bool>) {
    if (!value.is_number_integer()) return false;
    const bool fits = value.is_number_unsigned() ? std::in_range<T>(value.get<uint64_t>())
                                                 : std::in_range<T>(value.get<int64_t>());
    if (fits) field = value.get<T>();
    return fits;
  } else if constexpr (std::is_arithmetic_v<T> || std::same_as<T, std::string>) {
    const bool fits = std::same_as<T, bool>          ? value.is_boolean()
                      : std::same_as<T, std::string> ? value.is_string()
                                                     : value.is_number();
    if (fits) field = value.get<T>();
    return fits;
  } else if constexpr (std::same_as<T, std::tuple<double, double>>) {
    return value.is_array() && value.size() == 2 && json_to(value[0], std::get<0>(field)) &&
           json_to(value[1], std::get<1>(field));
  } else if constexpr (kIsOptionalField<T>) {
    field.reset();
    return value.is_null() || json_to(value, field.emplace());
  } else {
    static_assert(ListField<T>);
    if (!value.is_array()) return false;
    field.clear();
    for (const nlohmann::ordered_json& item : value) {
      if (!json_to(item, field.emplace_back())) return false;
    }
    return true;
  }
}

/// The value under `name` in `object`, which messages call `where`.
inline const nlohmann::ordered_json& json_member(const nlohmann::ordered_json& object,
                                                 const char* name, const std::string& where) {
  TORCH_CHECK_VALUE(object.is_object(), where, " is ", excerpt_of(object),
                    ", which is not an object");
  const auto found = object.find(name);
  TORCH_CHECK_VALUE(found != object.end(), where, " has no \"", name, "\"");
  return *found;
}

template <typename T>
void read_field(const nlohmann::ordered_json& object, const char* name, const std::string& where,
                T& field) {
  const nlohmann::ordered_json& value = json_member(object, name, where);
  TORCH_CHECK_VALUE(json_to(value, field), where, ": \"", name, "\" is ", excerpt_of(value),
                    ", which is of another type");
}

template <typename T>
T field_of(const nlohmann::ordered_json& object, const char* name, const std::string& where) {
  T field{};
  read_field(object, name, where, field);
  return field;
}

/// All fields of a struct.
template <HasFields T>
void read_fields(const nlohmann::ordered_json& object, const std::string& where, T& fields) {
  visit_fields(fields,
               [&](const char* name, auto& field) { read_field(object, name, where, field); });
}

}  // namespace internal

template <HasFields T>
nlohmann::ordered_json to_dict(const T& object) {
  auto dict = nlohmann::ordered_json::object();
  visit_fields(object, [&dict]<typename Field>(const char* name, const Field& value) {
    if constexpr (!internal::kIsFunctionField<Field>) dict[name] = internal::to_json_value(value);
  });
  return dict;
}

/// The fields whose value differs from that of a T made without arguments. Such structs do not read
/// the environment, so the defaults are the same everywhere.
template <HasFields T>
  requires std::default_initializable<T>
nlohmann::ordered_json to_kwargs(const T& object) {
  const nlohmann::ordered_json defaults = to_dict(T{});
  const nlohmann::ordered_json dict = to_dict(object);
  auto kwargs = nlohmann::ordered_json::object();
  for (const auto& [name, value] : dict.items()) {
    if (value != defaults.at(name)) kwargs[name] = value;
  }
  return kwargs;
}

}  // namespace accelerate
