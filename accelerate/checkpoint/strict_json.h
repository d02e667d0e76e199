/// JSON from files that are not trusted.
///
/// Errors:  absl::DataLoss for a text that is not JSON or has a key twice; what takes a value apart
///          throws std::exception.
/// Threads: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace accelerate::internal {

absl::StatusOr<nlohmann::json> parse_strictly(absl::string_view text);

/// No fractions, and none above 2^63 - 1.
int64_t integer_of(const nlohmann::json& value);
std::vector<int64_t> integers_of(const nlohmann::json& value);

/// Whether a name is that of a file in the folder at hand, whatever the system.
bool is_plain_file_name(const std::string& file);

}  // namespace accelerate::internal
