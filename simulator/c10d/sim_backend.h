/// The c10d backend "sim", the collectives of ranks that are threads of one process, and their
/// Store.
#pragma once

#include <memory>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "absl/time/time.h"
#include "simulator/c10d/communicator.h"

namespace accelerate::simulator {

/// All of c10d's collectives and messages, for every dtype and reduce op that c10d's own backends
/// allow. Calls are checked as strictly as by these backends: one tensor for verbs of one tensor,
/// contiguous memory, equal shapes. `member` is the rank's number in the group.
/// Errors: c10::ValueError or NotImplementedError for a call that is wrong by itself, on that rank
///         at once; c10::DistBackendError from Work::wait for a disagreement between ranks.
/// Futures: Work::getFuture blocks until the operation is done, because nothing can give up the
///          baton inside c10::ivalue::Future::wait.
/// Time:    on devices, operations run on a stream of their group, after the work that is on the
///          current stream when they are called; see Communicator.
/// Threads: a member's methods are called by its rank only.
c10::intrusive_ptr<c10d::Backend> make_sim_backend(std::shared_ptr<Fabric> fabric,
                                                   std::shared_ptr<Communicator> communicator,
                                                   int member, absl::Duration timeout);

/// The Store of a simulated cluster: one table that all ranks share, in memory.
///
/// A wait behaves as TCPStore's does. A time-out that the caller names passes in virtual time;
/// under the default time-out, a wait that can no longer end is reported at once as a stall.
/// Errors: the store throws c10::DistStoreError, which names the missing keys.
/// Threads: only the rank that holds the baton may use the store.
c10::intrusive_ptr<c10d::Store> make_sim_store(std::shared_ptr<Fabric> fabric);

}  // namespace accelerate::simulator
