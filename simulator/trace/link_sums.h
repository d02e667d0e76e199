/// How much the links of a cluster carried: sums while a run goes on, by rank and kind of link, and
/// their summary over all links of a kind.
///
/// Memory: for each rank that uses a link, a bounded number of bytes for each kind.
/// Units: bytes, nanoseconds of virtual time.
/// Threads: one at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "simulator/trace/rank_sums.h"
#include "simulator/trace/trace.h"

namespace accelerate::simulator {

/// The links at one rank.
class RankLinks {
 public:
  /// Something crosses a link of this kind from `start_ns` to `end_ns`.
  void add(LinkKind kind, double bytes, int64_t start_ns, int64_t end_ns);
  /// The rank ends a training step.
  void end_step();

  double bytes(LinkKind kind) const { return links_[index(kind)].bytes; }
  /// Between the ends of the first and of the last step; of the only one, until its end.
  double bytes_of_steps(LinkKind kind) const;
  int64_t busy_ns(LinkKind kind) const {
    return links_[index(kind)].busy.totals().communication_ns;
  }

 private:
  struct Link {
    double bytes = 0;
    double until_first_step = 0;
    double until_last_step = 0;
    BusyTime busy{64};
  };

  static size_t index(LinkKind kind) { return static_cast<size_t>(kind); }

  std::array<Link, kNumLinkKinds> links_;
  int64_t steps_ = 0;
};

/// The links of one kind in a cluster.
struct LinkClass {
  LinkKind kind = LinkKind::kNodeOut;
  double bytes_per_second = 0;  ///< of each
  /// Divided evenly among the node's ranks, or the ranks among them. 0: one for the whole cluster.
  int links_per_node = 1;
};

/// The use of all links of a kind. `by_rank` has every rank, null where it used none; those of
/// folded ranks are their representatives', as `counts_as` tells if it is not empty. `trace` has
/// its size and steps; `elapsed_ns` is the length of the run.
LinkSummary summarise_links(const LinkClass& links, const std::vector<const RankLinks*>& by_rank,
                            const Trace& trace, int64_t elapsed_ns);

}  // namespace accelerate::simulator
