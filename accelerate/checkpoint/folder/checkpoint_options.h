/// The options of Accelerator::save_state and load_state.
#pragma once

#include <optional>
#include <string>

namespace accelerate {

struct SaveStateOptions {
  /// False has no effect but one warning: pickle is never written.
  bool safe_serialization = true;
  /// Returns when the state is copied to the host's memory, and writes it behind training.
  /// Optimizer states on the host are copied behind training too, and the next step() waits for
  /// that copy. Memory for one copy is kept. The next save_state, load_state or wait_for_save
  /// throws the save's errors, including an optimizer's state that changed too early, other than by
  /// its prepared step().
  bool asynchronous = false;
  /// Returns, or commits, when all data is on the disk itself. False is faster: the checkpoint
  /// survives a crash of processes, but perhaps not of the machine.
  bool durable = true;
};

struct LoadStateOptions {
  /// Whether a model's missing and unexpected tensors are errors.
  bool strict = true;
  /// "cpu", "on_device" or absent, as in HF Accelerate. States always end on the device of their
  /// parameters.
  std::optional<std::string> map_location = std::nullopt;
};

}  // namespace accelerate
