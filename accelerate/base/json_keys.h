/// The order of a JSON object's keys, which nlohmann::json sorts, and for which ordered_json takes
/// quadratic time.
///
/// Threads: pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace accelerate::internal {

/// The keys of the outermost object of a text that is JSON, as they stand there.
std::vector<std::string> keys_in_order(absl::string_view text);

}  // namespace accelerate::internal
