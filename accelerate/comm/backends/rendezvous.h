/// How ranks without an address to meet at learn rank 0's: by a means that whoever started them
/// gives, as MPI does. A part that has such a means registers it from its own source file.
///
/// Threads: registration happens before main; look-ups are read only.
#pragma once

#include <chrono>
#include <functional>
#include <string>

namespace accelerate {

/// Returns rank 0's `text` on every rank. Collective over the job.
/// Errors: c10::DistBackendError when rank 0 does not come in time, or is of another job.
using TellAll = std::function<std::string(const std::string& text, int rank, int world_size,
                                          std::chrono::milliseconds timeout)>;

/// `launcher` is the Topology::source of the ranks that have the means. The value only serves
/// static initialisation.
bool register_meeting(std::string launcher, TellAll tell_all);

/// Null where there is none for the launcher.
const TellAll* find_meeting(const std::string& launcher);

}  // namespace accelerate
