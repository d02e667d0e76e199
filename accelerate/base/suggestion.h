/// Suggestions for a misspelt name, for error messages.
///
/// A name is close to a word if few insertions, removals, replacements and swaps of neighbouring
/// characters make one of the other (at most two, or a third of the word's length), or if it begins
/// with the word. Case does not count.
/// Threads: pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace accelerate {

/// Up to three names close to `word`, the closest first and ties in the given order.
std::vector<std::string> nearest_names(absl::string_view word, absl::Span<const std::string> names);

/// `; did you mean NAME?` for the closest name, with `prefix` before it ("--"); empty without one.
std::string did_you_mean(absl::string_view word, absl::Span<const std::string> names,
                         absl::string_view prefix = "");

/// `did you mean "h100" or "h200"?`, or `one of h100, h200, ...` if no name is close.
std::string suggestion(absl::string_view word, absl::Span<const std::string> names);

}  // namespace accelerate
