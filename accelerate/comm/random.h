/// States of random number generators: shared by all ranks, and as values, which are captured, kept
/// in a checkpoint, and restored, so that the same numbers are drawn again. accelerate/state/seed.h
/// has seeds.
///
/// Mirrors: accelerate utils/random.py, and what checkpointing.py writes into random_states_{rank}.
/// Threads: the rank's thread; for one generator's state any, and it is locked meanwhile.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <nlohmann/json_fwd.hpp>

#include "accelerate/base/enums.h"
#include "accelerate/comm/process_group.h"
#include "accelerate/runtime/runtime.h"

namespace accelerate {

/// The state of one generator: a uint8 vector, whose length and meaning are those of the
/// generator's kind. Local. The result is the caller's own.
at::Tensor generator_state(at::Generator generator);

/// Errors: c10::ValueError saying what is wrong if the state is not one of such a generator; the
/// generator is as it was then.
void set_generator_state(at::Generator generator, const at::Tensor& state);

/// The same errors, and sets nothing.
void check_generator_state(at::Generator generator, const at::Tensor& state);

/// A generator of the kind of `like`. Its seed is a hash of the bytes of `state`, which is what
/// generator_state() gives, and of `number`: the same on every machine, another for another state
/// or another number. `like` does not change. Local.
at::Generator derived_generator(at::Generator like, const at::Tensor& state, int64_t number);

/// A uint8 vector as text (base64), and back. Errors: c10::ValueError for text that is none.
std::string bytes_to_text(const at::Tensor& bytes);
at::Tensor bytes_from_text(const std::string& text);

/// The type that stands for the rank's device: kCuda on a GPU, kXla on a TPU, ...; kTorch on a CPU,
/// and kDevice on a device that has no other name. Local.
RNGType device_rng_type(const Runtime& runtime = Runtime::current());

/// The default generator of that type on this rank. Local.
/// Errors: c10::ValueError for a kind of device that is not the rank's, and for kGenerator.
at::Generator default_generator(RNGType type, const Runtime& runtime = Runtime::current());

/// Gives every rank the state that rank 0's generator has. `generator` is needed for kGenerator
/// only. Collective; a null group stands for one rank.
/// Errors: as default_generator; c10::ValueError for kGenerator without a generator.
void synchronize_rng_state(const ProcessGroupPtr& group, RNGType type,
                           at::Generator generator = {});

/// All of them, in the given order. Collective. Errors: as above, before any is synchronised.
void synchronize_rng_states(const ProcessGroupPtr& group, const std::vector<RNGType>& types,
                            at::Generator generator = {});

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
