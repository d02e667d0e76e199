/// What kind of failure an exception of a rank is.
///
/// Threads: pure functions.
#pragma once

#include <exception>

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

}  // namespace accelerate::simulator
