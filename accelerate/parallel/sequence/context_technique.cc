#include "accelerate/parallel/sequence/context_technique.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include "accelerate/base/mesh_axis.h"
#include "accelerate/mesh/device_mesh.h"
#include "accelerate/operators/attention_calls.h"
#include "accelerate/operators/operator_mode.h"
#include "accelerate/operators/random_streams.h"
#include "accelerate/parallel/sequence/context_scope.h"
#include "accelerate/plan/plan.h"
#include "accelerate/runtime/runtime.h"

namespace accelerate {
namespace {

class ContextParallelTechnique final : public Technique {
 public:
  // `has_stages`: passes are those of stages of a pipeline, which may have no attention.
  ContextParallelTechnique(Runtime& runtime, std::shared_ptr<RandomStreams> streams,
                           bool has_stages)
      : runtime_(runtime), streams_(std::move(streams)), has_stages_(has_stages) {}

  std::string_view name() const override { return kContextParallelTechnique; }

  void forward(ForwardPass& pass) override {
    const auto* const live = runtime_.find_shared<LiveContext>();
    ContextParallelScope::Live* const scope = live != nullptr ? live->scope : nullptr;
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
    TORCH_CHECK_VALUE(divided > 0 || has_stages_, "rank ", rank,
                      ": a model called no scaled_dot_product_attention inside "
                      "maybe_context_parallel, so that its tokens see those of this rank at most; "
                      "let it call that operator, or call the model outside of the scope");
    if (knows_positions_) return;
    TORCH_CHECK_VALUE(
        scope->gives_positions(inputs), "rank ", rank,
        ": a model inside maybe_context_parallel was given no positions, so that it counts this "
        "rank's tokens from 0; give positions to the scope as one of the buffers and to the model "
        "as an input, or ask the scope for positions() if the model needs none");
    knows_positions_ = true;
  }

  std::string passes_text() const override {
    return divided_attention_text(MeshAxis::kCp, num_attention_calls_);
  }

 private:
  Runtime& runtime_;
  int64_t num_attention_calls_ = 0;
  const std::shared_ptr<RandomStreams> streams_;
  const bool has_stages_;
  bool knows_positions_ = false;
};

}  // namespace

std::unique_ptr<Technique> make_context_parallel_technique(const TechniqueContext& context) {
  const ModelPlan& plan = context.plan;
  if (plan.device_mesh == nullptr || plan.mesh.size(MeshAxis::kCp) == 1) return nullptr;
  return std::make_unique<ContextParallelTechnique>(
      Runtime::current(), RandomStreams::along(plan.device_mesh->group(MeshAxis::kCp)),
      /*has_stages=*/plan.mesh.size(MeshAxis::kPp) > 1);
}

}  // namespace accelerate
