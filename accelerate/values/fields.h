/// Structs of options as JSON, by a list of their fields.
///
/// A struct takes part through one function beside it, which names its fields in order:
///
///   template <typename Visitor>
///   void visit_fields(const ProfileKwargs& kwargs, Visitor&& visit) {
///     visit("record_shapes", kwargs.record_shapes);
///     ...
///   }
///
/// A field may be a bool, a number, a text, an enumeration with a text, an absl::Duration (which
/// becomes seconds), an optional (absent: null) or a vector of these, a map from texts to them, or
/// another such struct. A std::function has no JSON and is left out.
/// Mirrors: accelerate utils/dataclasses.py, KwargsHandler.
#pragma once

#include <concepts>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/time/time.h"
#include "accelerate/base/enum_text.h"

namespace accelerate {

namespace internal {

struct NoVisitor {
  template <typename T>
  void operator()(const char* name, const T& value) const {}
};

}  // namespace internal

template <typename T>
concept HasFields = requires(const T& object) { visit_fields(object, internal::NoVisitor()); };

/// All fields by name, in their order.
template <HasFields T>
nlohmann::ordered_json to_dict(const T& object);

namespace internal {

template <typename T>
nlohmann::ordered_json field_to_json(const T& value) {
  if constexpr (HasFields<T>) {
    return to_dict(value);
  } else if constexpr (EnumWithText<T>) {
    return to_string(value);
  } else if constexpr (std::same_as<T, absl::Duration>) {
    return absl::ToDoubleSeconds(value);
  } else {
    return value;
  }
}
template <typename T>
nlohmann::ordered_json field_to_json(const std::optional<T>& value) {
  return value ? field_to_json(*value) : nlohmann::ordered_json();
}
template <typename T>
nlohmann::ordered_json field_to_json(const std::vector<T>& values) {
  auto list = nlohmann::ordered_json::array();
  for (const T& value : values) list.push_back(field_to_json(value));
  return list;
}
template <typename T>
nlohmann::ordered_json field_to_json(const std::map<std::string, T>& values) {
  auto object = nlohmann::ordered_json::object();
  for (const auto& [name, value] : values) object[name] = field_to_json(value);
  return object;
}

template <typename T>
constexpr bool kIsFunction = false;
template <typename Signature>
constexpr bool kIsFunction<std::function<Signature>> = true;

}  // namespace internal

template <HasFields T>
nlohmann::ordered_json to_dict(const T& object) {
  auto dict = nlohmann::ordered_json::object();
  visit_fields(object, [&dict]<typename Field>(const char* name, const Field& value) {
    if constexpr (!internal::kIsFunction<Field>) dict[name] = internal::field_to_json(value);
  });
  return dict;
}

/// The fields whose value is another than in a T that was made without arguments. Such structs do
/// not read the environment, so that is the same everywhere.
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
