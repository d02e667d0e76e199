// What becomes of models, optimizers and schedulers that are prepared.
#include <algorithm>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>
#include <torch/nn/module.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>

#include "accelerate/mesh/device_mesh.h"
#include "accelerate/optim/accelerated_optimizer.h"
#include "accelerate/optim/accelerated_scheduler.h"
#include "accelerate/optim/foreach_optimizers.h"
#include "accelerate/optim/lomo.h"
#include "accelerate/parallel/apply.h"
#include "accelerate/state/gradient_state.h"
#include "accelerate/state/partial_state.h"
#include "accelerate/step/training_state.h"
#include "accelerate/step/training_step.h"

namespace accelerate::internal {
namespace {

// Errors: c10::ValueError for an optimizer that needs the parameter whole, or has state for it.
void check_trains_shard(const torch::optim::Optimizer& optimizer, const at::Tensor& parameter,
                        const std::string& name) {
  TORCH_CHECK_VALUE(dynamic_cast<const torch::optim::LBFGS*>(&optimizer) == nullptr &&
                        dynamic_cast<const optim::Lamb*>(&optimizer) == nullptr &&
                        dynamic_cast<const optim::FusedBackwardOptimizer*>(&optimizer) == nullptr,
                    "prepare: parameter \"", name,
                    "\" is sharded over ranks, but LBFGS, LAMB and LOMO need whole parameters");
  TORCH_CHECK_VALUE(optimizer.state().count(parameter.unsafeGetTensorImpl()) == 0,
                    "prepare: the optimizer has state for parameter \"", name,
                    "\", which is sharded over ranks; prepare it before its first step");
}

// Gives the optimizer the shards of the model's parameters that it has, and returns the parameters.
// Errors: those of check_trains_shard; the optimizer stays as it is then.
std::vector<at::Tensor> train_shards(torch::optim::Optimizer& optimizer, const ModelState& model) {
  if (model.sharding() == nullptr) return {};
  std::unordered_map<const at::TensorImpl*, TrainedParameter> trained;
  for (TrainedParameter& each : model.trained()) {
    trained.try_emplace(each.parameter.unsafeGetTensorImpl(), std::move(each));
  }
  std::vector<at::Tensor*> replaced;
  for (torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    for (at::Tensor& parameter : group.params()) {
      const auto found = trained.find(parameter.unsafeGetTensorImpl());
      if (found == trained.end()) continue;
      check_trains_shard(optimizer, parameter, found->second.name);
      replaced.push_back(&parameter);
    }
  }
  std::vector<at::Tensor> whole;
  for (at::Tensor* const parameter : replaced) {
    whole.push_back(*parameter);
    *parameter = trained.at(parameter->unsafeGetTensorImpl()).trained;
  }
  return whole;
}

void append(std::vector<at::Tensor>& all, const std::vector<at::Tensor>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

}  // namespace

ProcessGroupPtr TrainingStep::training_group() const { return state_.data_share().group; }

void TrainingStep::check_each_rank_has_a_share(const char* caller) const {
  TORCH_CHECK_VALUE(state_.data_share().count == state_.num_processes(), caller,
                    ": every rank must train on data of its own, but ranks are arranged as ",
                    state_.device_mesh()->mesh().to_string(),
                    "; set all sizes of the parallelism_config but dp_replicate_size to 1");
}

std::shared_ptr<ModelState> TrainingStep::add_model(
    const std::shared_ptr<torch::nn::Module>& module, const KwargsHandlers& handlers,
    bool device_placement, bool trains) {
  TORCH_CHECK_VALUE(module != nullptr, "prepare: the model is null");
  auto known = std::ranges::find(training_.models, module,
                                 [](const auto& model) { return model->module(); });
  const DeviceMesh* mesh = state_.device_mesh();
  const ProcessGroupPtr shards = mesh ? mesh->group(MeshAxis::kDpShard) : nullptr;
  if (known == training_.models.end()) {
    if (device_placement && shards == nullptr) module->to(state_.device());
    known = training_.models.insert(known, std::make_shared<ModelState>(module));
  }
  const std::shared_ptr<ModelState> model = *known;
  const DataShare share = state_.data_share();
  // While the module is as it was.
  if (shards != nullptr && trains && !model->is_trained) {
    for_each_alive(training_.optimizers, [&](const auto& prepared) {
      for (const auto& item : module->named_parameters()) {
        if (item.value().requires_grad() && has_parameter(*prepared->optimizer, item.value())) {
          check_trains_shard(*prepared->optimizer, item.value(), item.key());
        }
      }
    });
  }
  apply_stages(*model,
               {.distributed_type = state_.distributed_type(),
                .device = state_.device(),
                .group = share.group,
                .whole_job = share.count < state_.num_processes() ? state_.group() : nullptr,
                .shards = shards,
                .replicas = mesh ? mesh->group(MeshAxis::kDpReplicate) : nullptr,
                .handlers = handlers,
                .precision = training_.precision},
               trains);
  // The whole model may not fit a device that is to have a shard of it.
  if (device_placement && shards != nullptr && model->sharding() == nullptr) {
    module->to(state_.device());
  }
  for_each_alive(training_.optimizers, [&](const auto& prepared) {
    append(prepared->whole, train_shards(*prepared->optimizer, *model));
  });
  leave_gradients_to_lomo();
  return model;
}

AcceleratedOptimizer TrainingStep::add_optimizer(
    std::shared_ptr<torch::optim::Optimizer> optimizer) {
  std::vector<at::Tensor> whole;
  for (const auto& model : training_.models) append(whole, train_shards(*optimizer, *model));
  const JobPrecision& precision = training_.precision;
  auto* lomo = dynamic_cast<optim::FusedBackwardOptimizer*>(optimizer.get());
  if (lomo != nullptr) {
    TORCH_CHECK_VALUE(!precision.scaler(),
                      "an optimizer that steps during the backward pass would use the scaled "
                      "gradients of mixed_precision=\"fp16\" and of MS-AMP; use bf16");
    lomo->set_process_group(training_group());
    training_.steps_in_backward = true;
  }
  // On TPUs the optimizer's step averages gradients, not the backward pass.
  const bool averages = state_.distributed_type() == DistributedType::kXla && lomo == nullptr;
  AcceleratedOptimizer prepared(std::move(optimizer), gradients_,
                                {.scaler = precision.scaler(),
                                 .averages_over = averages ? training_group() : nullptr,
                                 .packs_moments = precision.packs_moments()});
  const std::shared_ptr<SharedOptimizer>& shared = Access::to(prepared);
  shared->whole = std::move(whole);
  shared->readers = training_.readers;
  remember(training_.optimizers, shared);
  leave_gradients_to_lomo();
  for_each_alive(training_.schedulers, [&](const auto& scheduler) { scheduler->add(shared); });
  return prepared;
}

AcceleratedScheduler TrainingStep::add_scheduler(torch::optim::LRScheduler& scheduler,
                                                 const SchedulerPolicy& policy) {
  AcceleratedScheduler prepared(scheduler, gradients_, policy);
  const std::shared_ptr<SharedScheduler>& shared = Access::to(prepared);
  for_each_alive(training_.optimizers, [&](const auto& optimizer) { shared->add(optimizer); });
  remember(training_.schedulers, shared);
  return prepared;
}

void TrainingStep::forget_prepared() {
  TORCH_CHECK_VALUE(!gradients_.joining(),
                    "free_memory: ranks still join inside join_uneven_inputs");
  training_.models.clear();
  training_.loaders.clear();
  training_.optimizers.clear();
  training_.schedulers.clear();
  training_.steps_in_backward = false;
  gradients_.restart();
}

void TrainingStep::leave_gradients_to_lomo() {
  const auto optimizers = lomo_optimizers();
  for (const auto& model : training_.models) {
    NoSyncScope::Counts counts;
    model->add_no_sync_counts(counts);
    if (counts.empty()) continue;
    const bool leaves = std::any_of(optimizers.begin(), optimizers.end(),
                                    [&](const auto* lomo) { return trains(*lomo, *model); });
    if (leaves == (model->reduced_by_optimizer != nullptr)) continue;
    for (const at::Tensor& parameter : model->module()->parameters()) {
      TORCH_CHECK_VALUE(
          !leaves || !parameter.requires_grad() ||
              std::any_of(optimizers.begin(), optimizers.end(),
                          [&](const auto* lomo) { return has_parameter(*lomo, parameter); }),
          "an optimizer that steps during the backward pass takes all parameters of a model that "
          "ranks train together, or none of them");
    }
    model->reduced_by_optimizer =
        leaves ? std::make_unique<NoSyncScope>(std::move(counts)) : nullptr;
  }
}

}  // namespace accelerate::internal
