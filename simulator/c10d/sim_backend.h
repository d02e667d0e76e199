/// The c10d backend "sim": the collectives of ranks that are threads of one process.
///
/// All of c10d's collectives and messages, for every dtype and reduce op that c10d's own backends
/// allow. As strict as they are: one tensor where they take one, contiguous memory, equal shapes.
/// Errors: c10::ValueError or NotImplementedError for a call that is wrong by itself, on that rank
///         at once; c10::DistBackendError from Work::wait for what ranks disagree on.
/// Futures: Work::getFuture blocks until the operation is done, because nothing can give up the
///          baton inside c10::ivalue::Future::wait.
/// Time:    on devices, operations run on a stream of the group's own, after what is on the current
///          stream when they are called; see Communicator.
/// Threads: a member's methods are called by its rank only.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "accelerate/comm/watch/collective_call.h"
#include "simulator/c10d/communicator.h"
#include "simulator/device/sim_device.h"

namespace accelerate::simulator {

class SimBackend final : public CallBackend {
 public:
  SimBackend(std::shared_ptr<Fabric> fabric, std::shared_ptr<Communicator> communicator, int member,
             absl::Duration timeout);

  const std::string getBackendName() const override { return "sim"; }
  uint64_t getSequenceNumberForGroup() override;
  void setSequenceNumberForGroup() override {}

  /// Between these, calls are issued as usual; the returned Work stands for all of them.
  void startCoalescing() override;
  WorkPtr endCoalescing() override;

 private:
  WorkPtr issue(const CollectiveCall& asked) override;
  SimDevice* device_of(const Call& call) const;

  const std::shared_ptr<Fabric> fabric_;  // what the communicator stands on
  const std::shared_ptr<Communicator> communicator_;
  const absl::Duration timeout_;
  OperationLog& log_;    // the rank's
  const int log_index_;  // of this group in it
  int stream_ = -1;      // of the rank's device, for this group's communication
  bool coalescing_ = false;
  std::vector<WorkPtr> coalesced_;
};

}  // namespace accelerate::simulator
