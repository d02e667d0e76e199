/// Where accumulation stands, as a StateDict without tensors: Accelerator::step, the window that is
/// open, and whether its gradients are synchronised. A rank's own, because tokens are.
///
///   {"step": 5, "sync_gradients": false, "is_xla_gradients_synced": false,
///    "window": {"steps": 1, "models": [0], "rescaled": false, "divides_by_steps": true,
///               "divides_by_tokens": false, "tokens": 0, "token_unit": 0,
///               "tokens_are_summed": false},
///    "optimizers": [{"step_was_skipped": false, "are_averaged": false}]}
///
/// Numbers of models are places in the order in which they were prepared. How many micro-steps a
/// window has is not part of it: that is the resumed program's decision.
/// Threads: the rank's thread. All is local.
/// Mirrors: the "step" of the peer's random_states_{rank}.pkl, which has no more than that.
#pragma once

#include "accelerate/state/gradient_state.h"
#include "accelerate/step/training_state.h"
#include "accelerate/tensors/state_dict.h"

namespace accelerate::internal {

/// Errors: c10::ValueError inside join_uneven_inputs, whose other half are the other ranks.
StateDict training_state_dict(const TrainingState& training, const GradientState& gradients);

/// Of fewer models and optimizers than were saved, the first ones.
/// Errors: c10::ValueError naming the field that is missing, of another type or out of range, and
///         if more optimizers were prepared; nothing has changed then.
void load_training_state_dict(TrainingState& training, GradientState& gradients,
                              const StateDict& state);

/// Whether gradients that gather in the open window would be lost without gradient_state_dict.
inline bool is_inside_window(const GradientState& gradients) { return !gradients.sync_gradients(); }

}  // namespace accelerate::internal
