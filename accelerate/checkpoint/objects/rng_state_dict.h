/// The state of random number generators as a StateDict: a uint8 vector for each, by its name.
///
/// Threads: the rank's thread. All is local.
/// Mirrors: what accelerate checkpointing.py writes into random_states_{rank}.
#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "accelerate/comm/rng_state.h"
#include "accelerate/runtime/runtime.h"
#include "accelerate/tensors/state_dict.h"

namespace accelerate {

StateDict rng_state_dict(const RngState& state);
/// What restore_rng_state takes. Errors: c10::ValueError naming a tensor that is no vector of
/// bytes.
RngState rng_state_of(const StateDict& state);

/// A state for a rank that has none, because there were fewer ranks when the checkpoint was made:
/// always the same, and other numbers than those of any other rank. Each of the rank's generators
/// (the default ones and `generators`) is seeded with a hash of the state that rank 0's generator
/// of that name was in, or rank 0's "torch" where it had none, and of the rank.
/// Errors: c10::ValueError if rank 0's state has no "torch" either.
RngState derive_rng_state(const RngState& rank0, int rank, const NamedGenerators& generators = {},
                          const Runtime& runtime = Runtime::current());

/// What a peer's random_states_{rank}.pkl says that means something here.
struct PeerRandomStates {
  /// Accelerator's count of micro-steps.
  std::optional<int64_t> step;
  /// Of LibTorch's default CPU generator ("torch" in an RngState); undefined if it is not there.
  at::Tensor torch;
};

/// `file` is the dict that was in it. Errors: c10::ValueError for what is no such dict.
PeerRandomStates read_peer_random_states(const c10::IValue& file);

}  // namespace accelerate
