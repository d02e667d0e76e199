#include "accelerate/techniques/technique_list.h"

#include <memory>

#include "accelerate/base/mesh_axis.h"
#include "accelerate/compile/technique.h"
#include "accelerate/config/kwargs_handlers.h"
#include "accelerate/config/model_config.h"
#include "accelerate/dispatch/dispatch_technique.h"
#include "accelerate/parallel/experts/expert_technique.h"
#include "accelerate/parallel/layout/model_layout.h"
#include "accelerate/parallel/layout_technique.h"
#include "accelerate/parallel/pipeline/model_stages.h"
#include "accelerate/parallel/pipeline/pipeline_technique.h"
#include "accelerate/parallel/replicated/ddp.h"
#include "accelerate/parallel/sequence/context_scope.h"
#include "accelerate/parallel/sharded/activation_checkpointing.h"
#include "accelerate/parallel/sharded/sharded.h"
#include "accelerate/parallel/tensor/cut.h"
#include "accelerate/parallel/tensor/plan_layout.h"
#include "accelerate/parallel/tensor/tensor_technique.h"
#include "accelerate/parallel/ulysses/ulysses_technique.h"
#include "accelerate/plan/plan.h"
#include "accelerate/precision/techniques.h"
#include "accelerate/quantization/models/load_and_quantize.h"
#include "accelerate/script/script_module.h"

namespace accelerate {
namespace {

// Which technique surrounds which: the outermost first.
enum Depth : int {
  // Without a stage's forward pass nothing else begins.
  kPipeline,
  // Its sums come after all reductions, whichever surrounds which.
  kLayout,
  // Before a pass replication refreshes buffers, which computing must see; after the pass it must
  // see the outputs that the caller gets, in float32.
  kReplicas,
  // In place of replication.
  kShards,
  // fp8 is inside automatic mixed precision, which casts the products that fp8 leaves alone.
  kAutocast,
  // Attention of what ranks along tp have of its heads is divided once more.
  kUlysses,
  // The attention of what a rank has of layers is divided once more.
  kContextParallel,
  // fp8 computes what a rank has of a layer.
  kTensorParallel,
  kExpertParallel,
  kFp8,
  kRecomputation,
  // The module computes where a device map has placed it, whatever surrounds its passes.
  kDispatch,
  // It runs in the place of the module.
  kCompilation,
  // Rows that make no technique.
  kNone,
};

void check_fp8_options(const KwargsHandlers& handlers, PrecisionType precision) {
  check_fp8_handlers(handlers.fp8, precision);
}

void check_ddp_handler(const KwargsHandlers& handlers, PrecisionType /*precision*/) {
  check_ddp_options(handlers.ddp);
}

// The layout of models whose layers are whole, or as techniques before divide them, and whose
// sequences ranks along the axis divide.
// Errors: those of check_attention_layers.
template <MeshAxis axis>
std::shared_ptr<const ModelLayout> layout_dividing_sequences(const LayoutContext& context) {
  if (context.mesh.size(axis) == 1) return nullptr;
  const torch::nn::Module& module = *context.model.module();
  check_attention_layers(module, axis);
  const ModelLayout before =
      context.layout != nullptr ? *context.layout : whole_layout(module, context.mesh);
  return std::make_shared<const ModelLayout>(before.with_inputs({axis}));
}

// In the order in which techniques are made.
constexpr TechniqueRow kTechniques[] = {
    // Before the rows that would look for layers.
    {.name = "script",
     .depth = kNone,
     .layout = &check_script_layout,
     .check = &check_script_model},
    {.name = TensorParallelTechnique::kName,
     .depth = kTensorParallel,
     .layout = &tensor_parallel_layout,
     .cut = &cut_tensor_parallel,
     .make = &make_tensor_parallel_technique},
    {.name = kUlyssesTechnique,
     .depth = kUlysses,
     .layout = &layout_dividing_sequences<MeshAxis::kSp>,
     .make = &make_ulysses_technique},
    {.name = kContextParallelTechnique,
     .depth = kContextParallel,
     .layout = &layout_dividing_sequences<MeshAxis::kCp>,
     .make = &make_context_parallel_technique},
    {.name = ActivationCheckpointingTechnique::kName,
     .depth = kRecomputation,
     .make = &make_activation_checkpointing_technique},
    // Before those that reduce gradients: with MS-AMP the gradients of fp8 layers travel in fp8.
    {.name = Fp8Technique::kName,
     .depth = kFp8,
     .check_options = &check_fp8_options,
     .make = &make_fp8_technique},
    {.name = AutocastTechnique::kName, .depth = kAutocast, .make = &make_autocast_technique},
    {.name = ShardedModel::kName,
     .depth = kShards,
     .check = &check_sharded_technique,
     .moves = &is_sharded,
     .make = &make_sharded_technique},
    {.name = DistributedDataParallel::kName,
     .depth = kReplicas,
     .check_options = &check_ddp_handler,
     .make = &make_ddp_technique},
    // Experts are on the device by now, whoever moved them.
    {.name = ExpertParallelTechnique::kName,
     .depth = kExpertParallel,
     .layout = &expert_parallel_layout,
     .check = &check_expert_parallel,
     .cut = &cut_experts,
     .make = &make_expert_parallel_technique},
    // What is trained in place of parameters is known by now.
    {.name = kLayoutTechnique, .depth = kLayout, .make = &make_layout_technique},
    {.name = PipelineTechnique::kName,
     .depth = kPipeline,
     .layout = &pipeline_layout,
     .check = &check_pipeline,
     .cut = &drop_other_stages,
     .make = &make_pipeline_technique},
    // Quantised weights are kept as they are, and trained beside.
    {.name = "quantized", .depth = kNone, .check = &check_quantized_model},
    // What the optimizer trains in place of parameters on the host is known when all else is made.
    {.name = kDispatchTechnique,
     .depth = kDispatch,
     .check = &check_dispatched_model,
     .moves = &move_around_dispatched,
     .make = &make_dispatch_technique},
    {.name = CompileTechnique::kName,
     .depth = kCompilation,
     .check = &check_compiled_model,
     .make = &make_compile_technique},
};

}  // namespace

TechniqueList all_techniques() { return kTechniques; }

}  // namespace accelerate
