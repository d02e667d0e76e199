// What becomes of models, optimizers and schedulers that are prepared.
#include <algorithm>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/ops/full_like.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>

#include "absl/strings/str_cat.h"
#include "accelerate/config/fsdp_plugin.h"
#include "accelerate/mesh/device_mesh.h"
#include "accelerate/mesh/roles.h"
#include "accelerate/optim/accelerated_optimizer.h"
#include "accelerate/optim/accelerated_scheduler.h"
#include "accelerate/optim/foreach_optimizers.h"
#include "accelerate/optim/lomo.h"
#include "accelerate/optim/state_on_disk.h"
#include "accelerate/parallel/apply.h"
#include "accelerate/parallel/layout/model_layout.h"
#include "accelerate/parallel/sharded/options.h"
#include "accelerate/state/accelerator_state.h"
#include "accelerate/state/gradient_state.h"
#include "accelerate/step/training_state.h"
#include "accelerate/step/training_step.h"

namespace accelerate::internal {
namespace {

// LibTorch's Adagrad alone has state before its first step.
bool is_unused(const torch::optim::OptimizerParamState& state) {
  const auto* adagrad = dynamic_cast<const torch::optim::AdagradParamState*>(&state);
  return adagrad != nullptr && adagrad->step() == 0;
}

// Errors: c10::ValueError for an optimizer that needs the parameter whole, or has used its state.
void check_trains_shard(const torch::optim::Optimizer& optimizer, const at::Tensor& parameter,
                        const std::string& name) {
  TORCH_CHECK_VALUE(dynamic_cast<const torch::optim::LBFGS*>(&optimizer) == nullptr &&
                        dynamic_cast<const optim::Lamb*>(&optimizer) == nullptr &&
                        dynamic_cast<const optim::FusedBackwardOptimizer*>(&optimizer) == nullptr,
                    "prepare: parameter \"", name,
                    "\" is sharded over ranks, but LBFGS, LAMB and LOMO need whole parameters");
  const auto state = optimizer.state().find(parameter.unsafeGetTensorImpl());
  TORCH_CHECK_VALUE(state == optimizer.state().end() || is_unused(*state->second),
                    "prepare: the optimizer has state for parameter \"", name,
                    "\", which is sharded over ranks; prepare it before its first step");
}

bool is_trainable(const torch::nn::Module& module) {
  return std::ranges::any_of(module.parameters(), &at::Tensor::requires_grad);
}

// Whether an optimizer can train shards of those of its parameters that the module has.
// Errors: those of check_trains_shard.
void check_trains_shards(const torch::optim::Optimizer& optimizer, const torch::nn::Module& module,
                         const FullyShardedDataParallelPlugin* plugin) {
  if (plugin != nullptr) check_in_one_group(module, *plugin, optimizer);
  for (const auto& item : module.named_parameters()) {
    if (item.value().numel() > 0 && has_parameter(optimizer, item.value())) {
      check_trains_shard(optimizer, item.value(), item.key());
    }
  }
}

// Where something else is trained in place of a parameter.
// Errors: c10::ValueError for an optimizer that would go on with the parameter.
void check_begins_anew(const torch::optim::Optimizer& optimizer, const at::Tensor& parameter,
                       const std::string& name) {
  TORCH_CHECK_VALUE(
      dynamic_cast<const optim::FusedBackwardOptimizer*>(&optimizer) == nullptr,
      "prepare: parameter \"", name,
      "\" is offloaded, and LOMO steps where the backward pass is; keep the parameters "
      "that it trains on devices");
  const auto state = optimizer.state().find(parameter.unsafeGetTensorImpl());
  TORCH_CHECK_VALUE(state == optimizer.state().end() || is_unused(*state->second),
                    "prepare: the optimizer has state for parameter \"", name,
                    "\", which is offloaded; prepare it before its first step");
}

// Begins with a shard where there is unused state for its parameter.
void renew_unused_state(torch::optim::Optimizer& optimizer, const at::Tensor& parameter,
                        const at::Tensor& shard) {
  auto& states = optimizer.state();
  const auto old = states.find(parameter.unsafeGetTensorImpl());
  if (old == states.end()) return;
  states.erase(old);
  const auto& options = static_cast<const torch::optim::AdagradOptions&>(optimizer.defaults());
  auto state = std::make_unique<torch::optim::AdagradParamState>();
  state->sum(at::full_like(shard.detach(), options.initial_accumulator_value()));
  states[shard.unsafeGetTensorImpl()] = std::move(state);
}

using TrainedByParameter = std::unordered_map<const at::TensorImpl*, TrainedParameter>;

bool trains_one_of(const torch::optim::Optimizer& optimizer, const TrainedByParameter& trained) {
  for (const torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      if (trained.contains(parameter.unsafeGetTensorImpl())) return true;
    }
  }
  return false;
}

// Gives the optimizer the shards of the model's parameters that it has.
void train_shards(SharedOptimizer& shared, const ModelState& model) {
  if (!model.is_divided()) return;
  TrainedByParameter trained;
  for (TrainedParameter& each : model.trained()) {
    trained.try_emplace(each.parameter.unsafeGetTensorImpl(), std::move(each));
  }
  const TrainedOnDisk on_disk = model.trained_on_disk();
  if (on_disk.disk != nullptr && trains_one_of(*shared.optimizer, trained)) {
    TORCH_CHECK_VALUE(
        shared.on_disk == nullptr && shared.moments == nullptr,
        "prepare: an optimizer whose state is on a disk trains one model, and does not "
        "keep its moments in fp8");
    shared.on_disk = std::make_unique<StateOnDisk>(
        *shared.optimizer, on_disk.disk,
        StateOnDisk::Options{.group = on_disk.group, .updated = on_disk.updated});
  }
  bool trains_some = false;
  for (torch::optim::OptimizerParamGroup& group : shared.optimizer->param_groups()) {
    for (at::Tensor& parameter : group.params()) {
      const auto found = trained.find(parameter.unsafeGetTensorImpl());
      if (found == trained.end()) continue;
      if (found->second.trained.is_same(parameter)) continue;
      check_begins_anew(*shared.optimizer, parameter, found->second.name);
      shared.whole.push_back(parameter);
      if (shared.scaler) shared.scaler.add_waiting(parameter);
      parameter = found->second.trained;
      renew_unused_state(*shared.optimizer, shared.whole.back(), parameter);
      trains_some = true;
    }
  }
  if (trains_some) shared.overwriting_scopes.push_back(model.overwriting_scopes());
}

}  // namespace

