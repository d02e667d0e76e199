/// A prepared scheduler's state as a StateDict without tensors, and back.
///
///   {"step_size": 2, ..., "last_epoch": 3, "_step_count": 4, "_last_lr": [0.01],
///    "accelerate": {"type": "StepLR", "steps": 3, "asked_steps": 3}}
///
/// A scheduler of this library has its own state_dict, with PyTorch's names. Of LibTorch's StepLR,
/// and of a user's own torch::optim::LRScheduler, it is "_step_count" alone, which is all that the
/// base class keeps; whatever else such a class keeps, its constructor must bring back. The
/// optimizer's rates are the optimizer's state. Infinities and NaN are strings, as in
/// optimizer_state_dict.
/// torch::optim::ReduceLROnPlateauScheduler is no LRScheduler and cannot be prepared, nor read;
/// optim::ReduceLROnPlateau is the one to use.
/// Errors:  c10::ValueError for a state of another type of scheduler, and for fields that are
///          missing or of another type, by name; the scheduler is unchanged then.
/// Threads: the rank's thread. All is local.
/// Mirrors: the state_dict of torch.optim.lr_scheduler's classes.
#pragma once

#include "accelerate/optim/accelerated_scheduler.h"
#include "accelerate/tensors/state_dict.h"

namespace accelerate {

StateDict scheduler_state_dict(const AcceleratedScheduler::Shared& scheduler);
void load_scheduler_state_dict(AcceleratedScheduler::Shared& scheduler, const StateDict& state);

}  // namespace accelerate
