/// JSON from files that are not trusted.
///
/// What walks through a value calls itself for what is in it, so a value deeper than kMaxJsonDepth
/// could be the end of a thread's stack: it is neither read nor written.
///
/// Errors:  absl::DataLoss for a text that is not JSON or has a key twice; what takes a value apart
///          throws std::exception.
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

/// Lists and objects in each other; deeper than anything we write.
inline constexpr size_t kMaxJsonDepth = 200;

/// Before anything else is done with it. The text need not be JSON.
bool is_text_too_deep(absl::string_view text);
bool is_value_too_deep(const nlohmann::ordered_json& value);

absl::StatusOr<nlohmann::json> parse_strictly(absl::string_view text);

/// No fractions, and none above 2^63 - 1.
int64_t integer_of(const nlohmann::json& value);
std::vector<int64_t> integers_of(const nlohmann::json& value);

/// Whether a name is that of a file in the folder at hand, whatever the system.
bool is_plain_file_name(const std::string& file);

}  // namespace accelerate::internal
