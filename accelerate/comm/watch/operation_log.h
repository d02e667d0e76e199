/// A log of one rank's last operations: a ring that is always on, and a count of each group's
/// operations.
///
/// An entry is 16 bytes, beside each different call once, and the ring grows with the number of
/// operations up to its limit. Entering and leaving an operation like one of the ring formats no
/// text, and allocates nothing but where the ring grows. Text is made from the snapshots that ranks
/// send to the one that writes the report: which ranks are behind, by how many operations, and
/// where their calls differ.
/// Threads: any may call the log at any time; the others are functions of their arguments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "accelerate/comm/watch/call_table.h"
#include "accelerate/comm/watch/collective_call.h"

namespace accelerate {

enum class OperationState : uint8_t {
  kIssued,   ///< called; no thread waits for it yet
  kWaiting,  ///< a thread of the rank waits for it
  kDone,
  kFailed,
  kRefused,  ///< the call was invalid; nothing was sent
};

/// One operation of the ring.
struct OperationRecord {
  int group = 0;  ///< index into the rank's groups
  OperationState state = OperationState::kIssued;
  CollectiveFingerprint fingerprint;
};
ACCELERATE_FIELDS(OperationRecord, group, state, fingerprint)

/// The state of a process group on one member.
struct GroupRecord {
  std::string name;
  bool made = false;         ///< false: this rank waits for the others to make it
  uint64_t collectives = 0;  ///< entered so far
};
ACCELERATE_FIELDS(GroupRecord, name, made, collectives)

/// A rank's log at one moment.
struct OperationHistory {
  int rank = 0;
  std::string ending;  ///< how its program ended; empty while it has not
  std::vector<GroupRecord> groups;
  std::vector<OperationRecord> operations;  ///< the latest last
};
ACCELERATE_FIELDS(OperationHistory, rank, ending, groups, operations)

/// An operation that a rank has begun.
struct PendingOperation {
  uint64_t ticket = 0;     ///< OperationLog::Ticket
  std::string text;        ///< "all_reduce #3 (sum, Float[4])"
  std::string group;       ///< name
  std::vector<int> ranks;  ///< global ranks of its members
};

class OperationLog {
 public:
  /// How many operations the ring keeps, for a dump.
  static constexpr size_t kCapacity = 2000;
  /// How many of them other ranks get, for a report.
  static constexpr size_t kShared = 64;

  /// Identifies one operation, even after the ring has overwritten it.
  using Ticket = uint64_t;

  explicit OperationLog(int rank) : rank_(rank) {}

  /// Adds a group that this rank begins to make, of these global ranks. Returns its index.
  int add_group(std::string name, std::vector<int> ranks = {});
  void group_is_made(int group);

  /// The operation begins. Sets the fingerprint's sequence; collectives of a group are counted.
  Ticket enter(int group, CollectiveFingerprint& fingerprint);
  void set_state(Ticket ticket, OperationState state);
  /// The operation as text, while it is in the ring.
  std::string describe(Ticket ticket) const;
  /// Takes the operation back from the counts. \pre It is the group's latest.
  void refuse(Ticket ticket);

  /// Records how the rank's program ended, as in "ended its program".
  void end(std::string ending);

  /// With the last operations, up to `most`.
  OperationHistory snapshot(size_t most = kShared) const;
  /// The global ranks of the groups of a snapshot; there may be more groups by then.
  std::vector<std::vector<int>> members() const;

  /// The latest operation, unless it is known to have ended.
  std::optional<PendingOperation> pending() const;

 private:
  struct Entry {
    uint64_t sequence = 0;
    int32_t group = 0;
    CallTable::Index call = 0;
    OperationState state = OperationState::kIssued;
  };
  static_assert(sizeof(Entry) == 16);
  static_assert(kCapacity < CallTable::kMost);

  bool remembers(Ticket ticket) const { return ticket < next_ && next_ - ticket <= kCapacity; }
  Entry& entry_of(Ticket ticket) { return ring_[ticket % ring_.size()]; }
  const Entry& entry_of(Ticket ticket) const { return ring_[ticket % ring_.size()]; }
  CollectiveFingerprint call_of(const Entry& entry) const;

  const int rank_;
  mutable std::mutex mutex_;
  std::string ending_;
  std::vector<GroupRecord> groups_;
  std::vector<std::vector<int>> members_;  // of the groups
  Ticket next_ = 0;
  std::vector<Entry> ring_;  // operation t is at t % its size, which grows before t comes to it
  CallTable calls_;          // of the entries
};

/// Why and where an operation failed.
struct OperationFailure {
  /// The first line of the report, from the rank that noticed. Empty: members' calls differ.
  std::string reason;
  std::string group;       ///< name; empty: no group
  std::vector<int> ranks;  ///< global ranks of its members
};

/// As in
///
///   rank 0: all_reduce #5 (sum, Float[4]) of group "world" failed: timed out after 2s
///   group "world", by rank:
///     rank 0: waits in all_reduce #5 (sum, Float[4])
///     rank 1: 1 operation behind: its last was barrier #4, done
///   last calls:
///     #4  ranks 0-1: barrier, done
///     #5  rank 0: all_reduce (sum, Float[4]), waits
///
/// and, behind the lines of ranks, with that of crossed_groups.
/// `histories` are those of the ranks that answered, in any order. Members of the group without one
/// are reported as "did not answer".
std::string operation_report(const OperationFailure& failure,
                             const std::vector<OperationHistory>& histories);

/// One line per rank of the group: how far it is behind. Part of the above.
std::string group_lines(const OperationFailure& failure,
                        const std::vector<OperationHistory>& histories);

/// The ranks that hold the others of the group up, those that are behind or did not answer, each
/// with where it is: "rank 1: 1 operation behind, its last was barrier #4, done; rank 3: did not
/// answer (gone or unreachable)". Empty if there is none, or if `asking` is behind itself.
std::string ranks_behind(const OperationFailure& failure,
                         const std::vector<OperationHistory>& histories, int asking);

/// The first call of the group that its members made differently, and that has not ended on all of
/// them: "collective mismatch in call #5 of group "world": operation all_reduce against barrier;
/// rank 0: ...; rank 1: ...". Empty if these histories have none.
std::string differing_calls(const OperationFailure& failure,
                            const std::vector<OperationHistory>& histories);

/// Two ranks that entered two groups in different orders, so that each waits for the other: "ranks
/// 0 and 1 entered groups in different orders: rank 0 waits in all_reduce #5 (sum, Float[4]) of
/// group "tp", and rank 1 in barrier #0 of group "dp"". Empty if there are none among these.
std::string crossed_groups(const std::vector<OperationHistory>& histories);

/// The rank's last operation and its state, as in `all_reduce #5 (sum, Float[4]) of group "world",
/// waits`; empty if it entered none.
std::string last_call(const OperationHistory& history);

/// The differences between calls that should be the same collective, by global rank; empty if
/// there are none.
std::string describe_mismatch(
    const std::string& group,
    const std::vector<std::pair<int, CollectiveFingerprint>>& calls_by_rank);

}  // namespace accelerate
