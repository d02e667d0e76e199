/// Which prepared objects still live after `Accelerator::free_memory`, and so fill the device.
///
/// Threads: the rank's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/runtime/runtime.h"

namespace accelerate {

struct MemoryReport {
  struct Survivor {
    /// "model", "optimizer", "scheduler" or "data loader".
    std::string kind;
    /// A model's type as far as it is known; empty for other kinds.
    std::string name;
    /// The size of a model's parameters and buffers, of a sharded one the rank's shards in place of
    /// the parameters; 0 for other kinds.
    int64_t bytes = 0;
    /// How many handles or pointers keep it alive.
    int64_t owners = 0;
  };
  std::vector<Survivor> survivors;
  /// The memory of the rank's device, after unused memory was given back; absent where it is not
  /// counted.
  std::optional<DeviceMemoryUse> device;

  /// A line for each survivor and one for the device.
  std::string to_string() const;
};

namespace internal {

struct TrainingState;

/// Watches what is prepared without keeping it alive; the result reports what is left of it.
std::function<MemoryReport(const Runtime&)> watch_prepared(const TrainingState& training);

}  // namespace internal
}  // namespace accelerate
