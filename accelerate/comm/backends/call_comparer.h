/// Debug mode's own line between the members of a group: each shows the others a word for every
/// call that it is about to make, and equal calls have equal words.
///
/// Errors: c10::DistBackendError if a member is gone or does not come in time, or after interrupt.
/// Threads: enter is called by one thread at a time, settle and interrupt by any.
#pragma once

#include <chrono>
#include <cstdint>

namespace accelerate {

class CallComparer {
 public:
  virtual ~CallComparer() = default;

  struct Entry {
    uint64_t round = 0;  ///< number of the call, for settle
    /// Whether no member that has come to this call so far has come with another word.
    bool agrees = true;
  };
  /// Shows this member's next word. Of two members with different words at least one, the later,
  /// learns it here, before it does anything.
  virtual Entry enter(uint64_t word, std::chrono::milliseconds timeout) = 0;

  /// Returns when all members have come to the call: whether all have shown the same word.
  virtual bool settle(uint64_t round, std::chrono::milliseconds timeout) = 0;

  /// Ends waits, and refuses all later ones.
  virtual void interrupt() = 0;
};

}  // namespace accelerate
