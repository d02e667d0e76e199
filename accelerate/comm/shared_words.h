/// Members of a group on one machine show each other a word, through shared memory: the fastest way
/// to agree. The last to come does not wait at all, the others are woken once.
///
/// Errors: c10::DistBackendError if a member is gone or does not come in time, or after interrupt.
/// Threads: all_gather one at a time; interrupt any.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace accelerate {

class SharedWords {
 public:
  /// Null, on all members alike, where one cannot share memory. Collective.
  static std::unique_ptr<SharedWords> make(c10d::Store& store, int member, int members);

  ~SharedWords();
  SharedWords(const SharedWords&) = delete;
  SharedWords& operator=(const SharedWords&) = delete;

  /// Every member's word. Collective.
  std::vector<uint64_t> all_gather(uint64_t word, std::chrono::milliseconds timeout);

  /// Ends a wait, and refuses all later ones.
  void interrupt() { interrupted_.store(true); }

 private:
  struct Slot;
  SharedWords(Slot* slots, int member, int members);
  void wait_for(Slot& slot, std::chrono::steady_clock::time_point deadline) const;

  Slot* const slots_;
  const int member_;
  const int members_;
  uint32_t round_ = 0;
  std::atomic<bool> interrupted_ = false;
};

}  // namespace accelerate
