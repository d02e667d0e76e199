/// What a failed run leaves in a folder.
///
/// Threads: one at a time for a folder.
#pragma once

#include <string>

#include "simulator/c10d/fabric.h"
#include "simulator/core/run_log.h"

namespace accelerate::simulator {

struct FailedRun {
  std::string failure;
  std::string repeat_command;
  RunLog::Header run;    ///< what the run was
  const Fabric& fabric;  ///< whose executed ranks have dumps, and whose store is told of
  std::string log_file;  ///< empty: it wrote none
};

/// Writes the ranks' dumps, one after the other, since there may be many; run.json: the failure,
/// the command that repeats the run, and what the run was; store.json; and a copy of the run's log
/// if it wrote one. A folder that cannot be written is told on stderr.
void write_failure(const std::string& folder, const FailedRun& failed);

}  // namespace accelerate::simulator
