#include "accelerate/accelerator.h"

#include <algorithm>

#include <ATen/ops/full.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "accelerate/checkpoint/folder/state_saver.h"
#include "accelerate/optim/accelerated_optimizer.h"
#include "accelerate/optim/lomo.h"
#include "accelerate/parallel/apply.h"
#include "accelerate/report/environment_report.h"
#include "accelerate/step/training_state.h"
#include "accelerate/values/fields.h"

namespace accelerate {
namespace {

// The number of batches that are on their way to an XLA device at a time.
constexpr int kXlaPrefetch = 2;

std::string text_of(const Fp8Plan& plan) {
  const std::string recipe =
      std::visit([](const auto& kwargs) { return to_dict(kwargs).dump(); }, plan.recipe);
  return std::string(to_string(plan.backend())) + " " + recipe;
}

}  // namespace

Accelerator::Accelerator(AcceleratorOptions options, Runtime& runtime)
    : options_(internal::with_environment(std::move(options), runtime)),
      handlers_(internal::handlers_of(options_)),
      state_(AcceleratorState::initialize(runtime, {.mixed_precision = options_.mixed_precision,
                                                    .cpu = options_.cpu,
                                                    .init = handlers_.init})),
      gradient_state_(
          runtime.shared<GradientState>([] { return std::make_unique<GradientState>(); })),
      training_(runtime.shared<internal::TrainingState>(
          [] { return std::make_unique<internal::TrainingState>(); })),
      step_(state_, gradient_state_, training_),
      saver_(std::make_unique<StateSaver>(state_, training_, gradient_state_,
                                          internal::project_of(options_))),
      trackers_(options_.log_with, logging_dir().value_or(""), runtime) {
  if (runtime.owns_process()) check_os_kernel(runtime);
  if (training_.generation != state_.generation()) {
    training_ = internal::TrainingState{.generation = state_.generation()};
    gradient_state_.reset();
  }
  choose_fp8();
  make_scaler();
  if (options_.gradient_accumulation_plugin) {
    gradient_state_.request_plugin(*options_.gradient_accumulation_plugin);
  }
}

Accelerator::~Accelerator() = default;

void Accelerator::choose_fp8() {
  if (mixed_precision() != PrecisionType::kFp8 || (training_.fp8 && !handlers_.fp8.any())) return;
  Fp8Plan plan = resolve_fp8(handlers_.fp8, runtime().environment());
  TORCH_CHECK_VALUE(
      !training_.fp8 || text_of(*training_.fp8) == text_of(plan), "fp8 by ", text_of(plan),
      " contradicts an earlier Accelerator on this Runtime, which has ", text_of(*training_.fp8));
  if (!training_.fp8) training_.fp8 = std::move(plan);
}

void Accelerator::make_scaler() {
  const bool scales =
      mixed_precision() == PrecisionType::kFp16 || fp8_backend() == FP8BackendType::kMsamp;
  if (scales && !training_.scaler) {
    training_.scaler_kwargs = handlers_.scaler;
    training_.scaler = std::make_shared<SharedScaler>(
        get_grad_scaler(distributed_type(), handlers_.scaler, training_group()));
  }
  TORCH_CHECK_VALUE(!training_.scaler || handlers_.scaler == GradScalerKwargs() ||
                        handlers_.scaler == training_.scaler_kwargs,
                    "GradScalerKwargs ", to_kwargs(handlers_.scaler).dump(),
                    " contradict an earlier Accelerator on this Runtime, which had ",
                    to_kwargs(training_.scaler_kwargs).dump());
}

ProcessGroupPtr Accelerator::training_group() const {
  return use_distributed() ? state_.group() : nullptr;
}

FP8BackendType Accelerator::fp8_backend() const {
  return training_.fp8 ? training_.fp8->backend() : FP8BackendType::kNo;
}

bool Accelerator::multi_device() const {
  const DistributedType type = distributed_type();
  return use_distributed() && type != DistributedType::kMultiCpu && type != DistributedType::kXla;
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
  if (known == training_.models.end()) {
    if (options.device_placement.value_or(options_.device_placement)) module->to(device());
    known = training_.models.insert(known, std::make_shared<ModelState>(module));
  }
  const std::shared_ptr<ModelState> model = *known;
  apply_stages(
      *model,
      {.distributed_type = distributed_type(),
       .group = training_group(),
       .ddp = handlers_.ddp,
       .autocast = autocast_settings(mixed_precision(), device().type(), handlers_.autocast),
       .fp8 = training_.fp8},
      /*trains=*/!options.evaluation_mode);
  step_.leave_gradients_to_lomo();
  return model;
}

AcceleratedOptimizer Accelerator::prepare_optimizer(
    std::shared_ptr<torch::optim::Optimizer> optimizer, std::optional<bool> device_placement) {
  TORCH_CHECK_VALUE(optimizer != nullptr, "prepare: the optimizer is null");
  auto* lomo = dynamic_cast<optim::FusedBackwardOptimizer*>(optimizer.get());
  if (device_placement.value_or(options_.device_placement)) {
    move_optimizer_state(*optimizer, device());
  }
  if (lomo != nullptr) {
    TORCH_CHECK_VALUE(!training_.scaler,
                      "an optimizer that steps during the backward pass would use the scaled "
                      "gradients of mixed_precision=\"fp16\" and of MS-AMP; use bf16");
    lomo->set_process_group(training_group());
    training_.steps_in_backward = true;
  }
  // On TPUs the optimizer's step averages gradients, not the backward pass.
  const bool averages =
      use_distributed() && distributed_type() == DistributedType::kXla && lomo == nullptr;
  const auto* msamp =
      training_.fp8 ? std::get_if<MSAMPRecipeKwargs>(&training_.fp8->recipe) : nullptr;
  AcceleratedOptimizer prepared(std::move(optimizer), gradient_state_,
                                {.scaler = training_.scaler,
                                 .averages_over = averages ? state_.group() : nullptr,
                                 .packs_moments = msamp != nullptr && msamp->opt_level == "O2"});
  prepared.shared()->readers = training_.readers;
  internal::remember(training_.optimizers, prepared.shared());
  step_.leave_gradients_to_lomo();
  internal::for_each_alive(training_.schedulers,
                           [&](const auto& scheduler) { scheduler->add(prepared.shared()); });
  return prepared;
}

AcceleratedScheduler Accelerator::prepare_scheduler(torch::optim::LRScheduler& scheduler) {
  std::vector<std::shared_ptr<const AcceleratedOptimizer::Shared>> optimizers;
  internal::for_each_alive(training_.optimizers,
                           [&](const auto& optimizer) { optimizers.push_back(optimizer); });
  AcceleratedScheduler prepared(scheduler, gradient_state_,
                                {.num_processes = num_processes(),
                                 .split_batches = options_.dataloader_config.split_batches,
                                 .step_with_optimizer = options_.step_scheduler_with_optimizer,
                                 .unit = options_.scheduler_unit},
                                std::move(optimizers));
  internal::remember(training_.schedulers, prepared.shared());
  return prepared;
}

ShardOptions Accelerator::shard_options(bool device_placement) const {
  const DataLoaderConfiguration& config = options_.dataloader_config;
  // On TPUs the host sends batches ahead of time.
  const int prefetch = distributed_type() == DistributedType::kXla ? kXlaPrefetch : 0;
  return {.rank = process_index(),
          .world_size = num_processes(),
          .group = state_.group(),
          .split_batches = config.split_batches,
          .dispatch_batches = config.dispatch_batches,
          .even_batches = config.even_batches,
          .use_seedable_sampler = config.use_seedable_sampler,
          .data_seed = config.data_seed,
          .rng_types = options_.rng_types,
          .device = device(),
          .device_placement = device_placement,
          .non_blocking = config.non_blocking,
          .device_prefetch = prefetch,
          .use_stateful_dataloader = config.use_stateful_dataloader,
          .gradient_state = &gradient_state_};
}

void Accelerator::remember_loader(const std::shared_ptr<internal::LoaderCore>& loader) {
  internal::remember(training_.loaders, loader);
}

bool Accelerator::check_trigger() {
  const at::Tensor flag = at::full({1}, std::exchange(trigger_, false) ? 1 : 0, at::kLong);
  return reduce_tensor(state_.group(), flag, Reduction::kSum).item<int64_t>() > 0;
}

Profiler Accelerator::profile(const ProfileKwargs& profile_handler) const {
  std::vector<std::shared_ptr<torch::nn::Module>> modules;
  for (const auto& model : training_.models) modules.push_back(model->module());
  return Profiler(state_.partial_state(), profile_handler, std::move(modules));
}

std::function<MemoryReport(const Runtime&)> Accelerator::forget_prepared() {
  TORCH_CHECK_VALUE(!gradient_state_.joining(),
                    "free_memory: ranks still join inside join_uneven_inputs");
  auto survivors = internal::watch_prepared(training_);
  training_.models.clear();
  training_.loaders.clear();
  training_.optimizers.clear();
  training_.schedulers.clear();
  training_.steps_in_backward = false;
  gradient_state_.restart();
  return survivors;
}

}  // namespace accelerate
