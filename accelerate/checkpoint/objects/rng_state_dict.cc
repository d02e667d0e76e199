#include "accelerate/checkpoint/objects/rng_state_dict.h"

#include <string>

#include <c10/util/Exception.h>

#include "accelerate/tensors/generator_state.h"

namespace accelerate {
namespace {

// FNV-1a.
uint64_t hash_of(const at::Tensor& bytes) {
  uint64_t hash = 0xCBF29CE484222325u;
  const uint8_t* data = bytes.const_data_ptr<uint8_t>();
  for (int64_t i = 0; i < bytes.numel(); ++i) hash = (hash ^ data[i]) * 0x100000001B3u;
  return hash;
}

// The finisher of SplitMix64, which changes half of the bits for each that changes.
uint64_t scattered(uint64_t bits) {
  bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9u;
  bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EBu;
  return bits ^ (bits >> 31);
}

uint64_t seed_for(const at::Tensor& state, int rank) {
  constexpr uint64_t kGamma = 0x9E3779B97F4A7C15u;
  return scattered(hash_of(state) + kGamma * (static_cast<uint64_t>(rank) + 1));
}

void check_bytes(const std::string& name, const at::Tensor& bytes) {
  TORCH_CHECK_VALUE(bytes.defined() && bytes.scalar_type() == at::kByte && bytes.dim() == 1,
                    "the state of generator \"", name, "\" is no vector of bytes");
}

}  // namespace

StateDict rng_state_dict(const RngState& state) {
  StateDict result;
  for (const auto& [name, bytes] : state.states) result.tensors.emplace_back(name, bytes);
  return result;
}

RngState rng_state_of(const StateDict& state) {
  RngState result;
  for (const auto& [name, bytes] : state.tensors) {
    check_bytes(name, bytes);
    TORCH_CHECK_VALUE(result.states.emplace(name, bytes.cpu().contiguous()).second,
                      "there are two states of generator \"", name, "\"");
  }
  return result;
}

RngState derive_rng_state(const RngState& rank0, int rank, const NamedGenerators& generators,
                          const Runtime& runtime) {
  TORCH_CHECK_VALUE(rank >= 0, "rank ", rank, " is no rank");
  RngState derived;
  for (const auto& [name, own] : all_generators(generators, runtime)) {
    auto found = rank0.states.find(name);
    if (found == rank0.states.end()) found = rank0.states.find("torch");
    TORCH_CHECK_VALUE(found != rank0.states.end(), "rank 0 has no state of a generator \"", name,
                      "\", nor of \"torch\", that one for rank ", rank, " could be derived from");
    check_bytes(found->first, found->second);
    at::Generator generator = own.clone();
    generator.set_current_seed(seed_for(found->second.cpu().contiguous(), rank));
    derived.states.emplace(name, generator_state(generator));
  }
  return derived;
}

PeerRandomStates read_peer_random_states(const c10::IValue& file) {
  TORCH_CHECK_VALUE(file.isGenericDict(), "random states are a dict, this is a ", file.tagKind());
  PeerRandomStates states;
  for (const auto& entry : file.toGenericDict()) {
    if (!entry.key().isString()) continue;
    const std::string& name = entry.key().toStringRef();
    if (name == "step") {
      TORCH_CHECK_VALUE(entry.value().isInt() && entry.value().toInt() >= 0,
                        "random states: \"step\" is no number of steps");
      states.step = entry.value().toInt();
    } else if (name == "torch_manual_seed") {
      TORCH_CHECK_VALUE(entry.value().isTensor(), "random states: \"", name, "\" is no tensor");
      const at::Tensor& bytes = entry.value().toTensor();
      check_bytes("torch", bytes);
      states.torch = bytes.cpu().contiguous();
    }
  }
  return states;
}

}  // namespace accelerate
