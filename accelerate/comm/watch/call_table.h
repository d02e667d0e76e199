/// The calls that a log's entries are about, each different one once and as a few bytes.
///
/// A program makes the same calls in every step, so that a log of thousands of operations refers to
/// a few dozen of them.
/// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/comm/watch/collective_call.h"

namespace accelerate {

class CallTable {
 public:
  using Index = uint16_t;
  /// How many different calls may be in use.
  static constexpr size_t kMost = UINT16_MAX;

  /// The index of the call, which has one use more. The sequence makes no difference between calls
  /// and is not kept. Allocates nothing for a call that is in use already.
  /// \pre Fewer than kMost different ones are in use. The call is as before afterwards.
  Index add(CollectiveFingerprint& call);
  /// Ends one use.
  void release(Index index);

  /// \pre The index is in use.
  CollectiveFingerprint operator[](Index index) const;

  /// How many different calls are in use.
  size_t size() const { return size_; }
  /// The most different calls that have been in use at one time; the memory goes by it.
  size_t rows() const { return rows_.size(); }

 private:
  static constexpr Index kNone = kMost;

  struct Row {
    std::string bytes;
    uint32_t uses = 0;
    Index next = kNone;  // of its chain; of an unused row: the next unused one
  };

  Index& chain_of(std::string_view bytes);
  Index unused_row();
  void link(Index index);

  std::vector<Row> rows_;
  std::vector<Index> chains_;  // the first row of each, by hash
  Index unused_ = kNone;
  size_t size_ = 0;
  std::string added_;  // kept for its memory
};

}  // namespace accelerate
