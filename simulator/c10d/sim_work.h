/// The c10d::Work of one member's part in an operation.
#pragma once

#include <exception>
#include <memory>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "accelerate/comm/watch/operation_log.h"
#include "simulator/c10d/communicator.h"
#include "simulator/c10d/held_buffers.h"
#include "simulator/device/sim_device.h"

namespace accelerate::simulator {

class SimWork final : public c10d::Work {
 public:
  struct Parts {
    std::shared_ptr<Operation> operation;
    std::shared_ptr<HeldBuffers> held;  ///< null: nothing is watched
    SimDevice* device = nullptr;        ///< null: on CPU tensors
    SimDevice* clock = nullptr;         ///< the device whose streams it runs on; null: the host
    int stream = -1;                    ///< of that device: the one that communicates
    std::vector<at::Tensor> results;    ///< hold the outcome on this rank
    absl::Duration timeout;             ///< for waits that do not name one
    OperationLog* log = nullptr;        ///< the rank's
    OperationLog::Ticket ticket = 0;    ///< in it
  };

  SimWork(std::shared_ptr<Fabric> fabric, std::shared_ptr<Communicator> communicator, int member,
          c10d::OpType op, Parts parts);

  /// Lets other ranks go on if it is not, so that a loop around it ends.
  bool isCompleted() override;
  bool isSuccess() const override { return parts_.operation->done && !parts_.operation->failed; }
  std::exception_ptr exception() const override;
  int sourceRank() const override { return parts_.operation->source; }
  std::vector<at::Tensor> result() override { return parts_.results; }
  /// On a device the current stream waits, as with NCCL, and the host goes on; on CPU tensors the
  /// host waits.
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override { wait(kNoTimeout); }
  /// Fails the whole group, on all its members.
  void abort() override { communicator_->abort(member_); }
  /// Blocks until the operation is done; an error is in the future. On a device, whoever waits for
  /// the future lets the current stream wait; the host's clock does not move.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  void wait_for(absl::Duration timeout, bool asked_for);
  void give_back() const;

  const std::shared_ptr<Fabric> fabric_;
  const std::shared_ptr<Communicator> communicator_;
  const int member_;
  const Parts parts_;
  const absl::Duration called_at_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace accelerate::simulator
