#include "accelerate/accelerator.h"

#include <algorithm>

#include <c10/util/Exception.h>
#include <torch/nn/module.h>
#include <torch/nn/utils/clip_grad.h>

#include "accelerate/config/flags.h"

namespace accelerate {
namespace {

constexpr char kUseCpu[] = "ACCELERATE_USE_CPU";
constexpr char kAccumulationSteps[] = "ACCELERATE_GRADIENT_ACCUMULATION_STEPS";
constexpr char kMixedPrecision[] = "ACCELERATE_MIXED_PRECISION";

AcceleratorOptions with_environment(AcceleratorOptions options, const Environment& environment) {
  options.cpu = options.cpu || flag_from_env(environment, kUseCpu, false);
  if (auto steps = count_from_env(environment, kAccumulationSteps, 1)) {
    options.gradient_accumulation_steps = steps;
  }
  TORCH_CHECK_VALUE(options.gradient_accumulation_steps.value_or(1) >= 1,
                    "gradient_accumulation_steps must be at least 1, got ",
                    *options.gradient_accumulation_steps);
  // Training in another precision than asked for would be silent; better to say so.
  const std::string precision = environment.get_or(kMixedPrecision, "no");
  TORCH_CHECK_VALUE(precision == "no", kMixedPrecision, "=\"", precision,
                    "\": this version trains in full precision only; set it to \"no\"");
  return options;
}

bool is_trained(const torch::nn::Module& module) {
  const std::vector<at::Tensor> parameters = module.parameters();
  return std::any_of(parameters.begin(), parameters.end(),
                     [](const at::Tensor& parameter) { return parameter.requires_grad(); });
}

}  // namespace

NoSyncScope::NoSyncScope(c10::SmallVector<DistributedDataParallel*, 4> models)
    : models_(std::move(models)) {
  // A model that an outer scope silenced stays that scope's to wake.
  auto silent = std::remove_if(models_.begin(), models_.end(),
                               [](auto* model) { return !model->require_sync(); });
  models_.erase(silent, models_.end());
  for (DistributedDataParallel* model : models_) model->set_require_sync(false);
}

NoSyncScope::~NoSyncScope() {
  for (DistributedDataParallel* model : models_) model->set_require_sync(true);
}

Accelerator::Accelerator(AcceleratorOptions options, Runtime& runtime)
    : options_(with_environment(std::move(options), runtime.environment())),
      handlers_(KwargsHandlers::from_list(options_.kwargs_handlers)),
      state_(PartialState::get(runtime, {.cpu = options_.cpu, .init = handlers_.init})),
      gradient_state_(
          runtime.shared<GradientState>([] { return std::make_unique<GradientState>(); })),
      training_(runtime.shared<internal::TrainingState>(
          [] { return std::make_unique<internal::TrainingState>(); })) {
  if (!options_.gradient_accumulation_steps) return;
  const int64_t steps = *options_.gradient_accumulation_steps;
  TORCH_CHECK_VALUE(!training_.accumulation_is_set || steps == gradient_state_.num_steps(),
                    "gradient_accumulation_steps=", steps,
                    " contradicts an earlier Accelerator on this Runtime, which set ",
                    gradient_state_.num_steps());
  training_.accumulation_is_set = true;
  gradient_state_.set_num_steps(steps);
}

std::vector<bool> Accelerator::placements(const PrepareOptions& options, size_t objects) const {
  if (options.device_placement.empty()) {
    return std::vector<bool>(objects, options_.device_placement);
  }
  TORCH_CHECK_VALUE(options.device_placement.size() == objects, "prepare: device_placement has ",
                    options.device_placement.size(), " entries for ", objects, " objects");
  return options.device_placement;
}

std::shared_ptr<ModelState> Accelerator::prepare_module(
    const std::shared_ptr<torch::nn::Module>& module, const PrepareModelOptions& options) {
  TORCH_CHECK_VALUE(module != nullptr, "prepare: the model is null");
  auto known = std::find_if(training_.models.begin(), training_.models.end(),
                            [&](const auto& model) { return model->module() == module; });
  if (known != training_.models.end()) return *known;
  if (options.device_placement.value_or(options_.device_placement)) module->to(device());
  auto model = std::make_shared<ModelState>(module);
  if (use_distributed() && !options.evaluation_mode && is_trained(*module)) {
    model->set_ddp(
        std::make_unique<DistributedDataParallel>(module, state_.group(), handlers_.ddp));
  }
  training_.models.push_back(model);
  return model;
}

AcceleratedOptimizer Accelerator::prepare_optimizer(
    std::shared_ptr<torch::optim::Optimizer> optimizer) {
  TORCH_CHECK_VALUE(optimizer != nullptr, "prepare: the optimizer is null");
  return AcceleratedOptimizer(std::move(optimizer), gradient_state_);
}

AcceleratedScheduler Accelerator::prepare_scheduler(torch::optim::LRScheduler& scheduler) {
  return AcceleratedScheduler(scheduler, gradient_state_,
                              {.num_processes = num_processes(),
                               .split_batches = options_.dataloader_config.split_batches,
                               .step_with_optimizer = options_.step_scheduler_with_optimizer});
}

ShardOptions Accelerator::shard_options(bool device_placement, std::optional<uint64_t> seed) const {
  return {.rank = process_index(),
          .world_size = num_processes(),
          .split_batches = options_.dataloader_config.split_batches,
          .even_batches = options_.dataloader_config.even_batches,
          .device = device(),
          .device_placement = device_placement,
          .gradient_state = &gradient_state_,
          .seed = seed};
}

c10::SmallVector<DistributedDataParallel*, 4> Accelerator::all_replicated() const {
  c10::SmallVector<DistributedDataParallel*, 4> replicated;
  for (const auto& model : training_.models) {
    if (model->ddp() != nullptr) replicated.push_back(model->ddp());
  }
  return replicated;
}

void Accelerator::advance_accumulation() {
  if (gradient_state_.end_of_dataloader()) {
    training_.step = 0;
    gradient_state_.set_sync_gradients(true);
  } else {
    ++training_.step;
    gradient_state_.set_sync_gradients(training_.step % gradient_state_.num_steps() == 0);
  }
}

void Accelerator::backward(const at::Tensor& loss) {
  const int64_t steps = gradient_state_.num_steps();
  if (steps == 1) return loss.backward();
  loss.div(steps).backward();
}

double Accelerator::clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm,
                                    double norm_type) {
  if (!sync_gradients()) return 0.0;
  return torch::nn::utils::clip_grad_norm_(parameters, max_norm, norm_type);
}

}  // namespace accelerate
