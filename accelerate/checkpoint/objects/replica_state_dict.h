/// The state of a prepared model on one rank besides its weights: that of its stages (see
/// Stage::state_dict), each under the stage's name. "ddp": how gradients are reduced; "fp8": the
/// observations of delayed scaling.
///
/// Each rank has its own. If as many ranks load it as saved it, training continues bit-equal;
/// otherwise PowerSGD starts anew, and delayed scales may be those of rank 0's file.
/// Threads: the rank's thread. All is local.
/// Mirrors: nothing in HF Accelerate, which does not save this state.
#pragma once

#include "accelerate/tensors/state_dict.h"

namespace accelerate {

class ModelState;

StateDict replica_state_dict(const ModelState& model);

struct LoadReplicaStateDictOptions {
  /// Whether as many ranks load it as saved it. If not, only fp8's part is taken.
  bool same_ranks = true;
};

/// Before gradients are loaded (load_gradient_state_dict).
/// Errors: c10::ValueError for a state of another model. Then fp8's part may have been loaded.
void load_replica_state_dict(ModelState& model, const StateDict& state,
                             const LoadReplicaStateDictOptions& options = {});

}  // namespace accelerate
