/// Seeds and states of random number generators, either the same on all ranks or different on
/// purpose.
///
/// Mirrors: accelerate utils/random.py.
/// Threads: the rank's thread.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Generator.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "accelerate/base/enums.h"
#include "accelerate/runtime/runtime.h"

namespace accelerate {

struct SetSeedOptions {
  /// Each rank gets a seed of its own: seed + its number.
  bool device_specific = false;
  /// From now on only algorithms that always give the same bits, where there are such; operators
  /// that have none throw. Can be slower.
  bool deterministic = false;
};

/// Seeds LibTorch's default generators, that of the CPU and those of the devices. Local.
void set_seed(uint64_t seed, const SetSeedOptions& options = {});

/// The type that stands for the rank's device: kCuda on a GPU, kXla on a TPU, ...; kTorch on a CPU,
/// and kDevice on a device that has no other name. Local.
RNGType device_rng_type(const Runtime& runtime = Runtime::current());

/// The default generator of that type on this rank. Local.
/// Errors: c10::ValueError for a kind of device that is not the rank's, and for kGenerator.
at::Generator default_generator(RNGType type, const Runtime& runtime = Runtime::current());

/// Gives every rank the state that rank 0's generator has. `generator` is needed for kGenerator
/// only. Collective; a null group stands for one rank.
/// Errors: as default_generator; c10::ValueError for kGenerator without a generator.
void synchronize_rng_state(const c10::intrusive_ptr<c10d::ProcessGroup>& group, RNGType type,
                           at::Generator generator = {});

/// All of them, in the given order. Collective. Errors: as above, before any is synchronised.
void synchronize_rng_states(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                            const std::vector<RNGType>& types, at::Generator generator = {});

}  // namespace accelerate
