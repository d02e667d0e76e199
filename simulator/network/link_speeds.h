/// Links that carry less than the specification says, or nothing, for a part of a run.
///
/// A change is of links at ranks, or of the way between two nodes. Where several are of one link,
/// their parts multiply. Of the NICs of a rank the slowest counts for a collective, whose rings and
/// trees spread their bytes evenly over them; a message crosses one NIC.
///
/// Units: nanoseconds of virtual time, with fractions.
/// Threads: one at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "simulator/hardware/cluster_spec.h"
#include "simulator/network/link_use.h"
#include "simulator/network/network.h"

namespace accelerate::simulator {

class LinkSpeeds {
 public:
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  struct Change {
    size_t rule = 0;                               ///< the rule of the plan that it comes from
    std::string text = {};                         ///< what it is, for reports
    std::vector<int> ranks = {};                   ///< at whose links, ascending
    std::array<bool, kNumLinksAtRank> links = {};  ///< at which of them, by LinkAtRank
    std::vector<int> nics = {};                    ///< of the cluster: which NICs, ascending
    /// Only what passes between the two nodes; from the first to the second if `one_way`.
    std::optional<std::pair<int, int>> between = {};
    bool one_way = false;
    double from_ns = 0;
    double until_ns = kNever;
    double part = 1;       ///< of the specification's rate that is left; 0: down
    double falls_ns = 0;   ///< the rate falls to the part in this time, in 64 steps
    double period_ns = 0;  ///< above 0: down in the first half of each period, else whole

    /// The part that is left at that time.
    double left(double now_ns) const;
    /// The next time after `now_ns` at which left() changes, or kNever.
    double changes_ns(double now_ns) const;
  };

  explicit LinkSpeeds(const ClusterSpec& spec) : spec_(spec) {}

  bool empty() const { return changes_.empty(); }
  /// Grows with each call that changes a speed.
  int64_t version() const { return version_; }

  /// Returns the number of the change.
  size_t add(Change change);
  /// The change is over at that time.
  void end(size_t number, double now_ns);

  /// The part of a link at a rank, for a group whose members are on these nodes, which ascend.
  double left_at_rank(int rank, size_t link, absl::Span<const int> nodes, double now_ns) const;
  /// The part of a link that messages cross; of a bridge, that of the rank with the least.
  double left_of(const Network::LinkOwners& owners, double now_ns) const;
  /// The part of the way of messages between two nodes, besides their NICs.
  double left_between(int source_node, int target_node, double now_ns) const;
  /// The next change of any link after that time, or kNever.
  double next_change_ns(double now_ns) const;

  /// The changes that make a difference to a group on those nodes which crosses links at the rank
  /// between the two times.
  std::vector<const Change*> touching(int rank, const LinkBytes& bytes, absl::Span<const int> nodes,
                                      double from_ns, double to_ns) const;
  /// The texts of those by which links are down at that time and stay so.
  std::vector<std::string> down(double now_ns) const;

 private:
  double left_of_nic(int rank, int nic, size_t link, absl::Span<const int> nodes,
                     double now_ns) const;

  const ClusterSpec spec_;
  std::vector<Change> changes_;
  int64_t version_ = 0;
};

}  // namespace accelerate::simulator
