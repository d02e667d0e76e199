/// The calls that a log's entries are about, each different one once and as a few bytes.
///
/// A program makes the same calls in every step, so that a log of thousands of operations refers to
/// a few dozen of them.
/// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "accelerate/comm/watch/collective_call.h"

namespace accelerate {

class CallTable {
 public:
  using Index = uint16_t;
  /// How many different calls may be in use.
  static constexpr size_t kMost = UINT16_MAX;

  CallTable() = default;
  CallTable(const CallTable&) = delete;
  CallTable& operator=(const CallTable&) = delete;

  /// The index of the call, which has one use more. The sequence makes no difference between calls
  /// and is not kept. Allocates nothing for a call that is in use already.
  /// \pre Fewer than kMost different ones are in use. The call is as before afterwards.
  Index add(CollectiveFingerprint& call);
  /// Ends one use.
  void release(Index index);

  /// \pre The index is in use.
  CollectiveFingerprint operator[](Index index) const;

  /// How many different calls are in use.
  size_t size() const { return by_bytes_.size(); }
  /// The most different calls that have been in use at one time; the memory goes by it.
  size_t rows() const { return rows_.size(); }

 private:
  struct Row {
    std::string bytes;
    uint32_t uses = 0;
  };

  std::deque<Row> rows_;                                    // which stay where they are
  absl::flat_hash_map<absl::string_view, Index> by_bytes_;  // of the rows
  std::vector<Index> unused_;
  std::string added_;  // kept for its memory
};

}  // namespace accelerate
