/// Pieces of messages: lists of ranks, command lines, suggestions for misspelt names.
///
/// A name is close to a word if few insertions, removals, replacements and swaps of neighbouring
/// characters make one of the other (at most two, or a third of the word's length), or if it begins
/// with the word. Case does not count.
/// Threads: functions of their arguments.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace accelerate {

/// Runs of consecutive ranks, in the given order: "0-3,8".
std::string rank_ranges(absl::Span<const int> ranks, absl::string_view separator = ",");

/// "rank 3" or "ranks 0-2, 5".
std::string rank_list(const std::vector<int>& ascending_ranks);

/// One line per distinct text, led by the ranks that share it: "  ranks 0-1: text". Empty texts are
/// left out.
std::string lines_by_rank(const std::vector<std::pair<int, std::string>>& texts);

/// `word` itself where every character is literal to a shell, else between single quotes.
std::string shell_quoted(absl::string_view word);

/// A command line as a POSIX shell reads it back: the quoted words with blanks between them.
std::string shell_line(absl::Span<const std::string> words);

/// How many insertions, removals, replacements and swaps of neighbouring characters make one of the
/// other. Case counts. Takes the product of the lengths in time and memory.
size_t edit_distance(absl::string_view a, absl::string_view b);

/// Up to three names close to `word`, the closest first and ties in the given order.
std::vector<std::string> nearest_names(absl::string_view word, absl::Span<const std::string> names);

/// `; did you mean NAME?` for the closest name, with `prefix` before it ("--"); empty without one.
std::string did_you_mean(absl::string_view word, absl::Span<const std::string> names,
                         absl::string_view prefix = "");

/// `did you mean "h100" or "h200"?`, or `one of h100, h200, ...` if no name is close.
std::string suggestion(absl::string_view word, absl::Span<const std::string> names);

}  // namespace accelerate
