// What a deepspeed_plugin's configuration makes of what is prepared.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include <c10/util/Exception.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>

#include "accelerate/config/deepspeed_auto.h"
#include "accelerate/config/deepspeed_plugin.h"
#include "accelerate/config/dummy_objects.h"
#include "accelerate/config/zero_config.h"
#include "accelerate/optim/accelerated_optimizer.h"
#include "accelerate/optim/accelerated_scheduler.h"
#include "accelerate/optim/zero_objects.h"
#include "accelerate/state/accelerator_state.h"
#include "accelerate/state/gradient_state.h"
#include "accelerate/step/deepspeed_engine.h"
#include "accelerate/step/training_state.h"
#include "accelerate/step/training_step.h"

namespace accelerate::internal {
namespace {

// Models of several plugins are divided each by its own configuration, but one scaler scales all
// losses, and one count of micro-steps says where a step ends.
void check_beside(const ZeroConfig& earlier, int64_t earlier_steps, const ZeroConfig& zero,
                  int64_t steps) {
  const char* what = nullptr;
  if (!(earlier.fp16 == zero.fp16)) what = "fp16";
  if (earlier.dtype() != zero.dtype()) what = "precision";
  if (earlier_steps != steps) what = "gradient_accumulation_steps";
  TORCH_CHECK_VALUE(what == nullptr, "prepare: the selected deepspeed_plugin has another ", what,
                    " than the one of the models that were prepared before, which share it in one "
                    "job; let them agree, or call free_memory() first");
}

}  // namespace

void TrainingStep::begin_zero(const PreparedTogether& together, bool split_batches) {
  DeepSpeedPlugin* const plugin = state_.deepspeed_plugin();
  TORCH_CHECK_VALUE(plugin != nullptr || (together.dummy_optimizer == nullptr &&
                                          together.dummy_scheduler == nullptr),
                    "prepare: DummyOptim and DummyScheduler stand for what the configuration of a "
                    "deepspeed_plugin has, and this job has none");
  if (plugin == nullptr) return;
  const DataShare share = state_.data_share();
  DeepSpeedFacts facts{.num_processes = state_.num_processes(),
                       .ranks_per_share = state_.num_processes() / share.count,
                       .split_batches = split_batches,
                       .gradient_accumulation_steps = gradients_.num_steps(),
                       .batch_sizes = together.batch_sizes,
                       .has_model = !together.modules.empty(),
                       .has_optimizer = !together.optimizers.empty(),
                       .has_scheduler = together.has_scheduler,
                       .dummy_optimizer = together.dummy_optimizer,
                       .dummy_scheduler = together.dummy_scheduler};
  for (const torch::nn::Module* module : together.modules) {
    const std::vector<int64_t> sizes = hidden_sizes_of(*plugin, *module, state_.runtime().files());
    facts.hidden_sizes.insert(facts.hidden_sizes.end(), sizes.begin(), sizes.end());
  }
  // What fails changes nothing.
  DeepSpeedPlugin completed = *plugin;
  const DeepSpeedCompletion completion = complete(completed, facts);
  const auto take = [&] {
    *plugin = std::move(completed);
    if (!state_.is_main_process()) return;
    for (const std::string& note : completion.notes) TORCH_WARN(note);
  };
  if (!facts.has_model) return take();
  ZeroConfig zero = zero_config(completed.deepspeed_config());
  for (const torch::nn::Module* module : together.modules) {
    for (const std::string& name :
         completed.set_moe_leaf_modules(*module, state_.runtime().environment())) {
      const bool is_there = std::ranges::count(zero.leaf_module_classes, name) > 0;
      if (!is_there) zero.leaf_module_classes.push_back(name);
    }
  }
  if (!training_.models.empty() && training_.zero) {
    check_beside(*training_.zero, gradients_.num_steps(), zero,
                 completion.gradient_accumulation_steps);
  }
  TORCH_CHECK_VALUE(
      share.count == state_.num_processes(),
      "deepspeed_plugin: ZeRO divides a model among ranks with data of their own, but "
      "the parallelism_config lets some have the same");
  // Before anything is divided; the optimizer is made afterwards.
  TORCH_CHECK_VALUE(together.dummy_optimizer == nullptr || !zero.optimizer || zero.stage == 0 ||
                        zero.optimizer->type != ZeroOptimizerType::kLamb,
                    "prepare: the configuration's optimizer is Lamb, which needs whole parameters, "
                    "but stage ",
                    zero.stage, " divides their optimizer; use stage 0 or another optimizer");
  const JobPrecision& precision = training_.precision;
  const bool is_msamp = precision.fp8_backend() == FP8BackendType::kMsamp;
  TORCH_CHECK_VALUE(
      !is_msamp || zero.stage < 3,
      "prepare: MS-AMP rounds gradients and moments of parameters that are whole on "
      "a rank, but stage 3 divides them; use stage 0, 1 or 2, or the recipe AO or TE");
  TORCH_CHECK_VALUE(
      !zero.msamp.enabled ||
          (is_msamp && precision.packs_moments() == (zero.msamp.opt_level == "O2")),
      "prepare: the configuration of the deepspeed_plugin has msamp.enabled with opt_level ",
      zero.msamp.opt_level, ", which the Accelerator did not find there when it was made");
  TORCH_CHECK_VALUE(
      zero.offload_optimizer.ratio == 1 || (zero.offload_optimizer.device != OffloadDevice::kNvme &&
                                            zero.offload_param.device != OffloadDevice::kNvme),
      "zero_optimization.offload_optimizer.ratio=", zero.offload_optimizer.ratio,
      ": with \"nvme\" this version keeps all of the optimizer's state off the "
      "device, or none; use the device \"cpu\"");
  take();
  training_.zero = zero;
  training_.precision.follow(*training_.zero, state_.group());
  gradients_.set_num_steps(completion.gradient_accumulation_steps);
  const bool trains = facts.has_optimizer || facts.dummy_optimizer != nullptr;
  if (!trains) return;
  if (!training_.step_in_backward) training_.step_in_backward.emplace();
  training_.step_in_backward->max_norm = training_.zero->gradient_clipping;
  training_.step_in_backward->part_elements = training_.zero->sub_group_size;
}

AcceleratedOptimizer TrainingStep::add_optimizer(const DummyOptim& placeholder) {
  TORCH_CHECK_VALUE(training_.zero && training_.zero->optimizer,
                    "prepare: a DummyOptim is prepared together with its model, under a "
                    "configuration that has an \"optimizer\"");
  AcceleratedOptimizer prepared =
      add_optimizer(optim::make_optimizer(*training_.zero->optimizer, placeholder));
  training_.made_for[&placeholder] = Access::to(prepared);
  return prepared;
}

AcceleratedScheduler TrainingStep::add_scheduler(const DummyScheduler& placeholder,
                                                 const SchedulerPolicy& policy) {
  torch::optim::Optimizer* optimizer = nullptr;
  if (const auto* given = std::get_if<const torch::optim::Optimizer*>(&placeholder.optimizer)) {
    optimizer = const_cast<torch::optim::Optimizer*>(*given);
  } else {
    const auto made = training_.made_for.find(std::get<const DummyOptim*>(placeholder.optimizer));
    const auto alive = made != training_.made_for.end() ? made->second.lock() : nullptr;
    TORCH_CHECK_VALUE(alive != nullptr,
                      "prepare: the DummyOptim of a DummyScheduler is prepared before it");
    optimizer = alive->optimizer.get();
  }
  std::shared_ptr<torch::optim::LRScheduler> scheduler = optim::make_scheduler(
      training_.zero ? training_.zero->scheduler : std::nullopt, placeholder, *optimizer);
  AcceleratedScheduler prepared = add_scheduler(*scheduler, policy);
  const std::shared_ptr<SharedScheduler>& shared = Access::to(prepared);
  shared->owned = std::move(scheduler);
  if (training_.step_in_backward) {
    shared->steps_in_backward = true;
    training_.step_in_backward->schedulers.push_back(shared);
  }
  return prepared;
}

void TrainingStep::engine_backward(const at::Tensor& loss, bool sync_gradients,
                                   const BackwardOptions& options) {
  gradients_.set_sync_gradients(sync_gradients);
  if (sync_gradients) {
    for (const auto& model : training_.models) model->trigger_sync_in_backward();
  }
  backward(loss, options);
}

at::Tensor TrainingStep::engine_norm() const {
  return training_.step_in_backward ? training_.step_in_backward->norm : at::Tensor();
}

}  // namespace accelerate::internal

namespace accelerate {

void DeepSpeedEngineWrapper::backward(const at::Tensor& loss, bool sync_gradients,
                                      const BackwardOptions& options) {
  step_.engine_backward(loss, sync_gradients, options);
}

std::optional<double> DeepSpeedEngineWrapper::get_global_grad_norm() const {
  const at::Tensor norm = step_.engine_norm();
  return norm.defined() ? std::optional(norm.item<double>()) : std::nullopt;
}

}  // namespace accelerate
