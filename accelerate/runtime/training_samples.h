/// How many samples a rank's program trains on, for reports of its speed.
///
/// Threads: as Runtime::shared, in which it is kept.
#pragma once

#include <cstdint>

namespace accelerate {

/// What prepared loaders give all ranks together while gradients are enabled. A loader whose
/// batches differ in length counts as nothing, a batch that is not full as a full one.
struct TrainingSamples {
  int64_t count = 0;
};

}  // namespace accelerate
