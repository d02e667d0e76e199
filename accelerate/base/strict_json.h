/// JSON from files that are not trusted.
///
/// Functions that walk through a value are recursive, so a value deeper than kMaxJsonDepth could
/// overflow a thread's stack: it is neither read nor written.
///
/// Errors:  absl::DataLoss for a text that is not JSON or has a key twice; integer_of and
/// integers_of
///          throw std::invalid_argument.
/// Threads: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace accelerate::internal {

/// Levels of lists and objects; more than this library writes.
inline constexpr size_t kMaxJsonDepth = 200;

/// The check before parsing. The text need not be JSON.
bool is_text_too_deep(absl::string_view text);
bool is_value_too_deep(const nlohmann::ordered_json& value);

absl::StatusOr<nlohmann::json> parse_strictly(absl::string_view text);

/// Integers only, up to 2^63 - 1.
int64_t integer_of(const nlohmann::json& value);
std::vector<int64_t> integers_of(const nlohmann::json& value);

/// Whether the name is a plain file name on any system, without a folder in it.
bool is_plain_file_name(const std::string& file);

}  // namespace accelerate::internal
