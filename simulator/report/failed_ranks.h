/// The ranks of a failed run in few rows: those in the same state after the same call share one.
///
/// Threads: functions of their arguments.
#pragma once

#include <vector>

#include "simulator/trace/trace.h"

namespace accelerate::simulator {

struct FailedRanks {
  std::vector<int> ranks;  ///< ascending
  RankAtFailure at_failure;
};

/// The rows in the order of their first ranks.
std::vector<FailedRanks> failed_ranks(const RunFailure& failure);

}  // namespace accelerate::simulator
