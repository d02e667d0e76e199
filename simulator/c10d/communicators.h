/// The communicators of a simulated cluster's run, of which its Fabric holds one for each group.
///
/// Threads: only the rank that holds the scheduler's baton may call in.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/base/mesh_axis.h"
#include "simulator/c10d/communicator.h"
#include "simulator/c10d/fabric.h"

namespace accelerate::simulator {

/// The communicator that all members of the group share; the first member creates it. It lives as
/// long as the run, because one member may end before another begins.
/// `axis` is GroupOptions::axis, `backend` GroupOptions::backend: a group that names Gloo, NCCL or
/// MPI behaves as that library, another one as the run says (semantics.h).
/// Errors: c10::ValueError if members name different ranks, axes or libraries, or a library that is
///         not simulated.
std::shared_ptr<Communicator> communicator_of(Fabric& fabric, const std::string& name,
                                              const std::vector<int>& ranks,
                                              std::optional<MeshAxis> axis,
                                              const std::string& backend);

/// For the scheduler: the event of Fabric::next_event_ns(). Returns the tasks to wake.
std::vector<int> run_event(Fabric& fabric);

/// At the end of a run: all collectives that were carried out get their times.
void set_all_times(Fabric& fabric);

/// Blocks the running rank until all collectives of its device that it has called have a time,
/// without an effect on its clock. Errors: c10::DistBackendError if one of them cannot end.
void await_collectives(Fabric& fabric);

/// A failure that no rank has seen: a mismatch in a call that no rank waited for, or a collective
/// that some members never joined. nullopt if there is none.
std::optional<std::string> unnoticed_failure(const Fabric& fabric);

}  // namespace accelerate::simulator
