/// What a prepared model has on this rank besides its weights: how its gradients travel
/// (DistributedDataParallel::state_dict: "ddp." tensors, "ddp" in the values), and what delayed
/// scaling in fp8 knows ("fp8." tensors).
///
/// It is a rank's own. Saved and loaded by the same number of ranks, on all of them, training goes
/// on bit-equal; by another number, or not at all, PowerSGD begins anew, and delayed scales may be
/// those of rank 0's file.
/// Threads: the rank's thread. All is local.
/// Mirrors: nothing in the peer, which loses it.
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
