/// Members of a group on one machine compare their calls through shared memory. Nobody waits to
/// begin a call: who comes later compares with who came before.
///
/// Errors and threads: as CallComparer's.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "accelerate/comm/backends/call_comparer.h"

namespace accelerate {

class SharedWords final : public CallComparer {
 public:
  /// Null, on all members alike, where one cannot share memory. Collective.
  static std::unique_ptr<SharedWords> make(c10d::Store& store, int member, int members);

  ~SharedWords() override;
  SharedWords(const SharedWords&) = delete;
  SharedWords& operator=(const SharedWords&) = delete;

  Entry enter(uint64_t word, std::chrono::milliseconds timeout) override;
  bool settle(uint64_t round, std::chrono::milliseconds timeout) override;
  void interrupt() override { interrupted_.store(true); }

 private:
  struct Slot;
  SharedWords(Slot* slots, int member, int members);
  // Until the member has come to so many calls.
  void wait_for(Slot& slot, uint64_t calls, std::chrono::milliseconds timeout) const;

  Slot* const slots_;
  const int member_;
  const int members_;
  std::atomic<bool> interrupted_ = false;
};

}  // namespace accelerate
