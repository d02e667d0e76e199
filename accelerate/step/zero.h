/// What the configuration of a job's deepspeed_plugin makes of what is prepared.
///
/// Threads: the rank's thread.
#pragma once

#include "accelerate/step/prepared_together.h"

namespace accelerate {

class AcceleratorState;
class GradientState;

namespace internal {

struct TrainingState;

/// With a deepspeed_plugin: completes its configuration by what is prepared, which training follows
/// from then on, and makes ZeRO's engine where a model is prepared with an optimizer. Local.
/// Errors: those of complete() and zero_config(), with the plugin unchanged; c10::ValueError for a
///         placeholder without a plugin.
void configure_zero(const PreparedTogether& together, bool split_batches,
                    const AcceleratorState& state, GradientState& gradients,
                    TrainingState& training);

}  // namespace internal
}  // namespace accelerate
