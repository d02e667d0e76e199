/// What kind of failure an exception of a rank is, and what a failed run leaves in a folder.
///
/// Threads: one at a time for a folder.
#pragma once

#include <exception>
#include <string>

#include "simulator/c10d/fabric.h"
#include "simulator/core/run_log.h"

namespace accelerate::simulator {

/// Why a rank failed, in the order in which a report names failures: where ranks wait in vain and
/// mpirun then ends the job, the rank that told is before those that were ended.
enum class FailureCause {
  kOwn,
  kPeers,  ///< other ranks had ended, were blocked or disagreed
  kEnded,  ///< it was ended with others: its machine died, or the job was ended
};
FailureCause cause_of(const std::exception_ptr& exception);

bool is_out_of_memory(const std::exception_ptr& exception);

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
