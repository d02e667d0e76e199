/// What a report says in a terminal, and texts that several of its files have.
#pragma once

#include <string>
#include <vector>

#include "simulator/trace/critical_path.h"
#include "simulator/trace/trace.h"

namespace accelerate::simulator {

/// The ranks of a failed run that were in the same state after the same call.
struct FailedRanks {
  std::vector<int> ranks;  ///< ascending
  RankAtFailure at_failure;
};

/// The rows in the order of their first ranks.
std::vector<FailedRanks> failed_ranks(const RunFailure& failure);

/// "matrix products"; "communication, ALLREDUCE of default_pg"; "waiting for rank 3".
std::string path_label(const Trace& trace, const PathShare& share);

/// Where the report is, with virtual time, the highest peak of a device's memory, and the share of
/// all ranks' time in communication. Further lines, where it is known: what the median step's
/// critical path consists of; which links a step uses most; which modules fill the memory at the
/// highest peak. No line ends with a line feed.
std::vector<std::string> report_lines(const Trace& trace, const std::string& directory);

}  // namespace accelerate::simulator
