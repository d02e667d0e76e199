#include "accelerate/comm/rng_state.h"

#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include "absl/strings/str_join.h"
#include "accelerate/comm/random.h"
#include "accelerate/tensors/generator_state.h"

namespace accelerate {
namespace {

constexpr int kVersion = 1;

template <typename Map>
std::string names_of(const Map& map) {
  return absl::StrJoin(map, ", ",
                       [](std::string* out, const auto& item) { out->append(item.first); });
}

}  // namespace

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
