/// Lists of ranks in messages: a message that many ranks have in common is printed once.
///
/// Threads: functions of their arguments.
#pragma once

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

}  // namespace accelerate
