#include "accelerate/checkpoint/objects/replica_state_dict.h"

#include <map>
#include <string>
#include <utility>

#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include "accelerate/parallel/ddp.h"
#include "accelerate/parallel/prepared_model.h"
#include "accelerate/precision/fp8_model.h"

namespace accelerate {
namespace {

constexpr char kDdp[] = "ddp.";
constexpr char kFp8[] = "fp8.";

}  // namespace

StateDict replica_state_dict(const ModelState& model) {
  StateDict state;
  if (model.ddp() != nullptr) {
    StateDict ddp = model.ddp()->state_dict();
    state.values["ddp"] = std::move(ddp.values);
    for (auto& [name, tensor] : ddp.tensors) {
      state.tensors.emplace_back(kDdp + name, std::move(tensor));
    }
  }
  if (model.fp8() != nullptr) {
    for (auto& [name, tensor] : model.fp8()->state_dict()) {
      state.tensors.emplace_back(kFp8 + name, tensor);
    }
  }
  return state;
}

void load_replica_state_dict(ModelState& model, const StateDict& state,
                             const LoadReplicaStateDictOptions& options) {
  StateDict ddp;
  std::map<std::string, at::Tensor> fp8;
  for (const auto& [name, tensor] : state.tensors) {
    if (name.starts_with(kDdp)) {
      ddp.tensors.emplace_back(name.substr(sizeof(kDdp) - 1), tensor);
    } else {
      TORCH_CHECK_VALUE(name.starts_with(kFp8) && tensor.defined(),
                        "the state of a model's replica has \"", name,
                        "\", which is no part of it");
      fp8.emplace(name.substr(sizeof(kFp8) - 1), tensor);
    }
  }
  if (model.fp8() != nullptr && !fp8.empty()) model.fp8()->load_state_dict(fp8);
  if (model.ddp() == nullptr || !options.same_ranks || !state.values.contains("ddp")) return;
  ddp.values = state.values.at("ddp");
  model.ddp()->load_state_dict(ddp);
}

}  // namespace accelerate
