#include "accelerate/checkpoint/objects/states_of_stages.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include "accelerate/comm/agree.h"

namespace accelerate {
namespace {

using internal::agree_on_values;
using nlohmann::ordered_json;

constexpr char kStates[] = "state";

// What a rank has of an optimizer's state, without the values of its tensors.
struct DescribedState {
  std::vector<std::string> names = {};
  std::vector<at::ScalarType> dtypes = {};
  // The shapes of whole tensors.
  std::vector<std::vector<int64_t>> shapes = {};
  // JSON text of the states' values by the numbers of their parameters; empty: none.
  std::string states = {};
};

auto tree_members(DescribedState& state) {
  return std::tie(state.names, state.dtypes, state.shapes, state.states);
}

DescribedState describe(const PlacedState& placed) {
  DescribedState described;
  for (size_t i = 0; i < placed.places.size(); ++i) {
    const auto& [name, tensor] = placed.state.tensors[i];
    const std::optional<PlacedPart>& place = placed.places[i];
    described.names.push_back(name);
    described.dtypes.push_back(tensor.scalar_type());
    described.shapes.push_back(place ? place->shape() : tensor.sizes().vec());
  }
  const auto states = placed.state.values.find(kStates);
  if (states != placed.state.values.end()) described.states = states->dump();
  return described;
}

// The tensors of all ranks in the order of these: this rank's own, and empty ones.
PlacedState with_others(PlacedState own, const std::vector<DescribedState>& ranks,
                        const internal::SharedOptimizer& optimizer, const ShardPlaces& places) {
  std::unordered_map<std::string, size_t> own_tensors;
  for (size_t i = 0; i < own.places.size(); ++i) own_tensors[own.state.tensors[i].first] = i;
  const std::vector<at::Tensor> parameters = parameters_by_number(optimizer);
  std::unordered_set<std::string> seen;
  PlacedState all = {.state = {.values = std::move(own.state.values)}};
  ordered_json states = ordered_json::object();
  for (const DescribedState& rank : ranks) {
    for (size_t i = 0; i < rank.names.size(); ++i) {
      const std::string& name = rank.names[i];
      if (!seen.insert(name).second) continue;
      if (const auto found = own_tensors.find(name); found != own_tensors.end()) {
        all.state.tensors.push_back(own.state.tensors[found->second]);
        all.places.push_back(std::move(own.places[found->second]));
      } else {
        all.state.tensors.emplace_back(name,
                                       at::empty({0}, at::TensorOptions().dtype(rank.dtypes[i])));
        all.places.push_back(place_of_state(parameters, places, name, rank.shapes[i]));
      }
    }
    if (rank.states.empty()) continue;
    const ordered_json of_rank = ordered_json::parse(rank.states);
    for (const auto& [number, values] : of_rank.items()) {
      if (!states.contains(number)) states[number] = values;
    }
  }
  if (all.state.values.contains(kStates)) all.state.values[kStates] = std::move(states);
  return all;
}

}  // namespace

std::vector<at::ScalarType> dtypes_of_stages(const ProcessGroupPtr& stages,
                                             const ShardPlaces& places,
                                             const NamedTensors& tensors) {
  std::vector<at::ScalarType> dtypes;
  for (const auto& [name, tensor] : tensors) dtypes.push_back(tensor.scalar_type());
  if (stages == nullptr) return dtypes;
  std::vector<bool> is_known(dtypes.size());
  const auto all = agree_on_values(stages, "dtypes of stages", [&] {
    std::vector<at::ScalarType> own = dtypes;
    for (size_t i = 0; i < own.size(); ++i) {
      const ShardPlaces::Entry* const entry = places.find(tensors[i].second);
      if (entry != nullptr && !entry->place.is_here()) own[i] = at::ScalarType::Undefined;
    }
    return own;
  });
  for (const std::vector<at::ScalarType>& rank : all) {
    TORCH_INTERNAL_ASSERT(rank.size() == dtypes.size(), "stages have ", rank.size(), " and ",
                          dtypes.size(), " tensors of one model");
    for (size_t i = 0; i < rank.size(); ++i) {
      if (is_known[i] || rank[i] == at::ScalarType::Undefined) continue;
      dtypes[i] = rank[i];
      is_known[i] = true;
    }
  }
  return dtypes;
}

PlacedState state_of_stages(const ProcessGroupPtr& stages,
                            const internal::SharedOptimizer& optimizer, const ShardPlaces& places,
                            StateDict own) {
  PlacedState placed = {.state = std::move(own)};
  const auto find_places = [&] {
    placed.places = places_of_state(optimizer, places, placed.state.tensors);
  };
  if (stages == nullptr) {
    find_places();
    return placed;
  }
  const auto ranks = agree_on_values(stages, "states of stages", [&] {
    find_places();
    return describe(placed);
  });
  return with_others(std::move(placed), ranks, optimizer, places);
}

}  // namespace accelerate
