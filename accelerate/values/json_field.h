/// A field of a JSON object as the type that it must have.
///
/// Errors: c10::ValueError naming the object, the field and what it has instead.
#pragma once

#include <concepts>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

namespace accelerate::internal {

inline bool json_to(const nlohmann::ordered_json& value, bool& field) {
  if (!value.is_boolean()) return false;
  field = value.get<bool>();
  return true;
}

inline bool json_to(const nlohmann::ordered_json& value, int64_t& field) {
  constexpr uint64_t kMax = std::numeric_limits<int64_t>::max();
  if (!value.is_number_integer()) return false;
  if (value.is_number_unsigned() && value.get<uint64_t>() > kMax) return false;
  field = value.get<int64_t>();
  return true;
}

inline bool json_to(const nlohmann::ordered_json& value, double& field) {
  if (!value.is_number()) return false;
  field = value.get<double>();
  return true;
}

inline bool json_to(const nlohmann::ordered_json& value, std::string& field) {
  if (!value.is_string()) return false;
  field = value.get<std::string>();
  return true;
}

inline bool json_to(const nlohmann::ordered_json& value, std::tuple<double, double>& field) {
  return value.is_array() && value.size() == 2 && json_to(value[0], std::get<0>(field)) &&
         json_to(value[1], std::get<1>(field));
}

template <typename T>
bool json_to(const nlohmann::ordered_json& value, std::vector<T>& field) {
  if (!value.is_array()) return false;
  field.clear();
  for (const nlohmann::ordered_json& item : value) {
    if (!json_to(item, field.emplace_back())) return false;
  }
  return true;
}

template <typename T>
bool json_to(const nlohmann::ordered_json& value, std::optional<T>& field) {
  if (value.is_null()) {
    field.reset();
    return true;
  }
  return json_to(value, field.emplace());
}

template <typename T>
nlohmann::ordered_json to_json_value(const T& field) {
  return field;
}
template <typename T>
nlohmann::ordered_json to_json_value(const std::optional<T>& field) {
  return field ? nlohmann::ordered_json(*field) : nlohmann::ordered_json();
}

/// The beginning of its text, for messages.
inline std::string json_excerpt(const nlohmann::ordered_json& value) {
  using Handler = nlohmann::ordered_json::error_handler_t;
  return value.dump(-1, ' ', false, Handler::replace).substr(0, 64);
}

/// What `object`, called `where`, has under `name`.
inline const nlohmann::ordered_json& json_member(const nlohmann::ordered_json& object,
                                                 const char* name, const std::string& where) {
  TORCH_CHECK_VALUE(object.is_object(), where, " is ", json_excerpt(object),
                    ", which is no object");
  const auto found = object.find(name);
  TORCH_CHECK_VALUE(found != object.end(), where, " has no \"", name, "\"");
  return *found;
}

template <typename T>
void read_field(const nlohmann::ordered_json& object, const char* name, const std::string& where,
                T& field) {
  const nlohmann::ordered_json& value = json_member(object, name, where);
  TORCH_CHECK_VALUE(json_to(value, field), where, ": \"", name, "\" is ", json_excerpt(value),
                    ", which is of another type");
}

template <typename T>
T field_of(const nlohmann::ordered_json& object, const char* name, const std::string& where) {
  T field{};
  read_field(object, name, where, field);
  return field;
}

}  // namespace accelerate::internal
