#include "accelerate/fsdp_utils.h"

#include "accelerate/checkpoint/folder/state_saver.h"
#include "accelerate/parallel/apply.h"
#include "accelerate/parallel/sharded/activation_checkpointing.h"
#include "accelerate/techniques/technique_list.h"

namespace accelerate::internal {
namespace {

// A plugin may be given as a program wrote it.
StateDictType state_type(const FullyShardedDataParallelPlugin& plugin, Accelerator& accelerator) {
  if (plugin.is_resolved) return plugin.state_type();
  return resolve(plugin, accelerator.runtime().environment()).state_type();
}

}  // namespace

StateSaver& SaverAccess::to(Accelerator& accelerator) { return *accelerator.saver_; }

FsdpObjectOptions object_options(const FullyShardedDataParallelPlugin& plugin,
                                 Accelerator& accelerator, const FsdpModelOptions& options) {
  return {.state_dict_type = state_type(plugin, accelerator),
          .index = options.model_index,
          .wanted = options.adapter_only,
          .use_dcp = options.use_dcp};
}

FsdpObjectOptions object_options(const FullyShardedDataParallelPlugin& plugin,
                                 Accelerator& accelerator, const FsdpOptimizerOptions& options) {
  return {.state_dict_type = state_type(plugin, accelerator),
          .index = options.optimizer_index,
          .use_dcp = options.use_dcp};
}

void apply_ac(Accelerator& accelerator, ModelState& model) {
  const FullyShardedDataParallelPlugin* plugin = accelerator.fsdp_plugin();
  TORCH_CHECK_VALUE(plugin != nullptr, "fsdp2_apply_ac needs an Accelerator with an fsdp_plugin");
  if (model.find_technique<ActivationCheckpointingTechnique>() != nullptr) return;
  add_technique(all_techniques(), model, recomputation_of(*model.module(), *plugin));
}

}  // namespace accelerate::internal
