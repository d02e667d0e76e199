#include "accelerate/parallel/precision_stages.h"

#include <map>
#include <string>

#include <c10/util/Exception.h>

#include "accelerate/precision/fp8_model.h"
#include "accelerate/tensors/tree_operations.h"

namespace accelerate {

void AutocastStage::forward(ForwardPass& pass) {
  {
    const AutocastScope scope(settings_);
    pass.proceed();
  }
  pass.set_outputs(convert_to_fp32(pass.outputs()));
}

void Fp8Stage::forward(ForwardPass& pass) {
  const Fp8Model::Scope scope = model_->forward_scope(pass.synchronises());
  pass.proceed();
}

StateDict Fp8Stage::state_dict() const {
  StateDict state;
  for (auto& [name, tensor] : model_->state_dict()) state.tensors.emplace_back(name, tensor);
  return state;
}

void Fp8Stage::load_state_dict(const StateDict& state, bool /*same_ranks*/) {
  if (state.tensors.empty()) return;
  for (const auto& [name, tensor] : state.tensors) {
    TORCH_CHECK_VALUE(tensor.defined(), "the state of a model in fp8 has no tensor \"", name, "\"");
  }
  model_->load_state_dict({state.tensors.begin(), state.tensors.end()});
}

}  // namespace accelerate
