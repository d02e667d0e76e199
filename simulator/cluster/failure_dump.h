/// What a failed run leaves in a folder.
///
/// Threads: one at a time for a folder.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "accelerate/comm/watch/rank_dump.h"
#include "simulator/c10d/fabric.h"
#include "simulator/core/run_log.h"

namespace accelerate::simulator {

/// What each executed rank did last.
std::vector<RankDump> dumps_of(const Fabric& fabric);

/// The bytes of the values in the store, by key.
std::map<std::string, int64_t> sizes_of(const Fabric::Store& store);

struct FailedRun {
  std::string failure;
  std::string repeat_command;
  RunLog::Header run;  ///< what the run was
  std::vector<RankDump> dumps;
  std::map<std::string, int64_t> store;  ///< bytes by key
  std::string log_file;                  ///< empty: it wrote none
};

/// Writes the ranks' dumps; run.json: the failure, the command that repeats the run, and what the
/// run was; store.json; and a copy of the run's log if it wrote one. A folder that cannot be
/// written is told on stderr.
void write_failure(const std::string& folder, const FailedRun& failed);

}  // namespace accelerate::simulator
