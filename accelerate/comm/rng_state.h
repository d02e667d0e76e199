/// The states of a rank's random number generators as a value: captured, kept in a checkpoint, and
/// restored, so that the same numbers are drawn again.
///
/// Threads: the rank's thread.
/// Mirrors: what accelerate checkpointing.py writes into random_states_{rank}.
#pragma once

#include <map>
#include <string>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <nlohmann/json_fwd.hpp>

#include "accelerate/runtime/runtime.h"

namespace accelerate {

struct RngState {
  /// By the generator's name, its state: a uint8 vector. "torch" is LibTorch's default CPU
  /// generator; "cuda", "npu", ... (RNGType) is the default generator of the rank's device, if it
  /// has one; other names are those that capture_rng_state was given.
  std::map<std::string, at::Tensor> states;
};

/// Generators besides the default ones, by names of one's own.
using NamedGenerators = std::map<std::string, at::Generator>;

/// These and the rank's default ones, by the names that RngState has. Local.
/// Errors: c10::ValueError for a name that is an RNGType's, and an undefined generator.
NamedGenerators all_generators(NamedGenerators generators = {},
                               const Runtime& runtime = Runtime::current());

/// Local. Errors: as all_generators.
RngState capture_rng_state(const NamedGenerators& generators = {},
                           const Runtime& runtime = Runtime::current());

/// Sets the rank's generators, and the same `generators` as were captured. Local.
/// Errors: c10::ValueError naming the generator of which there is no state, the state for which
///         there is no generator, or whose state is damaged or another kind's, and what is wrong
///         with it. No generator has changed then.
void restore_rng_state(const RngState& state, const NamedGenerators& generators = {},
                       const Runtime& runtime = Runtime::current());

/// A JSON object, its bytes as base64, and back.
/// Errors: c10::ValueError for JSON that is not such an object.
nlohmann::json rng_state_to_json(const RngState& state);
RngState rng_state_from_json(const nlohmann::json& json);

}  // namespace accelerate
