/// Seeds that are the same on all ranks, or different on purpose.
///
/// Mirrors: accelerate utils/random.py, set_seed.
/// Threads: the rank's thread.
#pragma once

#include <cstdint>

namespace accelerate {

struct SetSeedOptions {
  /// Each rank gets a seed of its own: seed + its number. Ranks of a mesh add the number of their
  /// share of the data, so that those that train the same batches draw alike; they know it once an
  /// Accelerator is made.
  bool device_specific = false;
  /// From now on only algorithms that always give the same bits, where there are such; operators
  /// that have none throw. Can be slower.
  bool deterministic = false;
};

/// Seeds LibTorch's default generators, that of the CPU and those of the devices. Local.
void set_seed(uint64_t seed, const SetSeedOptions& options = {});

}  // namespace accelerate
