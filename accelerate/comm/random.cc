#include "accelerate/comm/random.h"

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include "absl/strings/escaping.h"
#include "absl/strings/str_join.h"
#include "accelerate/comm/operations.h"
#include "accelerate/values/texts.h"

namespace accelerate {
namespace {

constexpr int kVersion = 1;

template <typename Map>
std::string names_of(const Map& map) {
  return absl::StrJoin(map, ", ",
                       [](std::string* out, const auto& item) { out->append(item.first); });
}

at::Generator generator_of(RNGType type, const at::Generator& given) {
  if (type != RNGType::kGenerator) return default_generator(type);
  TORCH_CHECK_VALUE(given.defined(), "synchronize_rng_state: there is no generator");
  return given;
}

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

uint64_t seed_for(const at::Tensor& state, int64_t number) {
  constexpr uint64_t kGamma = 0x9E3779B97F4A7C15u;
  return scattered(hash_of(state) + kGamma * (static_cast<uint64_t>(number) + 1));
}

}  // namespace

at::Tensor generator_state(at::Generator generator) {
  std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

void set_generator_state(at::Generator generator, const at::Tensor& state) {
  check_generator_state(generator, state);
  std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(state);
}

void check_generator_state(at::Generator generator, const at::Tensor& state) {
  TORCH_CHECK_VALUE(state.defined() && state.is_cpu() && state.scalar_type() == at::kByte &&
                        state.dim() == 1 && state.is_contiguous(),
                    "a generator's state must be a vector of bytes on the CPU");
  const int64_t expected = generator_state(generator).numel();
  TORCH_CHECK_VALUE(state.numel() == expected, "a generator's state has ", state.numel(),
                    " bytes, one for ", generator.device().type(), " has ", expected);
  // Only a generator can check the bytes.
  at::Generator trial;
  {
    std::lock_guard<std::mutex> lock(generator.mutex());
    trial = generator.clone();
  }
  try {
    trial.set_state(state);
  } catch (const c10::Error& error) {
    TORCH_CHECK_VALUE(false, "a generator's state is damaged: ", error.what_without_backtrace());
  }
}

at::Generator derived_generator(at::Generator like, const at::Tensor& state, int64_t number) {
  at::Generator derived;
  {
    std::lock_guard<std::mutex> lock(like.mutex());
    derived = like.clone();
  }
  derived.set_current_seed(seed_for(state, number));
  return derived;
}

std::string bytes_to_text(const at::Tensor& bytes) {
  std::string text;
  absl::Base64Escape(absl::string_view(static_cast<const char*>(bytes.const_data_ptr()),
                                       static_cast<size_t>(bytes.numel())),
                     &text);
  return text;
}

at::Tensor bytes_from_text(const std::string& text) {
  std::string decoded;
  TORCH_CHECK_VALUE(absl::Base64Unescape(text, &decoded), "a generator's state is not base64: \"",
                    text.substr(0, 32), "\"");
  at::Tensor bytes = at::empty({static_cast<int64_t>(decoded.size())}, at::kByte);
  std::copy(decoded.begin(), decoded.end(), bytes.mutable_data_ptr<uint8_t>());
  return bytes;
}

RNGType device_rng_type(const Runtime& runtime) {
  if (runtime.device().is_cpu()) return RNGType::kTorch;
  const std::string family = runtime.device_family();
  if (family == "gpu") return RNGType::kCuda;
  if (family == "tpu") return RNGType::kXla;
  return contains<RNGType>(family) ? from_string<RNGType>(family) : RNGType::kDevice;
}

at::Generator default_generator(RNGType type, const Runtime& runtime) {
  TORCH_CHECK_VALUE(type != RNGType::kGenerator, "there is no default generator of type \"",
                    to_string(type), "\"");
  if (type == RNGType::kTorch) return at::detail::getDefaultCPUGenerator();
  const RNGType own = device_rng_type(runtime);
  TORCH_CHECK_VALUE(type == own || type == RNGType::kDevice, "rank ", runtime.topology().rank,
                    " has no generator of type \"", to_string(type), "\": it computes on ",
                    runtime.device(), ", whose generator is of type \"", to_string(own),
                    "\"; \"device\" stands for it on any hardware");
  if (own == RNGType::kTorch) return at::detail::getDefaultCPUGenerator();
  return at::globalContext().defaultGenerator(runtime.device());
}

void synchronize_rng_state(const ProcessGroupPtr& group, RNGType type, at::Generator generator) {
  synchronize_rng_states(group, {type}, generator);
}

void synchronize_rng_states(const ProcessGroupPtr& group, const std::vector<RNGType>& types,
                            at::Generator generator) {
  std::vector<at::Generator> generators;
  for (RNGType type : types) generators.push_back(generator_of(type, generator));
  if (!group) return;
  for (const at::Generator& each : generators) {
    const at::Tensor state = generator_state(each);
    broadcast_tensor(group, state);
    set_generator_state(each, state);
  }
}

NamedGenerators all_generators(NamedGenerators generators, const Runtime& runtime) {
  for (const auto& [name, generator] : generators) {
    TORCH_CHECK_VALUE(!contains<RNGType>(name), "a generator cannot be named \"", name,
                      "\": that is a default one's name");
    TORCH_CHECK_VALUE(generator.defined(), "generator \"", name, "\" is undefined");
  }
  for (RNGType type : {RNGType::kTorch, device_rng_type(runtime)}) {
    generators.emplace(to_string(type), default_generator(type, runtime));
  }
  return generators;
}

RngState capture_rng_state(const NamedGenerators& generators, const Runtime& runtime) {
  RngState state;
  for (const auto& [name, generator] : all_generators(generators, runtime)) {
    state.states.emplace(name, generator_state(generator));
  }
  return state;
}

void restore_rng_state(const RngState& state, const NamedGenerators& generators,
                       const Runtime& runtime) {
  const NamedGenerators all = all_generators(generators, runtime);
  for (const auto& [name, bytes] : state.states) {
    TORCH_CHECK_VALUE(all.contains(name), "restore_rng_state: there is a state of generator \"",
                      name, "\", which rank ", runtime.topology().rank, " does not have (it has ",
                      names_of(all), ")");
  }
  for (const auto& [name, generator] : all) {
    const auto found = state.states.find(name);
    TORCH_CHECK_VALUE(found != state.states.end(),
                      "restore_rng_state: there is no state of generator \"", name,
                      "\" (there are ", names_of(state.states), ")");
    try {
      check_generator_state(generator, found->second);
    } catch (const c10::Error& error) {
      TORCH_CHECK_VALUE(false, "restore_rng_state: generator \"", name,
                        "\": ", error.what_without_backtrace());
    }
  }
  for (const auto& [name, generator] : all) set_generator_state(generator, state.states.at(name));
}

nlohmann::json rng_state_to_json(const RngState& state) {
  nlohmann::json states = nlohmann::json::object();
  for (const auto& [name, bytes] : state.states) states[name] = bytes_to_text(bytes);
  return {{"version", kVersion}, {"states", std::move(states)}};
}

RngState rng_state_from_json(const nlohmann::json& json) {
  try {
    const int version = json.at("version").get<int>();
    TORCH_CHECK_VALUE(version == kVersion, "a state of random number generators of version ",
                      version, "; known is ", kVersion);
    RngState state;
    for (const auto& [name, text] : json.at("states").items()) {
      try {
        state.states.emplace(name, bytes_from_text(text.get<std::string>()));
      } catch (const c10::Error& error) {
        TORCH_CHECK_VALUE(false, "generator \"", name, "\": ", error.what_without_backtrace());
      }
    }
    return state;
  } catch (const nlohmann::json::exception& error) {
    TORCH_CHECK_VALUE(false, "this is not a state of random number generators: ", error.what());
  }
}

}  // namespace accelerate