AxisSet TrainingStep::divided_axes() const {
  AxisSet axes;
  for (const auto& model : training_.models) {
    if (model->placements().is_cut) axes |= model->placements().layout->divides();
  }
  return axes;
}

RankRoles TrainingStep::roles(AxisSet divides) const {
  RankRoles roles = state_.roles(divides);
  if (!training_.zero) return roles;
  // ZeRO divides a model among all ranks, however else they are arranged.
  roles.shards = shard_group();
  roles.replicas = nullptr;
  if (roles.tokens.group == nullptr) roles.tokens.group = roles.same_part = roles.shards;
  roles.shard_axes = roles.norm_axes = {MeshAxis::kDp};
  roles.norm = roles.shards;
  return roles;
}

ProcessGroupPtr TrainingStep::training_group() const {
  return state_.roles(divided_axes()).tokens.group;
}

void TrainingStep::check_each_rank_has_a_share(const char* caller) const {
  TORCH_CHECK_VALUE(state_.roles().loader.count == state_.num_processes(), caller,
                    ": every rank must train on data of its own, but ranks are arranged as ",
                    state_.device_mesh()->mesh().to_string(),
                    "; set all sizes of the parallelism_config but dp_replicate_size to 1");
}

ProcessGroupPtr TrainingStep::shard_group() const {
  if (training_.zero) {
    if (training_.zero->stage == 0) return nullptr;
    if (state_.group() != nullptr) return state_.group();
    // One rank divides nothing, but keeps its optimizer's state on the host, for instance.
    if (training_.only_rank == nullptr) {
      training_.only_rank = state_.runtime().new_group({.name = "zero"});
    }
    return training_.only_rank;
  }
  return state_.roles(divided_axes()).shards;
}

// Consecutive ranks, as those of a node; null: all that share a model.
ProcessGroupPtr TrainingStep::ranks_with_second_shard() const {
  const int all = state_.num_processes();
  const auto ranks = static_cast<int>(training_.zero->zero_hpz_partition_size);
  if (training_.zero->stage < 3 || ranks <= 1 || ranks == all) return nullptr;
  TORCH_CHECK_VALUE(ranks < all && all % ranks == 0, "zero_hpz_partition_size=", ranks,
                    ": it should be a factor of the ", all, " ranks that share a model");
  if (training_.second_shards == nullptr || training_.second_shards->getSize() != ranks) {
    GroupOptions options = state_.partial_state().group_options();
    const int first = state_.process_index() / ranks * ranks;
    options.name = absl::StrCat("zero_hpz from ", first);
    for (int rank = first; rank < first + ranks; ++rank) options.ranks.push_back(rank);
    training_.second_shards = state_.runtime().new_group(options);
  }
  return training_.second_shards;
}

// As the plugin says; null: all that share a model.
ProcessGroupPtr TrainingStep::ranks_after_forward() const {
  if (training_.zero) return ranks_with_second_shard();
  const FullyShardedDataParallelPlugin* plugin = state_.fsdp_plugin();
  const auto ranks = plugin ? plugin->ranks_after_forward() : std::nullopt;
  if (!ranks || shard_group() == nullptr || *ranks == shard_group()->getSize()) return nullptr;
  TORCH_CHECK_VALUE(shard_group()->getSize() % *ranks == 0, "reshard_after_forward=", *ranks,
                    ": as a number it should be a factor of the ", shard_group()->getSize(),
                    " ranks that share a model");
  return state_.device_mesh()->part(MeshAxis::kDpShard, static_cast<int>(*ranks));
}

