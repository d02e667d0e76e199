/// Where a rank writes.
///
/// Threads: values.
#pragma once

#include <cstdint>
#include <tuple>

namespace accelerate::internal {

struct RankPlace {
  /// The first rank that writes to its disk.
  int64_t disk = 0;

  bool operator==(const RankPlace&) const = default;
};

/// Ranks tell each other their places; see accelerate/tensors/portable.h.
inline auto tree_members(RankPlace& place) { return std::tie(place.disk); }

}  // namespace accelerate::internal
