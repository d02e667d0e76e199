/// Seeds and states of random number generators, the same on all ranks or on purpose different.
///
/// Mirrors: accelerate utils/random.py.
/// Threads: the rank's thread.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Generator.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace accelerate {

struct SetSeedOptions {
  /// Each rank gets a seed of its own: seed + its number.
  bool device_specific = false;
};

/// Seeds LibTorch's default generators, that of the CPU and those of the devices. Local.
void set_seed(uint64_t seed, const SetSeedOptions& options = {});

/// A generator whose state ranks can be made to share.
enum class RngType {
  kTorch,      ///< LibTorch's default CPU generator.
  kDevice,     ///< The default generator of the rank's device; on a CPU the same as kTorch.
  kGenerator,  ///< One given by hand, such as a sampler's.
};

/// Gives every rank the state that rank 0's generator has. `generator` is needed for kGenerator
/// only. Collective; a null group stands for one rank.
/// Errors: c10::ValueError for kGenerator without a generator.
void synchronize_rng_state(const c10::intrusive_ptr<c10d::ProcessGroup>& group, RngType type,
                           at::Generator generator = {});

/// All of them, in the given order. Collective.
void synchronize_rng_states(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                            const std::vector<RngType>& types, at::Generator generator = {});

}  // namespace accelerate
