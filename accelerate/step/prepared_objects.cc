// What becomes of models, optimizers and schedulers that are prepared.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/ops/full_like.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>

#include "accelerate/config/dummy_objects.h"
#include "accelerate/config/dynamo_plugin.h"
#include "accelerate/config/fsdp_plugin.h"
#include "accelerate/mesh/axis_set.h"
#include "accelerate/mesh/device_mesh.h"
#include "accelerate/mesh/mesh.h"
#include "accelerate/mesh/roles.h"
#include "accelerate/optim/accelerated_optimizer.h"
#include "accelerate/optim/accelerated_scheduler.h"
#include "accelerate/optim/foreach_optimizers.h"
#include "accelerate/optim/fused_optimizers.h"
#include "accelerate/optim/lomo.h"
#include "accelerate/optim/state_on_disk.h"
#include "accelerate/optim/zero_objects.h"
#include "accelerate/parallel/apply.h"
#include "accelerate/parallel/layout/model_layout.h"
#include "accelerate/parallel/layout/placement.h"
#include "accelerate/parallel/sharded/options.h"
#include "accelerate/state/accelerator_state.h"
#include "accelerate/state/gradient_state.h"
#include "accelerate/step/step_engine.h"
#include "accelerate/step/trained_parameters.h"
#include "accelerate/step/training_state.h"
#include "accelerate/step/training_step.h"
#include "accelerate/step/zero_division.h"

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

// Errors: c10::ValueError for an optimizer that steps before ranks have summed the gradient.
void check_steps_after_sums(const torch::optim::Optimizer& optimizer,
                            const TrainedParameter& trained, const ModelPlacements& placements) {
  const AxisSet sums = placements.layout->mesh().several(trained.placement->sums);
  TORCH_CHECK_VALUE(
      sums.empty() || dynamic_cast<const optim::FusedBackwardOptimizer*>(&optimizer) == nullptr,
      "prepare: rank ", placements.rank, " and others sum the gradients of parameter \"",
      trained.name, "\" along ", sums.to_string(),
      " at the end of a backward pass, but LOMO steps before that; train it with "
      "another optimizer");
}

// An optimizer begins with the part of a parameter that the rank's module has.
// Errors: those of check_trains_shard and check_steps_after_sums.
void train_parts(torch::optim::Optimizer& optimizer, const ModelState& model) {
  const ModelPlacements& placements = model.placements();
  if (!placements.is_cut) return;
  for (const TrainedParameter& each : model.trained()) {
    if (each.placement == nullptr || !has_parameter(optimizer, each.parameter)) continue;
    check_steps_after_sums(optimizer, each, placements);
    if (each.placement->cuts.empty() && each.placement->stages.empty()) continue;
    check_trains_shard(optimizer, each.parameter, each.name);
    renew_unused_state(optimizer, each.parameter, each.parameter);
  }
}

using TrainedByParameter = std::unordered_map<const at::TensorImpl*, TrainedParameter>;

bool trains_one_of(const torch::optim::Optimizer& optimizer, const TrainedByParameter& trained) {
  return std::ranges::any_of(optimizer.param_groups(), [&](const auto& group) {
    return std::ranges::any_of(group.params(), [&](const at::Tensor& parameter) {
      return trained.contains(parameter.unsafeGetTensorImpl());
    });
  });
}

// Gives the optimizer the shards of the model's parameters that it has.
void train_shards(SharedOptimizer& shared, const ModelState& model) {
  if (!model.is_divided()) return;
  TrainedByParameter trained;
  for (TrainedParameter& each : model.trained()) {
    trained.try_emplace(each.parameter.unsafeGetTensorImpl(), std::move(each));
  }
  const TrainedInPlace* in_place = model.in_place();
  const TrainedOnDisk on_disk = in_place != nullptr ? in_place->on_disk : TrainedOnDisk();
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
  if (trains_some && in_place != nullptr) {
    shared.overwriting_scopes.push_back(in_place->overwriting_scopes);
  }
}

}  // namespace

// Whatever is prepared first, sequences are divided.
AxisSet TrainingStep::divided_axes() const {
  AxisSet axes = state_.mesh().several({MeshAxis::kCp, MeshAxis::kSp});
  for (const auto& model : training_.models) {
    const ModelLayout* const layout = model->placements().layout.get();
    if (layout != nullptr) axes |= layout->divides();
  }
  return axes;
}

