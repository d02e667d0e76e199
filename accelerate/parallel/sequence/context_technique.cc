#include "accelerate/parallel/sequence/context_technique.h"

#include <cstdint>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include "accelerate/base/mesh_axis.h"
#include "accelerate/mesh/device_mesh.h"
#include "accelerate/operators/attention_calls.h"
#include "accelerate/operators/operator_mode.h"
#include "accelerate/parallel/sequence/context_scope.h"
#include "accelerate/plan/plan.h"

namespace accelerate {

void ContextParallelTechnique::forward(ForwardPass& pass) {
  const auto* const live = runtime_.find_shared<LiveContext>();
  ContextParallelScope::Live* const scope = live != nullptr ? live->scope : nullptr;
  if (live == nullptr) count_undivided_pass();
  if (scope == nullptr || scope->handler() == nullptr) return pass.proceed();
  std::vector<at::Tensor> inputs;
  if (!knows_positions_) inputs = pass.inputs();
  const int64_t calls = scope->handler()->num_calls();
  {
    const OperatorModeScope attention(scope->handler()), draws(streams_);
    pass.proceed();
  }
  if (at::GradMode::is_enabled()) scope->add_pass(pass.outputs());
  const int rank = runtime_.topology().rank;
  const int64_t divided = scope->handler()->num_calls() - calls;
  num_attention_calls_ += divided;
  TORCH_CHECK_VALUE(
      divided > 0 || has_stages_, "rank ", rank,
      ": a model called no scaled_dot_product_attention inside "
      "maybe_context_parallel, so that its tokens see those of this rank at most; let "
      "it call that operator, or call the model outside of the scope");
  if (knows_positions_) return;
  TORCH_CHECK_VALUE(
      scope->gives_positions(inputs), "rank ", rank,
      ": a model inside maybe_context_parallel was given no positions, so that it counts this "
      "rank's tokens from 0; give positions to the scope as one of the buffers and to the model as "
      "an input, or ask the scope for positions() if the model needs none");
  knows_positions_ = true;
}

void ContextParallelTechnique::count_undivided_pass() {
  if (!at::GradMode::is_enabled() || ++num_undivided_passes_ != 2) return;
  if (runtime_.topology().rank != 0) return;
  TORCH_WARN(
      "Ranks along cp compute whole sequences, alike on each of them: a model was trained, and the "
      "program has not entered maybe_context_parallel. To divide sequences, call the model and "
      "backward inside of Accelerator::maybe_context_parallel.");
}

std::string ContextParallelTechnique::passes_text() const {
  return divided_attention_text(MeshAxis::kCp, num_attention_calls_);
}

std::unique_ptr<Technique> make_context_parallel_technique(const TechniqueContext& context) {
  const ModelPlan& plan = context.plan;
  if (plan.device_mesh == nullptr || plan.mesh.size(MeshAxis::kCp) == 1) return nullptr;
  return std::make_unique<ContextParallelTechnique>(
      Runtime::current(), RandomStreams::along(plan.device_mesh->group(MeshAxis::kCp)),
      /*has_stages=*/plan.mesh.size(MeshAxis::kPp) > 1);
}

}  // namespace accelerate
