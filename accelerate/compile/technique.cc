#include "accelerate/compile/technique.h"

#include <algorithm>

#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "accelerate/config/dynamo_plugin.h"
#include "accelerate/config/fsdp_plugin.h"
#include "accelerate/config/zero_config.h"
#include "accelerate/modules/value_at_use.h"
#include "accelerate/operators/managed_storage.h"
#include "accelerate/plan/plan.h"
#include "accelerate/precision/job_precision.h"

namespace accelerate {

CompileTechnique::CompileTechnique(const std::shared_ptr<torch::nn::Module>& module,
                                   const TorchDynamoPlugin& plugin)
    : module_(module),
      is_regional_(plugin.use_regional_compilation.value_or(false)),
      regions_(std::make_shared<CompiledRegions>(plugin)) {}

CompileTechnique::CompileTechnique(const CompileTechnique& other)
    : module_(other.module_), is_regional_(other.is_regional_), regions_(other.regions_) {}

void CompileTechnique::forward(ForwardPass& pass) {
  if (!is_regional_) {
    const auto module = module_.lock();
    TORCH_CHECK(module != nullptr, "a compiled model was freed");
    TORCH_CHECK(!pass.input_dtype(), "a compiled model gets its inputs in another dtype");
    return regions_->run(module, pass.call());
  }
  const BlockRunnerScope scope(regions_.get());
  pass.proceed();
  if (has_looked_.exchange(true)) return;
  const CompileReport report = regions_->report();
  if (report.recorded_calls + report.eager_calls == 0) {
    TORCH_WARN(
        "dynamo_plugin: use_regional_compilation, but the model calls no accelerate::block(module, "
        "inputs...), so nothing of it is compiled");
  }
}

std::unique_ptr<Technique> make_compile_technique(const TechniqueContext& context) {
  const TorchDynamoPlugin* plugin = context.plan.dynamo;
  if (plugin == nullptr) return nullptr;
  if (const auto* earlier = context.model.find_technique<CompileTechnique>()) {
    return std::make_unique<CompileTechnique>(*earlier);
  }
  if (plugin->dynamic.value_or(false)) {
    TORCH_WARN_ONCE(
        "dynamo_plugin: dynamic=true has no effect: each set of sizes is recorded by itself");
  }
  const bool is_tuned = plugin->mode.value_or("default") != "default" || plugin->options;
  if (is_tuned && backend_of(*plugin) != DynamoBackend::kInductor) {
    TORCH_WARN_ONCE("dynamo_plugin: a mode and options are for packages; they have no effect on ",
                    to_string(backend_of(*plugin)));
  }
  if (plugin->mode == "reduce-overhead") {
    TORCH_WARN_ONCE(
        "dynamo_plugin: mode=reduce-overhead captures CUDA graphs, which this version does not; "
        "its packages are those of mode=default");
  }
  return std::make_unique<CompileTechnique>(context.model.module(), *plugin);
}

void check_compiled_model(const TechniqueContext& context) {
  const ModelPlan& plan = context.plan;
  if (plan.dynamo == nullptr) return;
  const auto refuse = [](bool refuses, const char* what) {
    TORCH_CHECK_VALUE(!refuses, "dynamo_plugin: ", what);
  };
  refuse(plan.precision.fp8().has_value(),
         "layers in fp8 are products of this library's own, which are not recorded; use bf16, or "
         "set dynamo_backend=no");
  refuse(plan.layout != nullptr,
         "layers, stages, sequences or experts that ranks divide are not recorded; set the sizes "
         "of pp, tp, cp, sp and ep to 1, or dynamo_backend=no");
  const bool recomputes =
      (plan.fsdp != nullptr && plan.fsdp->activation_checkpointing.value_or(false)) ||
      (plan.zero != nullptr && plan.zero->activation_checkpointing);
  refuse(recomputes,
         "activation_checkpointing recomputes the blocks that would be regions; leave it out, and "
         "for packages set the option memory_budget, a share of what a region would keep");
  refuse(is_sharded(context) && !plan.dynamo->use_regional_compilation.value_or(false),
         "ranks divide the model, so the whole of it is not in memory at a time; set "
         "use_regional_compilation");
  const auto parameters = context.model.module()->parameters();
  refuse(std::ranges::any_of(parameters,
                             [](const at::Tensor& each) { return find_maker(each) != nullptr; }),
         "quantised weights are made at each use, which is not recorded; set dynamo_backend=no");
  refuse(!context.model.trains_other_tensors() && std::ranges::any_of(parameters, &is_absent),
         "weights that are offloaded come at each use, which is not recorded; set "
         "dynamo_backend=no");
}

}  // namespace accelerate
