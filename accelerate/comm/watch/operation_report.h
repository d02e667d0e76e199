/// Merges the ranks' logs into a report: which ranks are behind, by how many operations, and where
/// their calls differ.
///
/// Threads: functions of their arguments.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "accelerate/comm/watch/collective_fingerprint.h"
#include "accelerate/comm/watch/operation_log.h"

namespace accelerate {

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
/// `histories` are those of the ranks that answered, in any order. Members of the group without one
/// are reported as "did not answer".
std::string operation_report(const OperationFailure& failure,
                             const std::vector<OperationHistory>& histories);

/// One line per rank of the group: how far it is behind. Part of the above.
std::string group_lines(const OperationFailure& failure,
                        const std::vector<OperationHistory>& histories);

/// The differences between calls that should be the same collective, by global rank; empty if
/// there are none.
std::string describe_mismatch(
    const std::string& group,
    const std::vector<std::pair<int, CollectiveFingerprint>>& calls_by_rank);

}  // namespace accelerate
