/// Finds ranks that do not do what their class does, by a comparison of those that are executed.
///
/// Ranks are compared at their calls of collectives and messages. The n-th call of a rank, what its
/// device was given since the call before, and what memory it allocated until then are compared
/// with those of the first rank of its class that made its n-th call. Ranks need not call at the
/// same time.
///
/// Compared are executed ranks of one class. A rank that a fault touches has a class of its own.
/// Threads: only the rank that holds the baton may call in.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "absl/types/span.h"
#include "accelerate/comm/watch/collective_call.h"
#include "simulator/core/executed_ranks.h"
#include "simulator/device/sim_device.h"

namespace accelerate::simulator {

class SpotCheck {
 public:
  explicit SpotCheck(const ExecutedRanks& executed);

  /// Whether the rank is compared with others.
  bool watches(int rank) const { return calls_[executed_.task_of(rank)] >= 0; }

  /// The devices of an executed rank, for this run.
  void set_devices(int rank, absl::Span<SimDevice* const> devices);

  /// The rank is about to make a call in a group of that size.
  /// Errors: c10::Error that names the first operation that differs, and both ranks.
  void compare(int rank, const CollectiveFingerprint& call, int group_size);
  /// The rank's program ends. Errors: as above.
  void compare_end(int rank) { compare(rank, CollectiveFingerprint(), 0); }

 private:
  // What a rank did from one call to the next.
  struct Stretch {
    int rank = 0;
    int seen = 0;  // the number of ranks that agreed
    CollectiveFingerprint call;
    int group_size = 0;
    std::vector<DeviceTask> tasks;
    AllocationCount allocated;
  };
  struct Class {
    int executed = 0;   // so many of its ranks
    int64_t first = 0;  // the number of stretches.front()
    std::deque<Stretch> stretches;
  };

  const ExecutedRanks& executed_;
  std::vector<int64_t> calls_;                    // by task; -1: not compared
  std::vector<std::vector<SimDevice*>> devices_;  // by task
  std::vector<Class> classes_;
};

}  // namespace accelerate::simulator
