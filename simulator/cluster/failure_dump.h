/// What a failed run leaves in a folder.
///
/// Threads: one at a time for a folder.
#pragma once

#include <string>
#include <vector>

#include "accelerate/comm/watch/rank_dump.h"
#include "simulator/c10d/fabric.h"
#include "simulator/core/run_log.h"

namespace accelerate::simulator {

/// What each executed rank did last.
std::vector<RankDump> dumps_of(const Fabric& fabric);

/// Writes the ranks' dumps and run.json: the failure, the command that repeats the run, and what
/// the run was; and a copy of the run's log, unless `log_file` is empty. A folder that cannot be
/// written is told on stderr.
void write_failure(const std::string& folder, const std::string& failure,
                   const std::string& repeat_command, const RunLog::Header& run,
                   const std::vector<RankDump>& dumps, const std::string& log_file);

}  // namespace accelerate::simulator
