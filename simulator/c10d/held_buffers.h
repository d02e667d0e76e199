/// The tensors of a call that its rank has not waited for yet. They belong to the collective: a
/// program that uses them before the wait has a race on real hardware, which does not report it.
///
/// On a simulated device the tensors are marked as in flight, so that an operator that uses them
/// fails. Uses of CPU tensors cannot be intercepted: the collective works on private copies, its
/// results read as NaN until the wait, and the wait finds what the program has written in the
/// meantime.
///
/// Threads: the rank's thread.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "accelerate/comm/watch/collective_call.h"
#include "simulator/c10d/communicator.h"
#include "simulator/device/sim_device.h"

namespace accelerate::simulator {

class HeldBuffers final : public InFlightOwner, public std::enable_shared_from_this<HeldBuffers> {
 public:
  /// Takes the tensors of a call before it is made; `call` gets the private copies.
  /// `device` is null for CPU tensors. `member` is the rank's number in the group.
  static std::shared_ptr<HeldBuffers> take(Call& call, SimDevice* device, int member,
                                           std::shared_ptr<const Communicator> communicator);

  /// Ends the hold after the program's wait: results appear, and the program may use the tensors
  /// again. Idempotent. Errors: c10::Error if the program wrote to one of the tensors before the
  /// wait.
  void give_back();
  /// Like give_back, but without checks, for an operation that failed.
  void abandon();

  std::string describe() const override;

 private:
  struct Held {
    at::Tensor program;  // the tensor that the rank passed
    at::Tensor copy;     // the tensor that the collective uses
    bool written;        // whether the collective writes to it
  };

  HeldBuffers(SimDevice* device, int member, std::shared_ptr<const Communicator> communicator)
      : device_(device), member_(member), communicator_(std::move(communicator)) {}
  void hold(std::vector<at::Tensor>& tensors, bool written);
  void check(const Held& held) const;

  SimDevice* const device_;
  const int member_;
  const std::shared_ptr<const Communicator> communicator_;
  CollectiveFingerprint fingerprint_;
  std::vector<Held> held_;
};

}  // namespace accelerate::simulator
