/// Rendezvous without a known address: some launchers, as MPI's, give ranks a way to exchange data
/// before any connection exists. A backend registers such a way from its own source file.
///
/// Threads: registration happens before main; look-ups are read only.
#pragma once

#include <chrono>
#include <functional>
#include <string>

namespace accelerate {

/// Returns rank 0's `text` on every rank. Collective over the job.
/// Errors: c10::DistBackendError if rank 0 is late or belongs to another job.
using RendezvousExchange = std::function<std::string(
    const std::string& text, int rank, int world_size, std::chrono::milliseconds timeout)>;

/// `launcher` is the Topology::source of the ranks that can use it. The returned value only serves
/// static initialisation.
bool register_rendezvous(std::string launcher, RendezvousExchange publish);

/// Null if the launcher has none.
const RendezvousExchange* find_rendezvous(const std::string& launcher);

}  // namespace accelerate
