#include "accelerate/checkpoint/objects/replica_state_dict.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>

#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include "accelerate/parallel/ddp.h"
#include "accelerate/parallel/precision_stages.h"
#include "accelerate/parallel/prepared_model.h"

namespace accelerate {
namespace {

// The stages that have a state. A model may lack stages that a checkpoint has.
constexpr std::array kStages = {DistributedDataParallel::kName, Fp8Stage::kName};

}  // namespace

StateDict replica_state_dict(const ModelState& model) {
  StateDict all;
  for (const auto& stage : model.stages()) {
    StateDict state = stage->state_dict();
    const std::string name(stage->name());
    if (!state.values.empty()) all.values[name] = std::move(state.values);
    for (auto& [tensor_name, tensor] : state.tensors) {
      all.tensors.emplace_back(name + "." + tensor_name, std::move(tensor));
    }
  }
  return all;
}

void load_replica_state_dict(ModelState& model, const StateDict& state,
                             const LoadReplicaStateDictOptions& options) {
  for (const auto& [name, tensor] : state.tensors) {
    const std::string_view stage = std::string_view(name).substr(0, name.find('.'));
    TORCH_CHECK_VALUE(std::find(kStages.begin(), kStages.end(), stage) != kStages.end(),
                      "the state of a model's replica has an unknown tensor \"", name, "\"");
  }
  // Innermost first: an error in the state of replication leaves that of fp8 loaded.
  for (auto stage = model.stages().rbegin(); stage != model.stages().rend(); ++stage) {
    const std::string name((*stage)->name());
    const std::string prefix = name + ".";
    StateDict own;
    for (const auto& [tensor_name, tensor] : state.tensors) {
      if (!tensor_name.starts_with(prefix)) continue;
      own.tensors.emplace_back(tensor_name.substr(prefix.size()), tensor);
    }
    if (state.values.contains(name)) own.values = state.values.at(name);
    (*stage)->load_state_dict(own, options.same_ranks);
  }
}

}  // namespace accelerate
