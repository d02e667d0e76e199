/// Debug mode's own connection between the members of a group: each publishes a hash of every call
/// that it is about to make, and equal calls have equal hashes.
///
/// Errors: c10::DistBackendError if a member is gone or late, or after interrupt.
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
    /// False if a member that has reached this call already published another hash.
    bool agrees = true;
  };
  /// Publishes this member's next hash. Of two members with different hashes at least the later one
  /// learns it here, before its operation begins.
  virtual Entry enter(uint64_t hash, std::chrono::milliseconds timeout) = 0;

  /// Waits until all members have reached the call. Returns whether all hashes are equal.
  virtual bool settle(uint64_t round, std::chrono::milliseconds timeout) = 0;

  /// Ends all waits; later calls throw.
  virtual void interrupt() = 0;
};

}  // namespace accelerate
