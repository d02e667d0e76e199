/// The calls in the dumps of a job, made again by ranks of a simulated cluster, so that what was
/// wrong with them fails as it would in a live run: a rank that does not come, calls that differ,
/// messages of which each waits for another.
///
/// A rank makes its recorded calls in their order and then waits for them in the same order. Made
/// again are the collectives that had not ended and the last few before these, as far as the dumps
/// of all members reach, and the messages that had not ended.
///
/// Threads: as Cluster.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "accelerate/comm/watch/rank_dump.h"

namespace accelerate::simulator {

struct Reenactment {
  /// What is different from the job, a line each: ranks without a dump, which make no call; the
  /// number in the dumps of a group's first call; what dumps lack and was assumed.
  std::vector<std::string> notes = {};
  /// The report of the failure; empty: all calls ended.
  std::string failure = {};

  /// Lines for people.
  std::string to_string() const;
};

/// A reduction that the dumps do not tell, as those of Flight Recorders, is a sum; a root that they
/// do not tell is the group's first rank; in an all-to-all each rank keeps what it has. The report
/// says that `repeat_command` does the same once more.
/// Errors: InvalidArgument for dumps that contradict each other; Unimplemented for more ranks than
///         one process simulates, and for a call that cannot be made, which is named with its rank.
absl::StatusOr<Reenactment> reenact(const std::vector<RankDump>& dumps,
                                    const std::string& repeat_command);

}  // namespace accelerate::simulator
