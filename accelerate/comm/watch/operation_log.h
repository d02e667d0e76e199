/// A log of one rank's last operations: a ring of fixed size that is always on, and a count of
/// each group's operations.
///
/// Entering and leaving an operation allocates nothing for the usual few tensors of few dims, and
/// formats no text. Text is made from the snapshots that ranks send to the one that writes the
/// report (accelerate/comm/watch/operation_report.h). Threads: any may call at any time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "accelerate/comm/watch/collective_fingerprint.h"

namespace accelerate {

enum class OperationState : uint8_t {
  kIssued,   ///< called; no thread waits for it yet
  kWaiting,  ///< a thread of the rank waits for it
  kDone,
  kFailed,
  kRefused,  ///< the call was invalid; nothing was sent
};

/// One entry of the ring.
struct OperationRecord {
  int group = 0;  ///< index into the rank's groups
  OperationState state = OperationState::kIssued;
  CollectiveFingerprint fingerprint;
};
ACCELERATE_FIELDS(OperationRecord, group, state, fingerprint)

/// A group as one of its members sees it.
struct GroupRecord {
  std::string name;
  std::vector<int> ranks;    ///< global ranks of the members
  bool made = false;         ///< false: this rank waits for the others to make it
  uint64_t collectives = 0;  ///< entered so far
};
ACCELERATE_FIELDS(GroupRecord, name, ranks, made, collectives)

/// A rank's log at one moment, as other ranks get it.
struct OperationHistory {
  int rank = 0;
  std::string ending;  ///< how its program ended; empty while it has not
  std::vector<GroupRecord> groups;
  std::vector<OperationRecord> operations;  ///< the latest last

  nlohmann::ordered_json to_json() const;
  /// Errors: c10::ValueError for what to_json did not write.
  static OperationHistory from_json(const nlohmann::ordered_json& json);
};
ACCELERATE_FIELDS(OperationHistory, rank, ending, groups, operations)

class OperationLog {
 public:
  static constexpr size_t kCapacity = 64;

  /// Identifies one operation, even after the ring has overwritten it.
  using Ticket = uint64_t;

  explicit OperationLog(int rank) : rank_(rank) {}

  /// Adds a group that this rank begins to make. Returns its index.
  int add_group(std::string name, std::vector<int> ranks);
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

  OperationHistory snapshot() const;

 private:
  bool remembers(Ticket ticket) const { return ticket + kCapacity >= next_; }

  const int rank_;
  mutable std::mutex mutex_;
  std::string ending_;
  std::vector<GroupRecord> groups_;
  Ticket next_ = 0;
  std::array<OperationRecord, kCapacity> ring_;  // operation t is at t % kCapacity
};

}  // namespace accelerate
