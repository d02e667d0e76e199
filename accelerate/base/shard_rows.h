/// How the rows of a parameter (its dim 0) are sharded over ranks: ceil(rows / ranks) on each; the
/// last ranks have fewer, or none. Models, gradients, optimizer states and checkpoints divide
/// alike.
///
/// Threads: pure functions.
#pragma once

#include <algorithm>
#include <cstdint>

namespace accelerate {

/// The rows that one rank has.
struct ShardRows {
  int64_t first = 0;
  int64_t count = 0;

  bool operator==(const ShardRows&) const = default;
};

/// Rank `rank`'s part of `rows` rows that are sharded over `ranks` ranks.
inline ShardRows shard_rows(int64_t rows, int64_t ranks, int64_t rank) {
  const int64_t most = (rows + ranks - 1) / ranks;
  const int64_t first = std::min(rows, most * rank);
  return {.first = first, .count = std::min(most, rows - first)};
}

}  // namespace accelerate
