/// The collectives of comm/operations.h and comm/objects.h over all ranks of the job, for programs
/// without an Accelerator at hand. Like it they make the PartialState if there is none yet.
///
/// Collective, all of them but is_initialized().
/// Errors: as the operation's own.
/// Mirrors: accelerate utils/operations.py, utils/other.py and utils/random.py, whose functions
///          know the job.
#pragma once

#include <utility>
#include <vector>

#include "accelerate/comm/objects.h"
#include "accelerate/comm/operations.h"
#include "accelerate/comm/random.h"
#include "accelerate/state/partial_state.h"

namespace accelerate {

/// Whether this rank has a PartialState. Local.
inline bool is_initialized() { return PartialState::find() != nullptr; }

/// Returns when all ranks have called it.
inline void wait_for_everyone() { PartialState::get().wait_for_everyone(); }

/// All ranks' tensors along dim 0, on every rank.
template <typename Tree>
Tree gather(Tree tensor) {
  return gather(PartialState::get().group(), std::move(tensor));
}

/// All ranks' entries, on every rank.
template <Portable T>
std::vector<T> gather_object(std::vector<T> object) {
  return gather_object(PartialState::get().group(), std::move(object));
}
inline c10::IValue gather_object(const c10::IValue& object) {
  return gather_object(PartialState::get().group(), object);
}

/// Gives every rank the state that rank 0's generators have; see comm/random.h.
inline void synchronize_rng_state(RNGType rng_type, at::Generator generator = {}) {
  synchronize_rng_state(PartialState::get().group(), rng_type, std::move(generator));
}
inline void synchronize_rng_states(const std::vector<RNGType>& rng_types,
                                   at::Generator generator = {}) {
  synchronize_rng_states(PartialState::get().group(), rng_types, std::move(generator));
}

/// Rank `from_process`'s tensors, on every rank.
template <typename Tree>
Tree broadcast(Tree tensor, int from_process = 0) {
  return broadcast(PartialState::get().group(), std::move(tensor), from_process);
}

/// Puts rank `from_process`'s list into the place of the others'.
template <Portable T>
std::vector<T>& broadcast_object_list(std::vector<T>& object_list, int from_process = 0) {
  return broadcast_object_list(PartialState::get().group(), object_list, from_process);
}

/// The mean, sum or maximum over ranks, on every rank.
template <typename Tree>
Tree reduce(Tree tensor, Reduction reduction = Reduction::kMean, double scale = 1.0) {
  return reduce(PartialState::get().group(), std::move(tensor), reduction, scale);
}

/// The tensors with one dim padded to the largest size that it has on a rank.
template <typename Tree>
Tree pad_across_processes(Tree tensor, const PadAcrossProcessesOptions& options = {}) {
  return pad_across_processes(PartialState::get().group(), std::move(tensor), options);
}

}  // namespace accelerate
