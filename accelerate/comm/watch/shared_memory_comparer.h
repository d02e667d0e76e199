/// Members of a group on one machine compare their calls through shared memory. No member waits to
/// begin a call: each compares its call with those of the members that came before.
///
/// Errors and threads: as CallComparer's.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "accelerate/comm/backends/backend_registry.h"

namespace accelerate {

class SharedMemoryComparer final : public CallComparer {
 public:
  /// Null on all members if one of them cannot map the memory. Collective.
  static std::unique_ptr<SharedMemoryComparer> make(c10d::Store& store, int member, int members);

  ~SharedMemoryComparer() override;
  SharedMemoryComparer(const SharedMemoryComparer&) = delete;
  SharedMemoryComparer& operator=(const SharedMemoryComparer&) = delete;

  Entry enter(uint64_t hash, std::chrono::milliseconds timeout) override;
  bool settle(uint64_t round, std::chrono::milliseconds timeout) override;
  void interrupt() override { interrupted_.store(true); }

 private:
  struct Slot;
  SharedMemoryComparer(Slot* slots, int member, int members);
  // Waits until the member has made so many calls.
  void wait_for(Slot& slot, uint64_t calls, std::chrono::milliseconds timeout) const;

  Slot* const slots_;
  const int member_;
  const int members_;
  std::atomic<bool> interrupted_ = false;
};

}  // namespace accelerate
