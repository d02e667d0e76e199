/// Lists of ranks for people.
#pragma once

#include <string>

#include "absl/types/span.h"

namespace accelerate::simulator {

/// Which ranks, as in "0-3,8"; in the given order.
std::string rank_ranges(absl::Span<const int> ranks);

}  // namespace accelerate::simulator
