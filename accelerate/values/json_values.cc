#include "accelerate/values/json_values.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include <c10/util/Exception.h>

#include "accelerate/base/json_text.h"

namespace accelerate {
namespace {

void merge_into(nlohmann::json& destination, const nlohmann::json& source,
                const std::string& path) {
  for (const auto& [key, value] : source.items()) {
    TORCH_CHECK_VALUE(destination.is_object(), "merge_dicts: an object cannot be merged into ",
                      destination.type_name(), " at \"", path, "\"");
    if (!value.is_object()) {
      destination[key] = value;
    } else {
      auto [entry, is_new] = destination.emplace(key, nlohmann::json::object());
      merge_into(*entry, value, path.empty() ? key : path + "." + key);
    }
  }
}

struct Spelling {
  std::string_view text;
  double number;
};
constexpr Spelling kSpellings[] = {{"nan", std::numeric_limits<double>::quiet_NaN()},
                                   {"inf", std::numeric_limits<double>::infinity()},
                                   {"-inf", -std::numeric_limits<double>::infinity()}};

void spell(nlohmann::ordered_json& value) {
  if (value.is_structured()) {
    for (auto& item : value) spell(item);
  } else if (value.is_number_float()) {
    const double number = value.get<double>();
    if (std::isnan(number)) {
      value = "nan";
    } else if (std::isinf(number)) {
      value = number > 0 ? "inf" : "-inf";
    }
  }
}

void read(nlohmann::ordered_json& value) {
  if (value.is_structured()) {
    for (auto& item : value) read(item);
  } else if (value.is_string()) {
    const std::string& text = value.get_ref<const std::string&>();
    const auto* found = std::ranges::find(kSpellings, text, &Spelling::text);
    if (found != std::end(kSpellings)) value = found->number;
  }
}

constexpr char kNumber[] = "number";

bool is_wrapped(const nlohmann::ordered_json& value) {
  return value.is_object() && value.size() == 1 && value.contains(kNumber);
}

void wrap(nlohmann::ordered_json& value) {
  const bool looks_wrapped = is_wrapped(value);
  if (value.is_structured()) {
    for (auto& item : value) wrap(item);
  }
  const bool is_special = value.is_number_float() && !std::isfinite(value.get<double>());
  if (is_special) spell(value);
  if (is_special || looks_wrapped) {
    nlohmann::ordered_json inner = std::move(value);
    value = nlohmann::ordered_json::object();
    value[kNumber] = std::move(inner);
  }
}

void unwrap(nlohmann::ordered_json& value) {
  if (is_wrapped(value)) {
    nlohmann::ordered_json inner = std::move(value[kNumber]);
    value = std::move(inner);
    if (value.is_string()) return read(value);
  }
  if (value.is_structured()) {
    for (auto& item : value) unwrap(item);
  }
}

// A checkpoint that is written must also load.
void check_depth(const nlohmann::ordered_json& value) {
  TORCH_CHECK_VALUE(!internal::is_value_too_deep(value),
                    "a state's values cannot be saved: with what marks infinities and NaN they are "
                    "nested in more than ",
                    internal::kMaxJsonDepth, " levels");
}

}  // namespace

nlohmann::json merge_dicts(const nlohmann::json& source, nlohmann::json destination) {
  TORCH_CHECK_VALUE(source.is_object() && destination.is_object(),
                    "merge_dicts takes two objects, got ", source.type_name(), " and ",
                    destination.type_name());
  merge_into(destination, source, "");
  return destination;
}

namespace internal {

nlohmann::ordered_json spell_numbers(nlohmann::ordered_json value) {
  check_depth(value);
  spell(value);
  return value;
}

nlohmann::ordered_json read_numbers(nlohmann::ordered_json value) {
  read(value);
  return value;
}

nlohmann::ordered_json wrap_numbers(nlohmann::ordered_json value) {
  check_depth(value);
  wrap(value);
  // That made it deeper.
  check_depth(value);
  return value;
}

nlohmann::ordered_json unwrap_numbers(nlohmann::ordered_json value) {
  unwrap(value);
  return value;
}

}  // namespace internal
}  // namespace accelerate
