#include "accelerate/parallel/sharded/activation_checkpointing.h"

#include <utility>

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "accelerate/config/fsdp_plugin.h"
#include "accelerate/config/zero_config.h"
#include "accelerate/parallel/sharded/units.h"
#include "accelerate/plan/plan.h"

namespace accelerate {

void ActivationCheckpointingTechnique::forward(ForwardPass& pass) {
  const RecomputationScope scope(recomputation_);
  pass.proceed();
  if (has_blocks_ || !at::GradMode::is_enabled()) return;
  TORCH_CHECK_VALUE(scope.calls() > 0,
                    "activation_checkpointing acts where the model calls "
                    "accelerate::block(module, inputs...), but this forward pass has no such call",
                    recomputation_->modules ? " of a module that auto_wrap_policy picks" : "",
                    "; add the calls, or leave activation_checkpointing out");
  has_blocks_ = true;
}

std::unique_ptr<Technique> recomputation_of(const torch::nn::Module& module,
                                            const FullyShardedDataParallelPlugin& plugin) {
  Recomputation recomputation{
      .options = {.offload_inputs = plugin.activation_checkpointing_offload.value_or(false)}};
  if (plugin.auto_wrap_policy) {
    auto& modules = recomputation.modules.emplace();
    for (const NamedModule& each : recomputed_modules(module, plugin)) modules.insert(each.module);
  }
  return std::make_unique<ActivationCheckpointingTechnique>(std::move(recomputation));
}

std::unique_ptr<Technique> make_activation_checkpointing_technique(
    const TechniqueContext& context) {
  const ZeroConfig* zero = context.plan.zero;
  if (zero != nullptr) {
    return zero->activation_checkpointing
               ? std::make_unique<ActivationCheckpointingTechnique>(Recomputation())
               : nullptr;
  }
  const FullyShardedDataParallelPlugin* plugin = context.plan.fsdp;
  if (plugin == nullptr || !plugin->activation_checkpointing.value_or(false)) return nullptr;
  return recomputation_of(*context.model.module(), *plugin);
}

}  // namespace accelerate