RankRoles TrainingStep::roles(AxisSet divides) const {
  RankRoles roles = state_.roles(divides);
  return training_.division != nullptr ? training_.division->roles(std::move(roles)) : roles;
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

// As the plugin says; null: all that share a model.
ProcessGroupPtr TrainingStep::ranks_after_forward(AxisSet divides) const {
  if (training_.division != nullptr) return training_.division->second_shards();
  const FullyShardedDataParallelPlugin* plugin = state_.fsdp_plugin();
  const auto ranks = plugin ? plugin->ranks_after_forward() : std::nullopt;
  const RankRoles roles = this->roles(divides);
  if (!ranks || roles.shards == nullptr || *ranks == roles.shards->getSize()) return nullptr;
  TORCH_CHECK_VALUE(roles.shards->getSize() % *ranks == 0, "rank ", state_.process_index(),
                    ": reshard_after_forward=", *ranks,
                    ": as a number it should be a factor of the ", roles.shards->getSize(),
                    " ranks that share a model along ", roles.shard_axes.to_string());
  const MeshAxis axis = roles.shard_axes.contains(MeshAxis::kSp)   ? MeshAxis::kDpShardCpSp
                        : roles.shard_axes.contains(MeshAxis::kCp) ? MeshAxis::kDpShardCp
                                                                   : MeshAxis::kDpShard;
  return state_.device_mesh()->part(axis, static_cast<int>(*ranks));
}

void TrainingStep::check_before_sharding(
    const std::vector<const torch::nn::Module*>& modules,
    const std::vector<const torch::optim::Optimizer*>& optimizers) const {
  const bool divides = roles(divided_axes()).makes_shards;
  const auto zero_divides = [](const auto& model) {
    return model->zero != nullptr && model->trains_other_tensors();
  };
  if (!divides && std::ranges::none_of(training_.models, zero_divides)) return;
  const FullyShardedDataParallelPlugin* const plugin = state_.fsdp_plugin();
  const auto check = [&](const torch::optim::Optimizer* optimizer) {
    TORCH_CHECK_VALUE(optimizer != nullptr, "prepare: the optimizer is null");
    for (const torch::nn::Module* module : modules) {
      TORCH_CHECK_VALUE(module != nullptr, "prepare: the model is null");
      // A frozen model is not divided.
      if (divides && std::ranges::any_of(module->parameters(), &at::Tensor::requires_grad)) {
        check_trains_shards(*optimizer, *module, plugin);
      }
    }
    for (const auto& model : training_.models) {
      if (model->trains_other_tensors() && (divides || zero_divides(model))) {
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
  const ZeroConfig* zero = training_.division != nullptr ? &training_.division->config() : nullptr;
  const std::shared_ptr<const ModelLayout> layout =
      layout_of(training_.techniques, *model, state_.mesh(), handlers);
  const AxisSet divides = divided_axes() | (layout != nullptr ? layout->divides() : AxisSet());
  ModelPlan plan{.distributed_type = state_.distributed_type(),
                 .device = state_.device(),
                 .rank = state_.process_index(),
                 .num_ranks = state_.num_processes(),
                 .roles = roles(divides),
                 .after_forward = ranks_after_forward(divides),
                 .mesh = state_.mesh(),
                 .device_mesh = state_.device_mesh(),
                 .layout = layout,
                 .fsdp = state_.fsdp_plugin(),
                 .zero = zero,
                 .dynamo = compiles(state_.dynamo_plugin()) ? &state_.dynamo_plugin() : nullptr,
                 .has_sharding_plugin =
                     state_.fsdp_plugin() != nullptr || state_.deepspeed_plugin() != nullptr,
                 .compares_ranks = state_.debug(),
                 .handlers = handlers,
                 .precision = training_.precision};
  plan.makes_shards = plan.roles.makes_shards;
  plan.autocasts_shards = plan.makes_shards && sharded_precision(plan).autocast;
  apply_techniques(training_.techniques, *model, plan,
                   {.trains = trains, .moves = is_new && device_placement});
  // Not before, so that one which a technique refuses leaves nothing behind.
  if (is_new) {
    if (zero != nullptr) model->zero = std::make_shared<const ZeroConfig>(*zero);
    training_.models.push_back(model);
    for_each_alive(training_.optimizers,
                   [&](const auto& prepared) { train_parts(*prepared->optimizer, *model); });
  }
  for_each_alive(training_.optimizers,
                 [&](const auto& prepared) { train_shards(*prepared, *model); });
  engine().prepare_models();
  return model;
}

AcceleratedOptimizer TrainingStep::add_optimizer(
    std::shared_ptr<torch::optim::Optimizer> optimizer) {
  StepEngine& engine = this->engine();
  engine.check(*optimizer);
  warn_of_complex_parameters(*optimizer);
  AcceleratedOptimizer prepared(std::move(optimizer), gradients_,
                                {.scaler = training_.precision.scaler(),
                                 .packs_moments = training_.precision.packs_moments()});
  const std::shared_ptr<SharedOptimizer>& shared = Access::to(prepared);
  for (const auto& model : training_.models) {
    train_parts(*shared->optimizer, *model);
    train_shards(*shared, *model);
  }
  shared->readers = training_.readers;
  shared->owner = training_.engine;
  engine.prepare(shared, training_group());
  register_in(training_.optimizers, shared);
  engine.prepare_models();
  for_each_alive(training_.schedulers, [&](const auto& scheduler) { scheduler->add(shared); });
  return prepared;
}

AcceleratedOptimizer TrainingStep::add_optimizer(const DummyOptim& placeholder) {
  ZeroDivision* const division = training_.division.get();
  TORCH_CHECK_VALUE(division != nullptr && division->config().optimizer,
                    "prepare: a DummyOptim is prepared together with its model, under a "
                    "configuration that has an \"optimizer\"");
  AcceleratedOptimizer prepared =
      add_optimizer(optim::make_optimizer(*division->config().optimizer, placeholder));
  division->set_optimizer(placeholder, Access::to(prepared));
  return prepared;
}

AcceleratedScheduler TrainingStep::add_scheduler(torch::optim::LRScheduler& scheduler,
                                                 const SchedulerPolicy& policy) {
  AcceleratedScheduler prepared(scheduler, gradients_, policy);
  const std::shared_ptr<SharedScheduler>& shared = Access::to(prepared);
  for_each_alive(training_.optimizers, [&](const auto& optimizer) { shared->add(optimizer); });
  register_in(training_.schedulers, shared);
  return prepared;
}

AcceleratedScheduler TrainingStep::add_scheduler(const DummyScheduler& placeholder,
                                                 const SchedulerPolicy& policy) {
  const ZeroDivision* const division = training_.division.get();
  torch::optim::Optimizer* optimizer = nullptr;
  if (const auto* given = std::get_if<const torch::optim::Optimizer*>(&placeholder.optimizer)) {
    optimizer = const_cast<torch::optim::Optimizer*>(*given);
  } else {
    const auto* dummy = std::get<const DummyOptim*>(placeholder.optimizer);
    const auto made = division != nullptr ? division->optimizer_of(*dummy) : nullptr;
    TORCH_CHECK_VALUE(made != nullptr,
                      "prepare: the DummyOptim of a DummyScheduler is prepared before it");
    optimizer = made->optimizer.get();
  }
  std::shared_ptr<torch::optim::LRScheduler> scheduler = optim::make_scheduler(
      division != nullptr ? division->config().scheduler : std::nullopt, placeholder, *optimizer);
  AcceleratedScheduler prepared = add_scheduler(*scheduler, policy);
  const std::shared_ptr<SharedScheduler>& shared = Access::to(prepared);
  shared->owned = std::move(scheduler);
  StepEngine& engine = this->engine();
  shared->owner = training_.engine;
  engine.prepare(shared);
  return prepared;
}

void TrainingStep::release_prepared() {
  TORCH_CHECK_VALUE(!gradients_.joining(),
                    "free_memory: ranks still join inside join_uneven_inputs");
  training_.models.clear();
  training_.loaders.clear();
  training_.optimizers.clear();
  training_.schedulers.clear();
  training_.engine.reset();
  training_.kept.clear();
  training_.division.reset();
  gradients_.restart();
}

}  // namespace accelerate::internal