void TrainingStep::check_before_sharding(
    const std::vector<const torch::nn::Module*>& modules,
    const std::vector<const torch::optim::Optimizer*>& optimizers) const {
  const bool divides = shard_group() != nullptr;
  const auto is_divided = [](const auto& model) {
    return model->zero != nullptr && model->shards() != nullptr;
  };
  if (!divides && std::ranges::none_of(training_.models, is_divided)) return;
  const FullyShardedDataParallelPlugin* const plugin = state_.fsdp_plugin();
  const auto check = [&](const torch::optim::Optimizer* optimizer) {
    TORCH_CHECK_VALUE(optimizer != nullptr, "prepare: the optimizer is null");
    for (const torch::nn::Module* module : modules) {
      TORCH_CHECK_VALUE(module != nullptr, "prepare: the model is null");
      // A frozen model is not divided.
      if (divides && is_trainable(*module)) check_trains_shards(*optimizer, *module, plugin);
    }
    for (const auto& model : training_.models) {
      if (model->shards() != nullptr && (divides || is_divided(model))) {
        check_trains_shards(*optimizer, *model->module(), plugin);
      }
    }
  };
  std::ranges::for_each(optimizers, check);
  for_each_alive(training_.optimizers,
                 [&](const auto& prepared) { check(prepared->optimizer.get()); });
}

std::shared_ptr<ModelState> TrainingStep::add_model(
    const std::shared_ptr<torch::nn::Module>& module, const KwargsHandlers& handlers,
    bool device_placement, bool trains) {
  TORCH_CHECK_VALUE(module != nullptr, "prepare: the model is null");
  const auto known = std::ranges::find(training_.models, module,
                                       [](const auto& model) { return model->module(); });
  const bool is_new = known == training_.models.end();
  const auto model = is_new ? std::make_shared<ModelState>(module) : *known;
  const std::shared_ptr<const ModelLayout> layout = given_layout(*module);
  ModelPlan plan{
      .distributed_type = state_.distributed_type(),
      .device = state_.device(),
      .rank = state_.process_index(),
      .num_ranks = state_.num_processes(),
      .roles = roles(divided_axes() | (layout != nullptr ? layout->divides() : AxisSet())),
      .after_forward = ranks_after_forward(),
      .mesh = state_.mesh(),
      .device_mesh = state_.device_mesh(),
      .layout = layout,
      .fsdp = state_.fsdp_plugin(),
      .zero = training_.zero ? &*training_.zero : nullptr,
      .has_sharding_plugin =
          state_.fsdp_plugin() != nullptr || state_.deepspeed_plugin() != nullptr,
      .compares_ranks = state_.debug(),
      .handlers = handlers,
      .precision = training_.precision};
  plan.autocasts_shards = plan.roles.shards != nullptr && sharded_precision(plan).autocast;
  apply_techniques(training_.techniques, *model, plan,
                   {.trains = trains, .moves = is_new && device_placement});
  // Not before, so that one which a technique refuses leaves nothing behind.
  if (is_new) {
    if (training_.zero) model->zero = std::make_shared<const ZeroConfig>(*training_.zero);
    training_.models.push_back(model);
  }
  for_each_alive(training_.optimizers,
                 [&](const auto& prepared) { train_shards(*prepared, *model); });
  leave_gradients_to_lomo();
  return model;
}

AcceleratedOptimizer TrainingStep::add_optimizer(
    std::shared_ptr<torch::optim::Optimizer> optimizer) {
  const JobPrecision& precision = training_.precision;
  auto* lomo = dynamic_cast<optim::FusedBackwardOptimizer*>(optimizer.get());
  if (lomo != nullptr) {
    TORCH_CHECK_VALUE(!precision.scaler(),
                      "an optimizer that steps during the backward pass would use the scaled "
                      "gradients of mixed_precision=\"fp16\" and of MS-AMP; use bf16");
    lomo->set_process_group(training_group());
    training_.has_lomo = true;
  }
  // On TPUs the optimizer's step averages gradients, not the backward pass.
  const bool averages = state_.distributed_type() == DistributedType::kXla && lomo == nullptr;
  AcceleratedOptimizer prepared(std::move(optimizer), gradients_,
                                {.scaler = precision.scaler(),
                                 .averages_over = averages ? training_group() : nullptr,
                                 .packs_moments = precision.packs_moments()});
  const std::shared_ptr<SharedOptimizer>& shared = Access::to(prepared);
  for (const auto& model : training_.models) train_shards(*shared, *model);
  shared->readers = training_.readers;
  if (training_.step_in_backward) {
    shared->steps_in_backward = true;
    training_.step_in_backward->optimizers.push_back(shared);
    shared->part_elements = training_.step_in_backward->part_elements;
    shared->max_norm = training_.step_in_backward->max_norm;
  }
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
  training_.has_lomo = false;
  training_.step_in_backward.reset();
  training_.second_shards.reset();
  training_.zero.reset();
  training_.made_for.clear();
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
