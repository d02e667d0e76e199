/// Fields of plug-ins and kwargs from the table of options (accelerate/options).
///
/// A field that the program gives stays. An absent one takes the value of its option's variable,
/// else what the row says that it is then; where the row says nothing it stays absent.
///
///     fill_fields(kwargs, options::Section::kFp8, environment);
///
/// So a new option is a row and a field of that name, besides what the field does.
/// Errors:  c10::ValueError naming the variable and its text.
/// Threads: pure functions.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <c10/util/Exception.h>

#include "absl/strings/str_split.h"
#include "absl/types/span.h"
#include "accelerate/base/enum_text.h"
#include "accelerate/base/fields.h"
#include "accelerate/base/number_text.h"
#include "accelerate/options/options.h"
#include "accelerate/platform/environment.h"

namespace accelerate {
namespace internal {

/// The text of the variable, else of the field's default.
std::optional<std::string> option_text(const options::Option& row, const Environment& environment);

/// What `parse` makes of the variable's text. Errors: where that is nothing, ending with `problem`.
template <typename T>
T parsed_option(const options::Option& row, const std::string& text,
                std::optional<T> (*parse)(std::string_view text), const char* problem) {
  const std::optional<T> value = parse(text);
  TORCH_CHECK_VALUE(value, row.variable_name(), "=\"", text, "\" is ", problem);
  return *value;
}
[[noreturn]] void refuse_choice(const options::Option& row, const std::string& text,
                                absl::Span<const char* const> choices);

void check_choice(const options::Option& row, const char* who, const char* name,
                  const std::string& text);

/// The types of fields that an option fills. A variant takes a text where it can be one, else a
/// truth value.
template <typename T>
concept OptionField = EnumWithText<T> || std::same_as<T, bool> || std::same_as<T, int64_t> ||
                      std::same_as<T, double> || std::same_as<T, std::vector<std::string>> ||
                      std::constructible_from<T, std::string> ||
                      (std::constructible_from<T, bool> && !std::is_arithmetic_v<T>);

template <OptionField T>
T option_value(const options::Option& row, const std::string& text) {
  if constexpr (EnumWithText<T>) {
    const int index = index_of_text<T>(text);
    if (index < 0) refuse_choice(row, text, EnumTable<T>::kTexts);
    return static_cast<T>(index);
  } else if constexpr (std::same_as<T, bool>) {
    return parsed_option(row, text, parse_bool, "neither true nor false");
  } else if constexpr (std::same_as<T, int64_t>) {
    return parsed_option(row, text, parse_int, "not a whole number");
  } else if constexpr (std::same_as<T, double>) {
    return parsed_option(row, text, parse_float, "not a number");
  } else if constexpr (std::same_as<T, std::vector<std::string>>) {
    return absl::StrSplit(text, ',');
  } else if constexpr (std::constructible_from<T, std::string>) {
    return T(text);
  } else {
    return T(option_value<bool>(row, text));
  }
}

template <typename T>
constexpr bool kIsFilled = false;
template <OptionField T>
constexpr bool kIsFilled<std::optional<T>> = true;

}  // namespace internal

/// Fills one field from a row.
template <internal::OptionField T>
void fill_field(std::optional<T>& field, const options::Option& row,
                const Environment& environment) {
  if (field) return;
  if (const std::optional<std::string> text = internal::option_text(row, environment)) {
    field = internal::option_value<T>(row, *text);
  }
}

/// Fills each optional field from the row of the section that names it, those in `but` apart.
template <HasFields T>
void fill_fields(T& object, options::Section section, const Environment& environment,
                 const std::vector<std::string_view>& but = {}) {
  visit_fields(object, [&]<typename Field>(const char* name, Field& field) {
    if constexpr (internal::kIsFilled<Field>) {
      if (std::ranges::count(but, std::string_view(name)) > 0) return;
      if (const options::Option* row = options::find_field(section, name)) {
        fill_field(field, *row, environment);
      }
    }
  });
}

/// Refuses texts that are none of their row's choices. Errors: c10::ValueError naming `who`, which
/// ends with a separator, the field and its choices.
template <HasFields T>
void check_choices(const T& object, options::Section section, const char* who = "") {
  visit_fields(object, [&]<typename Field>(const char* name, const Field& field) {
    if constexpr (std::same_as<Field, std::optional<std::string>>) {
      const options::Option* row = options::find_field(section, name);
      if (row != nullptr && field) internal::check_choice(*row, who, name, *field);
    }
  });
}

}  // namespace accelerate
