/// The links that collectives and messages have in common: how they slow each other, and how much
/// of a link is left while something is wrong with it.
///
/// A collective demands of each link at its members the share that it takes when it is alone. While
/// the demands on a link exceed it, the link is divided by max-min fairness: who asks for less than
/// an equal part gets it, and the others divide the rest. A collective goes on at the pace of its
/// slowest member.
///
/// Collectives are added one after another, and the end of each is final. One that is added later
/// shares with all that were added before it, and so its own end is that of fair sharing. What it
/// takes from an earlier one keeps the links busy beyond the earlier one's end: the next collective
/// of that group begins later, and one of another group finds the links in use. Over a run links
/// carry what they can, within a few per cent, because a collective counts with its mean demand;
/// what is too early are the ends that were told before.
///
/// Each rank is looked at for itself, with the collectives that it is a member of: groups of one
/// axis of a mesh that divide a NIC are in the time of each alone (Beside::kItsAxis). On a mesh and
/// a torus the links that leave one device count together.
///
/// A message is added as a collective of its two ends. So it takes its part from the collectives
/// there; what it has itself, beside collectives and other messages, is worked out by Flows, which
/// asks how much of each link collectives leave to messages. Its group has a negative number.
///
/// LinkSpeeds says how much of each link there is at a time. Who is told an end while a link is
/// slow or flaps has a mean share of what there is of the link, and makes up for what others take
/// when there is as much of the link again. A collective that no link carries any more never ends.
///
/// Threads: one at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <vector>

#include "absl/types/span.h"
#include "simulator/hardware/cluster_spec.h"
#include "simulator/network/link_speeds.h"
#include "simulator/network/link_use.h"
#include "simulator/network/network.h"

namespace accelerate::simulator {

class SharedLinks {
 public:
  /// `links`: Network::links(); it has a device. `speeds` outlives this object; null: links are as
  /// the specification says. `counts_as`: by rank, the rank whose collectives are added for it;
  /// empty: its own.
  explicit SharedLinks(const ClusterSpec& links, const LinkSpeeds* speeds = nullptr,
                       std::vector<int> counts_as = {});

  /// A rank's part in a collective.
  struct Member {
    int rank = 0;
    LinkBytes bytes;  ///< that cross its links
    /// Uses of its links that ended before are forgotten: the rank's later collectives begin later.
    int64_t not_before_ns = 0;
  };

  /// The end of what never ends.
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

  struct Interval {
    int64_t start_ns = 0;
    int64_t end_ns = 0;
  };

  /// A collective of that group, which is ready to begin at `ready_ns` and takes `alone_ns` where
  /// nothing shares its links. It begins when the group's earlier ones have left the links.
  /// `group`: any number, the same for all collectives of one group. A group has the same members
  /// in each of its collectives.
  Interval add(int group, int64_t ready_ns, int64_t alone_ns, absl::Span<const Member> members);

  /// The message of that group between those ranks has ended.
  void end_message(int group, absl::Span<const int> ranks, int64_t at_ns);

  /// The part of a link that `num_messages` messages have together at that time, beside
  /// collectives.
  double left_for_messages(const Network::LinkOwners& link, int num_messages, double now_ns) const;
  /// The next time after `now_ns` at which that changes, or infinity.
  double next_change_ns(const Network::LinkOwners& link, double now_ns) const;
  /// The part of their rate that messages between two nodes have; see LinkSpeeds.
  double left_between(int source_node, int target_node, double now_ns) const;
  /// Grows when something above may have changed.
  int64_t version() const { return version_ + (speeds_ != nullptr ? speeds_->version() : 0); }

  /// The nodes of the members, ascending.
  std::vector<int> nodes_of(absl::Span<const Member> members) const;

 private:
  using Shares = std::array<double, kNumLinksAtRank>;

  // What a group's collective demands of a rank's links, of what there is of each, from its start
  // to its end: beside others less than alone.
  struct Use {
    double start_ns;
    double end_ns;
    Shares demand;

    void begin_after(const Use& earlier);
  };
  // The uses of one group at one rank, one after another.
  struct Timeline {
    int group;
    std::deque<Use> uses;

    // The first use that ends after that time, or null.
    const Use* from(double now_ns) const;
  };
  // A timeline of another group, and its use that is on the links now or comes next.
  struct Other {
    Timeline* timeline;
    size_t next;
    double pace = 1;     // of that use, of what it has without the new collective
    size_t slowest = 0;  // the link that makes the pace

    // The use, if it has begun; else null.
    const Use* on_links(double now_ns) const;
    // The time at which that changes.
    double changes_ns(double now_ns) const;
    // The use ends later by so much.
    void advance(double from_ns, double to_ns, double delay_ns);
    // Uses begin when those before them have ended.
    void delay_later_ones();
  };
  // A member of a new collective at whose links others are, or that may be slow.
  struct SharedMember {
    Shares demand;
    std::vector<Other> others;
    int rank;
    const LinkSpeeds* speeds;  // null: whole
    const std::vector<int>* nodes;

    double left(size_t link, double now_ns) const;

    // The pace of the new collective: 1 where it gets what it demands.
    double pace(double now_ns) const;
    void demands_of_others(size_t link, double now_ns, double whole,
                           std::vector<double>& demands) const;
    void slow_others(double pace, double now_ns);
    void advance(double from_ns, double to_ns);
    double delay_ns(const Other& other, double from_ns, double to_ns) const;
  };

  Shares demand_of(const LinkBytes& bytes, double duration_ns) const;
  Shares mean_demand_of(const Member& member, const std::vector<int>& nodes, double start_ns,
                        double end_ns) const;
  Timeline& timeline(int rank, int group);
  std::vector<SharedMember> meetings(int group, double start_ns, int64_t alone_ns,
                                     absl::Span<const Member> members,
                                     const std::vector<int>& nodes);
  static double end_beside(std::vector<SharedMember>& meetings, double start_ns, double alone_ns);

  const Shares bytes_per_ns_;
  const int ranks_per_node_;
  const LinkSpeeds* const speeds_;
  const std::vector<int> counts_as_;
  int64_t version_ = 0;
  mutable std::vector<double> demands_;           // scratch
  std::vector<std::vector<Timeline>> timelines_;  // by rank
};

}  // namespace accelerate::simulator
