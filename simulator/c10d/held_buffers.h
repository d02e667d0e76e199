/// The tensors of a call that its rank has not waited for yet: they are the collective's, and a
/// program that uses them before it has waited is wrong on real hardware, where nothing tells.
///
/// On a simulated device they are marked as in flight, so that the operator which touches them
/// fails. CPU tensors cannot be watched: the collective works on private copies, what it writes
/// reads as NaN until the wait, and what the program wrote meanwhile is found then.
///
/// Threads: its rank's.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "accelerate/comm/watch/collective_fingerprint.h"
#include "simulator/c10d/communicator.h"
#include "simulator/device/sim_device.h"

namespace accelerate::simulator {

class HeldBuffers final : public InFlightOwner, public std::enable_shared_from_this<HeldBuffers> {
 public:
  /// Takes the tensors of a call that is about to be made; `call` gets the private copies.
  /// `device` is null for CPU tensors. `member` is the rank's number in the group.
  static std::shared_ptr<HeldBuffers> take(Call& call, SimDevice* device, int member,
                                           std::shared_ptr<const Communicator> communicator);

  /// The program has waited: results appear, the tensors are its own again. Idempotent.
  /// Errors: c10::Error if the program wrote to one of them meanwhile.
  void give_back();
  /// As give_back, for an operation that failed: nothing is checked.
  void abandon();

  std::string describe() const override;

 private:
  struct Held {
    at::Tensor program;  // what the rank passed
    at::Tensor copy;     // what the collective works on
    bool written;        // by the collective
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
