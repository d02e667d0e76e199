/// Where a rank is among those that divide the parameters of models.
///
/// Threads: values.
#pragma once

#include <cstdint>
#include <tuple>

namespace accelerate::internal {

struct RankPlace {
  /// The number of its shard; -1 where nothing is divided.
  int64_t shard = -1;
  /// The first rank that writes to its disk.
  int64_t disk = 0;

  bool operator==(const RankPlace&) const = default;
};

/// Ranks tell each other their places; see accelerate/tensors/portable.h.
inline auto tree_members(RankPlace& place) { return std::tie(place.shard, place.disk); }

}  // namespace accelerate::internal
