/// A rank's training state besides weights and optimizers, as StateDicts: accumulation, gradients,
/// a model's replica state, random numbers, schedulers.
///
/// Threads: the rank's thread. All is local.
/// Mirrors: accelerate checkpointing.py, random_states_{rank} and scheduler; HF Accelerate saves
///          neither gradients nor replica state, and of accumulation only "step".
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "accelerate/base/libtorch_fwd.h"
#include "accelerate/comm/random.h"
#include "accelerate/optim/shared_objects.h"
#include "accelerate/runtime/runtime.h"
#include "accelerate/state/gradient_state.h"
#include "accelerate/step/training_state.h"
#include "accelerate/tensors/state_dict.h"

namespace accelerate {

class ModelState;

namespace internal {

/// The objects that still have a handle, in the order in which they were prepared.
template <typename T>
std::vector<std::shared_ptr<T>> alive(const std::vector<std::weak_ptr<T>>& known) {
  std::vector<std::shared_ptr<T>> objects;
  for (const std::weak_ptr<T>& each : known) {
    if (auto object = each.lock()) objects.push_back(std::move(object));
  }
  return objects;
}

/// Where accumulation stands, without tensors: Accelerator::step, the window that is open, and
/// whether its gradients are synchronised. Each rank has its own, because token counts differ.
///
///   {"step": 5, "sync_gradients": false, "is_xla_gradients_synced": false,
///    "window": {"steps": 1, "models": [0], "rescaled": false, "divides_by_steps": true,
///               "divides_by_tokens": false, "tokens": 0, "token_unit": 0,
///               "tokens_are_summed": false},
///    "optimizers": [{"step_was_skipped": false, "are_averaged": false}]}
///
/// Models are numbered in the order in which they were prepared. The number of micro-steps of a
/// window is not part of it: the resumed program decides.
/// Errors: c10::ValueError inside join_uneven_inputs, whose other half are the other ranks.
StateDict training_state_dict(const TrainingState& training, const GradientState& gradients);

/// If fewer models and optimizers are prepared than were saved, loads the first ones.
/// Errors: c10::ValueError naming the field that is missing, of another type or out of range, and
///         if more optimizers were prepared; nothing has changed then.
void load_training_state_dict(TrainingState& training, GradientState& gradients,
                              const StateDict& state);

/// Whether gradients that gather in the open window would be lost without gradient_state_dict.
inline bool is_inside_window(const GradientState& gradients) { return !gradients.sync_gradients(); }

}  // namespace internal

/// The gradients that a model has gathered in the middle of an accumulation window: each rank's
/// own, which it needs to continue exactly. They are detached, not copied: a backward pass changes
/// them.
///
/// A dense gradient has the name of its parameter, as in module_state_dict; a tied parameter the
/// first of its names. A sparse one is `name`.indices and `name`.values, and the values hold
/// {"sparse": {name: {"is_coalesced": false}}}. A parameter without gradient is left out.
/// Errors: c10::ValueError naming a gradient that is neither dense nor a sparse COO tensor.
StateDict gradient_state_dict(const torch::nn::Module& module);

/// Gives the parameters these gradients, and takes those of the others away. Also under DDP, where
/// the next synchronising backward pass averages them with what it adds. They go to their
/// parameter's device and take its dtype; tensors without other owners are adopted.
/// Errors: c10::ValueError naming a gradient without a parameter in the module, or of another
///         shape; nothing has changed then.
void load_gradient_state_dict(torch::nn::Module& module, StateDict state);

/// The gradients of this rank's shards of a model, where a window reduces each micro-step's
/// gradients (sync_each_batch): detached, by the parameters' names. A model that is not sharded has
/// none.
StateDict shard_gradient_state_dict(const ModelState& model);

/// Gives the shards these gradients, and takes those of the others away, after
/// load_gradient_state_dict. Errors: c10::ValueError as there.
void load_shard_gradient_state_dict(ModelState& model, StateDict state);

/// The state of a prepared model on this rank besides its weights: the states of its techniques,
/// each under the technique's name. Replication has the state of the gradient exchange
/// (DistributedDataParallel::state_dict: "ddp." tensors, "ddp" in the values), and fp8 the scales
/// of delayed scaling ("fp8." tensors).
///
/// Each rank has its own. If the same number of ranks loads it, training continues bit-equal; if
/// another number does, PowerSGD begins anew, and delayed scales may be those of rank 0's file.
StateDict replica_state_dict(const ModelState& model);

struct LoadReplicaStateDictOptions {
  /// Whether as many ranks, in the same mesh, load it as saved it. If not, only fp8 is taken.
  bool same_ranks = true;
  /// The techniques of which the state may have parts besides those of the model's own.
  TechniqueList known = {};
};

/// Before gradients are loaded (load_gradient_state_dict).
/// Parts of techniques that this model does without are ignored.
/// Errors: c10::ValueError for a state of another model, and for a tensor of no known technique.
///         Then fp8's part may have been loaded.
void load_replica_state_dict(ModelState& model, const StateDict& state,
                             const LoadReplicaStateDictOptions& options = {});

/// The states of random number generators: a uint8 vector for each, by its name.
StateDict rng_state_dict(const RngState& state);
/// The same for restore_rng_state.
/// Errors: c10::ValueError naming a tensor that is not a vector of bytes.
RngState rng_state_of(const StateDict& state);

/// A state for a rank that has none, because there were fewer ranks when the checkpoint was made:
/// always the same, and other numbers than those of any other rank. Each of the rank's generators
/// (the default ones and `generators`) is seeded with a hash of the state that rank 0's generator
/// of that name was in, or rank 0's "torch" where it had none, and of the rank.
/// Errors: c10::ValueError if rank 0's state has no "torch" either.
RngState derive_rng_state(const RngState& rank0, int rank, const NamedGenerators& generators = {},
                          const Runtime& runtime = Runtime::current());

/// A prepared scheduler's state as a StateDict without tensors, and back.
///
///   {"step_size": 2, ..., "last_epoch": 3, "_step_count": 4, "_last_lr": [0.01],
///    "accelerate": {"type": "StepLR", "steps": 3, "asked_steps": 3}}
///
/// A scheduler of this library has its own state_dict, with PyTorch's names. That of LibTorch's
/// StepLR, and of a user's own torch::optim::LRScheduler, is "_step_count" alone, which is all that
/// the base class keeps; whatever else such a class keeps, its constructor must bring back. The
/// optimizer's rates are the optimizer's state. Infinities and NaN are strings, as in
/// optimizer_state_dict.
/// torch::optim::ReduceLROnPlateauScheduler is not an LRScheduler and cannot be prepared or saved;
/// use optim::ReduceLROnPlateau.
/// Errors:  c10::ValueError for a state of another type of scheduler, and for fields that are
///          missing or of another type, by name; the scheduler is unchanged then.
StateDict scheduler_state_dict(const internal::SharedScheduler& scheduler);
void load_scheduler_state_dict(internal::SharedScheduler& scheduler, const StateDict& state);

}  // namespace accelerate
