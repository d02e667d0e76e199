/// The state of a prepared optimizer as a StateDict, and back: optimizer_state_dict.h, for what the
/// copies of its handle share.
///
/// Errors:  those of optimizer_state_dict.h.
/// Threads: the rank's thread. All is local.
#pragma once

#include "accelerate/optim/optimizer_state_dict.h"
#include "accelerate/tensors/state_dict.h"

namespace accelerate::internal {

struct SharedOptimizer;

/// The state of a prepared optimizer. Moments that are kept in few bits (Fp8Moments) are float32
/// here, in tensors of the StateDict's own; the conversion is exact.
StateDict accelerated_optimizer_state_dict(SharedOptimizer& optimizer,
                                           const OptimizerStateDictOptions& options = {});
void load_accelerated_optimizer_state_dict(SharedOptimizer& optimizer, StateDict state,
                                           const OptimizerStateDictOptions& options = {});

}  // namespace accelerate::internal
