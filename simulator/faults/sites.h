/// The sites of a run's ranks: where the simulator asks whether something is to go wrong.
///
/// Rooms that simulate devices, groups and disks call reach() where a rank comes to one of their
/// sites, and do to tensors, memory and files what comes back; all else has been done by then.
/// Without rules there is no FaultSites, so that a site costs one test of a null pointer.
/// Threads: the rank's thread, which holds the baton.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "simulator/core/random.h"
#include "simulator/faults/rules.h"

namespace accelerate::simulator {

/// A fault that strikes now.
struct SiteFault {
  size_t rule = 0;  ///< its number in the plan
  const FaultEffect* effect = nullptr;
  std::vector<int> ranks = {};  ///< that it is for: the one at the site, or all of its node
  DeterministicRandom random = DeterministicRandom(0);

  bool has(int rank) const { return std::ranges::find(ranks, rank) != ranks.end(); }
};

class FaultSites {
 public:
  virtual ~FaultSites() = default;

  /// A rank has come to a site: it may wait here, or die. `words` say what it does there, `peers`
  /// with which ranks. Returns the faults of values, memory and files that are for the caller.
  /// Errors: RankKilled, or an error of the rule's; none at files and where memory is released.
  virtual std::vector<SiteFault> reach(int rank, Site site, absl::string_view words,
                                       absl::Span<const int> peers = {}) = 0;

  /// Notes that a fault had an effect on so many things: elements, operations, allocations.
  virtual void touched(const SiteFault& fault, int64_t count) = 0;

  /// How fast a rank's host and devices are at that time; 1 without faults.
  virtual double speed(int rank, int64_t now_ns) = 0;
  /// The first fault of the kind that lasts for the rank now.
  virtual std::optional<SiteFault> lasting(int rank, FaultKind kind) = 0;
};

}  // namespace accelerate::simulator
