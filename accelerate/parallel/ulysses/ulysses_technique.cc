#include "accelerate/parallel/ulysses/ulysses_technique.h"

#include <algorithm>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include "accelerate/base/mesh_axis.h"
#include "accelerate/mesh/device_mesh.h"
#include "accelerate/operators/attention_calls.h"
#include "accelerate/operators/operator_mode.h"
#include "accelerate/parallel/ulysses/ulysses_handler.h"
#include "accelerate/runtime/runtime.h"
#include "accelerate/runtime/shared_objects.h"

namespace accelerate {
namespace {

bool is_integral(const at::Tensor& tensor) {
  return c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/false);
}

// The tokens of a pass, integers [batch, tokens], or what else comes first with such sizes;
// undefined if nothing does.
at::Tensor tokens_of(const std::vector<at::Tensor>& inputs) {
  const auto found = std::ranges::find_if(
      inputs, [](const at::Tensor& input) { return input.defined() && input.dim() >= 2; });
  return found == inputs.end() ? at::Tensor() : *found;
}

// Whether integers with a number for each token come besides. `reads_values`: and they are not a
// mask of zeros and ones.
bool has_positions(const std::vector<at::Tensor>& inputs, const at::Tensor& tokens,
                   bool reads_values) {
  return std::ranges::any_of(inputs, [&](const at::Tensor& input) {
    return input.defined() && !input.is_same(tokens) && input.dim() >= 1 && is_integral(input) &&
           input.size(-1) == tokens.size(1) &&
           (!reads_values || tokens.size(1) < 3 || input.gt(1).any().item<bool>());
  });
}

}  // namespace

void UlyssesTechnique::forward(ForwardPass& pass) {
  const std::vector<at::Tensor> inputs = pass.inputs();
  const at::Tensor tokens = tokens_of(inputs);
  const auto handler =
      std::make_shared<UlyssesHandler>(group_, rank_, tokens.defined() ? tokens.size(1) : 0);
  {
    const OperatorModeScope attention(handler), draws(streams_);
    pass.proceed();
  }
  num_attention_calls_ += handler->attentions();
  if (handler->attentions() == 0 || !tokens.defined() || !is_integral(tokens)) return;
  // Reading values makes the host wait for the device, so that is done once.
  const bool reads_values = !knows_positions_ && !has_shapes_alone(Runtime::current());
  TORCH_CHECK_VALUE(has_positions(inputs, tokens, reads_values), "rank ", rank_,
                    ": the model attends to ", tokens.size(1), " tokens of each of ",
                    size_of(group_),
                    " ranks along sp, but its forward pass gets no positions for them, which would "
                    "begin at 0 on each rank; give it the numbers of the tokens in their sequences "
                    "(the loader's \"position_ids\")");
  knows_positions_ = true;
}

std::string UlyssesTechnique::passes_text() const {
  return divided_attention_text(MeshAxis::kSp, num_attention_calls_);
}

std::unique_ptr<Technique> make_ulysses_technique(const TechniqueContext& context) {
  const ModelPlan& plan = context.plan;
  if (plan.device_mesh == nullptr || plan.mesh.size(MeshAxis::kSp) == 1) return nullptr;
  const ProcessGroupPtr& group = plan.device_mesh->group(MeshAxis::kSp);
  return std::make_unique<UlyssesTechnique>(group, plan.rank, RandomStreams::along(group));
}

}  // namespace accelerate
