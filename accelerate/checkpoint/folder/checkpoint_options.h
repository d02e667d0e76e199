/// The options of Accelerator::save_state and load_state.
#pragma once

#include <optional>
#include <string>

namespace accelerate {

struct SaveStateOptions {
  /// False is said to be without effect, once: pickle is never written.
  bool safe_serialization = true;
  /// Returns when the state is copied to the host's memory, and writes it behind training; what
  /// optimizers keep on the host is copied behind it, too, and their next step() waits for that.
  /// Memory for one copy is kept. What goes wrong is thrown by the next save_state, load_state or
  /// wait_for_save: also where an optimizer's state changed too early by other means than its
  /// prepared step().
  bool asynchronous = false;
  /// Returns, or commits, when all is on the disk itself. False is faster: the checkpoint survives
  /// the death of processes, but perhaps not the machine's.
  bool durable = true;
};

struct LoadStateOptions {
  /// Whether a model's missing and unexpected tensors are errors.
  bool strict = true;
  /// "cpu", "on_device" or nothing, as in the peer. States always end where their parameters are.
  std::optional<std::string> map_location = std::nullopt;
};

}  // namespace accelerate
