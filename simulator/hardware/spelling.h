/// What somebody who typed a name that does not exist may have meant; for error messages.
///
/// Threads: pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace accelerate::simulator {

/// The names closest to `word` by edit distance, the closest first and ties in the given order;
/// none of those that differ in more than half of their characters.
std::vector<std::string> nearest_names(absl::string_view word,
                                       const std::vector<std::string>& names);

/// `did you mean "h100" or "h200"?`, or else `one of h100, h200, ...`.
std::string suggestion(absl::string_view word, const std::vector<std::string>& names);

}  // namespace accelerate::simulator
