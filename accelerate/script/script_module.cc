#include "accelerate/script/script_module.h"

#include <algorithm>
#include <string>
#include <utility>

#include <c10/util/Exception.h>

#include "accelerate/base/enums.h"
#include "accelerate/base/mesh_axis.h"
#include "accelerate/mesh/axis_set.h"
#include "accelerate/mesh/mesh.h"
#include "accelerate/plan/plan.h"
#include "accelerate/precision/job_precision.h"

namespace accelerate {
namespace {

std::string class_name(const torch::jit::Module& script) {
  const auto name = script.type()->name();
  return name ? name->name() : "ScriptModule";
}

// The tensors and, as modules without code, the children.
void share_members(torch::nn::Module& module, const torch::jit::Module& script) {
  for (const auto& each : script.named_parameters(/*recurse=*/false)) {
    module.register_parameter(each.name, each.value, each.value.requires_grad());
  }
  for (const auto& each : script.named_buffers(/*recurse=*/false)) {
    module.register_buffer(each.name, each.value);
  }
  for (const auto& each : script.named_children()) {
    auto child = std::make_shared<torch::nn::Module>(class_name(each.value));
    share_members(*child, each.value);
    module.register_module(each.name, std::move(child));
  }
}

bool has_script(const torch::nn::Module& module) {
  const auto is_script = [](const torch::nn::Module& each) {
    return dynamic_cast<const ScriptModule*>(&each) != nullptr;
  };
  return is_script(module) ||
         std::ranges::any_of(module.modules(/*include_self=*/false),
                             [&](const auto& each) { return is_script(*each); });
}

void refuse(bool refuses, const std::string& what) {
  TORCH_CHECK_VALUE(!refuses, "prepare: a torch::jit::Module is one graph, so ", what);
}

}  // namespace

ScriptModule::ScriptModule(torch::jit::Module script)
    : torch::nn::Module(class_name(script)), script_(std::move(script)) {
  share_members(*this, script_);
  torch::nn::Module::train(script_.is_training());
}

void ScriptModule::train(bool on) {
  torch::nn::Module::train(on);
  script_.train(on);
}

std::vector<at::Tensor> parameters_of(const torch::jit::Module& module) {
  std::vector<at::Tensor> parameters;
  for (const at::Tensor& each : module.parameters()) parameters.push_back(each);
  return parameters;
}

std::shared_ptr<const ModelLayout> check_script_layout(const LayoutContext& context) {
  if (!has_script(*context.model.module())) return nullptr;
  const AxisSet axes =
      context.mesh.several({MeshAxis::kPp, MeshAxis::kCp, MeshAxis::kSp, MeshAxis::kTp});
  refuse(!axes.empty(), axes.to_string() +
                            " cannot divide it; set the sizes of pp, tp, cp and sp to 1, or write "
                            "the model as a torch::nn::Module");
  refuse(context.mesh.size(MeshAxis::kEp) > 1,
         "ep cannot divide its experts; set ep_size to 1, or write the model as a "
         "torch::nn::Module");
  return nullptr;
}

void check_script_model(const TechniqueContext& context) {
  if (!has_script(*context.model.module())) return;
  const ModelPlan& plan = context.plan;
  refuse(plan.has_sharding_plugin || plan.makes_shards,
         "FSDP and DeepSpeed cannot divide its layers; leave their plug-in and dp_shard_size out, "
         "or write the model as a torch::nn::Module");
  refuse(plan.precision.type() != PrecisionType::kNo || plan.precision.fp8().has_value(),
         "its layers are not computed in another precision; leave mixed_precision out, or write "
         "the casts in Python");
  refuse(plan.dynamo != nullptr,
         "it is not recorded once more; set dynamo_backend=no, since torch.jit has compiled it");
}

}  // namespace accelerate
