/// How rows of the table of zero_keys.h are made: an honoured key takes its type, its default and
/// how its value is read from the field of ZeroConfig that it sets.
///
/// Threads: pure functions.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "accelerate/base/enum_text.h"
#include "accelerate/config/zero_key.h"
#include "accelerate/config/zero_settings.h"
#include "accelerate/values/fields.h"

namespace accelerate::internal::zero {

using Json = nlohmann::ordered_json;
using State = DeepSpeedKeyState;

// ---- Values of each type.

struct Dtype {
  const char* name;
  c10::ScalarType dtype;
};
constexpr Dtype kDtypes[] = {{"fp32", c10::kFloat},
                             {"fp16", c10::kHalf},
                             {"bf16", c10::kBFloat16},
                             {"bfp16", c10::kBFloat16}};

template <typename T>
std::string type_name() {
  if constexpr (std::is_same_v<T, bool>) {
    return "boolean";
  } else if constexpr (std::is_same_v<T, int64_t>) {
    return "whole number";
  } else if constexpr (std::is_same_v<T, double>) {
    return "number";
  } else if constexpr (std::is_same_v<T, std::string>) {
    return "text";
  } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    return "list of texts";
  } else if constexpr (std::is_same_v<T, std::tuple<double, double>>) {
    return "list of two numbers";
  } else if constexpr (std::is_same_v<T, c10::ScalarType>) {
    return "`fp32`, `fp16` or `bf16`";
  } else if constexpr (kIsOptionalField<T>) {
    return type_name<typename T::value_type>();
  } else {
    return absl::StrCat("`", absl::StrJoin(EnumTable<T>::kTexts, "`, `"), "`");
  }
}

template <typename T>
std::string value_text(const T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    return value ? "true" : "false";
  } else if constexpr (std::is_same_v<T, int64_t>) {
    return value == std::numeric_limits<int64_t>::max() ? "" : absl::StrCat(value);
  } else if constexpr (std::is_same_v<T, double>) {
    return absl::StrCat(value);
  } else if constexpr (std::is_same_v<T, std::string>) {
    return value;
  } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    return absl::StrJoin(value, ", ");
  } else if constexpr (std::is_same_v<T, std::tuple<double, double>>) {
    return absl::StrCat("[", std::get<0>(value), ", ", std::get<1>(value), "]");
  } else if constexpr (kIsOptionalField<T>) {
    return value ? value_text(*value) : "";
  } else if constexpr (std::is_same_v<T, c10::ScalarType>) {
    return "";
  } else {
    return to_string(value);
  }
}

template <typename T>
bool read(const Json& value, T& field) {
  return internal::json_to(value, field);
}
inline bool read(const Json& value, double& field) {
  if (!value.is_number()) return false;
  field = value.get<double>();
  return std::isfinite(field);
}
// 5e8 is a whole number as well.
inline bool read(const Json& value, int64_t& field) {
  constexpr double kBeyond = 9.2e18;
  double number = 0;
  if (!read(value, number) || std::abs(number) > kBeyond || number != std::floor(number)) {
    return false;
  }
  field = value.is_number_integer() ? value.get<int64_t>() : static_cast<int64_t>(number);
  return true;
}
inline bool read(const Json& value, c10::ScalarType& field) {
  const std::string word = value.is_string() ? absl::AsciiStrToLower(value.get<std::string>()) : "";
  for (const auto& [name, dtype] : kDtypes) {
    if (word == name) {
      field = dtype;
      return true;
    }
  }
  return false;
}
template <EnumWithText E>
bool read(const Json& value, E& field) {
  if (!value.is_string()) return false;
  const int index = internal::index_of_text<E>(value.get_ref<const std::string&>());
  if (index >= 0) field = static_cast<E>(index);
  return index >= 0;
}
inline bool read(const Json& value, std::tuple<double, double>& field) {
  return value.is_array() && value.size() == 2 && read(value[0], std::get<0>(field)) &&
         read(value[1], std::get<1>(field));
}
template <typename T>
bool read(const Json& value, std::optional<T>& field) {
  return read(value, field.emplace());
}

// ---- Rows.

