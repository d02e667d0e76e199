/// Ranks along axes that no engine divides models by yet, such as tp, which an Accelerator refuses
/// from a user: what such an engine will stand on, as shares of the data, is tested with them.
#pragma once

#include <utility>

#include "accelerate/accelerate.h"
#include "accelerate/state/accelerator_state.h"

namespace accelerate {
namespace internal {

struct ArrangedRanks {
  static void make(const AcceleratorOptions& options, Runtime& runtime) {
    AcceleratorState::initialize(runtime, {.mixed_precision = options.mixed_precision,
                                           .parallelism_config = options.parallelism_config});
  }
};

}  // namespace internal

/// Arranges the ranks as the options' parallelism_config says. An Accelerator made of the result
/// finds them so. Collective.
inline AcceleratorOptions arranged(AcceleratorOptions options,
                                   Runtime& runtime = Runtime::current()) {
  internal::ArrangedRanks::make(options, runtime);
  options.parallelism_config.reset();
  return options;
}

}  // namespace accelerate
