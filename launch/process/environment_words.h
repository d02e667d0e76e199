/// Looking into an environment that is a list of `NAME=value` words.
#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"

namespace accelerate::launch::process {

/// The value of the last word of that name; nothing if there is none.
inline std::optional<std::string> find_in_environment(absl::Span<const std::string> environment,
                                                      absl::string_view name) {
  std::optional<std::string> value;
  for (absl::string_view word : environment) {
    if (absl::ConsumePrefix(&word, name) && absl::ConsumePrefix(&word, "=")) value.emplace(word);
  }
  return value;
}

/// The same; empty if there is none.
inline std::string environment_value(absl::Span<const std::string> environment,
                                     absl::string_view name) {
  return find_in_environment(environment, name).value_or("");
}

}  // namespace accelerate::launch::process