// The field at the end of a chain of pointers to members; blocks on the way come into being.
template <auto First, auto... Rest, typename Object>
auto& field_of(Object& object) {
  auto& field = object.*First;
  if constexpr (sizeof...(Rest) == 0) {
    return field;
  } else if constexpr (kIsOptionalField<std::remove_cvref_t<decltype(field)>>) {
    if (!field) field.emplace();
    return field_of<Rest...>(*field);
  } else {
    return field_of<Rest...>(field);
  }
}

template <auto... Members>
std::string take(ZeroConfig& zero, const Json& value) {
  auto& field = field_of<Members...>(zero);
  return read(value, field) ? "" : type_name<std::remove_cvref_t<decltype(field)>>();
}

template <auto... Members>
bool is_default(ZeroConfig& zero) {
  ZeroConfig defaults;
  return field_of<Members...>(zero) == field_of<Members...>(defaults);
}

// false, 0, "", [], {}, or a block that is not enabled.
inline bool is_off(const Json& value) {
  if (value.is_boolean()) return !value.get<bool>();
  if (value.is_number()) return value == 0;
  if (value.is_string()) return value == "";
  return value.empty() || (value.is_object() && value.value("enabled", Json(true)) == false);
}

// Adds the rows of a block: `prefix` is what its keys begin with, and Path leads to its settings.
template <auto... Path>
class Block {
 public:
  explicit Block(std::vector<ZeroKey>& rows, std::string prefix = "",
                 std::vector<std::string> types = {})
      : rows_(rows), prefix_(std::move(prefix)), types_(std::move(types)) {}

  // For rows that these types of optimizers or schedules alone have.
  Block of(std::vector<std::string> types) const { return Block(rows_, prefix_, std::move(types)); }

  // Its type and default are the field's; a number is in a range.
  template <auto... Members>
  void honoured(const char* key, const char* what,
                double least = std::numeric_limits<double>::lowest(),
                double most = std::numeric_limits<double>::max()) const {
    ZeroConfig defaults;
    const auto& field = field_of<Path..., Members...>(defaults);
    add({.info = {.key = key,
                  .type = type_name<std::remove_cvref_t<decltype(field)>>(),
                  .default_value = value_text(field),
                  .what = what},
         .take = &take<Path..., Members...>,
         .is_default = &is_default<Path..., Members...>,
         .least = least,
         .most = most,
         .types = types_});
  }

  void without_effect(const char* key, const char* type, const char* why) const {
    add({.info = {.key = key, .type = type, .state = State::kWithoutEffect, .what = why}});
  }

  void refused(const char* key, const char* type, const char* why,
               bool (*off)(const Json& value) = &is_off) const {
    add({.info = {.key = key, .type = type, .state = State::kRefused, .what = why}, .is_off = off});
  }

  // A deprecated name, which turns something on.
  void deprecated(const char* key, const char* what,
                  std::string (*take)(ZeroConfig& zero, const Json& value)) const {
    add({.info = {.key = key, .type = "boolean", .default_value = "false", .what = what},
         .take = take});
  }

 private:
  void add(ZeroKey row) const {
    row.info.key.insert(0, prefix_);
    if (!types_.empty()) row.info.what.insert(0, absl::StrCat(absl::StrJoin(types_, ", "), ": "));
    rows_.push_back(std::move(row));
  }

  std::vector<ZeroKey>& rows_;
  std::string prefix_;
  std::vector<std::string> types_;
};

// ---- Values that are read in ways of their own.

template <auto Offload>
std::string read_cpu_offload(ZeroConfig& zero, const Json& value) {
  if (!value.is_boolean()) return "boolean";
  if (value.get<bool>()) (zero.*Offload).device = OffloadDevice::kCpu;
  return "";
}
inline std::string read_pinning(ZeroConfig& zero, const Json& value) {
  if (!value.is_boolean()) return "boolean";
  zero.offload_optimizer.pin_memory = zero.offload_param.pin_memory = value.get<bool>();
  return "";
}

// The block stands for the whole.
inline std::string read_checkpointing(ZeroConfig& zero, const Json& value) {
  if (!value.is_object()) return "object";
  zero.activation_checkpointing = true;
  return "";
}

inline std::string read_opt_level(ZeroConfig& zero, const Json& value) {
  const bool fits = value == "O1" || value == "O2";
  if (fits) zero.msamp.opt_level = value.get<std::string>();
  return fits ? "" : "`O1` or `O2`";
}

}  // namespace accelerate::internal::zero
