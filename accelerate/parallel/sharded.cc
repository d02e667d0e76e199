#include "accelerate/parallel/sharded.h"

#include <utility>

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "accelerate/parallel/apply.h"
#include "accelerate/parallel/replicate.h"
#include "accelerate/runtime/runtime.h"

namespace accelerate {
namespace {

// The module's buffers, on the device.
std::vector<at::Tensor> moved_buffers(const torch::nn::Module& module, c10::Device device) {
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> buffers = module.buffers();
  for (const at::Tensor& buffer : buffers) {
    buffer.set_data(buffer.to(device));
    note_memory(buffer, MemoryKind::kBuffer);
  }
  return buffers;
}

}  // namespace

ShardedModel::ShardedModel(const torch::nn::Module& module, ShardGroups groups, c10::Device device,
                           const ShardedDataParallelKwargs& options, bool broadcast_buffers)
    : all_((check_same_model(groups.all, module), groups.all)),
      buffers_(moved_buffers(module, device)),
      broadcast_buffers_(broadcast_buffers),
      parameters_(module, std::move(groups), device, options) {
  broadcast_tensors(all_, buffers_, 0);
  for (const ShardedParameters::Shard& each : parameters_.shards()) {
    trained_.push_back({each.name, each.parameter, each.shard});
  }
}

void ShardedModel::forward(ForwardPass& pass) {
  const bool grad = at::GradMode::is_enabled();
  const bool synchronises = *no_sync_count_ == 0;
  parameters_.begin_step();
  if (require_buffer_sync_ && broadcast_buffers_ && !buffers_.empty()) {
    broadcast_tensors(all_, buffers_, 0);
  }
  pass.set_synchronises(synchronises);
  {
    const Residency::Pass scope(*residency());
    pass.proceed();
  }
  if (grad) parameters_.set_synchronises(synchronises);
  require_buffer_sync_ = grad && synchronises;
}

void ShardedModel::set_gradients(std::vector<at::Tensor> gradients) {
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < trained_.size(); ++i) {
    parameters_.set_gradient(i, std::move(gradients[i]));
  }
}

std::unique_ptr<Stage> make_sharded_stage(const StageContext& context) {
  const ModelPlan& plan = context.plan;
  if (context.group == nullptr || plan.shards == nullptr) return nullptr;
  TORCH_CHECK_VALUE(plan.handlers.ddp.comm_hook == DDPCommunicationHookType::kNo &&
                        plan.handlers.ddp.comm_wrapper == DDPCommunicationHookType::kNo,
                    "dp_shard: comm_hook and comm_wrapper are for the gradients of replicas, and "
                    "those of shards are sent as they are; leave both out");
  TORCH_CHECK_VALUE(!plan.precision.fp8(), "dp_shard: layers in fp8 cannot be sharded yet");
  return std::make_unique<ShardedModel>(
      *context.model.module(),
      ShardGroups{.shards = plan.shards,
                  .replicas = plan.replicas,
                  .all = plan.whole_job ? plan.whole_job : context.group},
      plan.device, plan.handlers.sharded, plan.handlers.ddp.broadcast_buffers);
}

}  // namespace accelerate
