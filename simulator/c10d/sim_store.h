/// The c10d Store of a simulated cluster: one table that all ranks share, in memory.
#pragma once

#include <memory>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "simulator/c10d/fabric.h"

namespace accelerate::simulator {

/// A wait behaves as TCPStore's does. A time-out that the caller names passes in virtual time;
/// under the default time-out, a wait that can no longer end is reported at once as a stall.
/// Errors: the store throws c10::DistStoreError, which names the missing keys.
/// Threads: only the rank that holds the baton may use the store.
c10::intrusive_ptr<c10d::Store> make_sim_store(std::shared_ptr<Fabric> fabric);

}  // namespace accelerate::simulator
