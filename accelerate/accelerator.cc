#include "accelerate/accelerator.h"

#include <algorithm>
#include <unordered_set>

#include <ATen/ops/full.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>
#include <torch/nn/utils/clip_grad.h>

#include "accelerate/config/env_parsing.h"
#include "accelerate/config/fields.h"
#include "accelerate/optim/optimizer_state.h"
#include "accelerate/util/os_kernel.h"

namespace accelerate {
namespace {

constexpr char kUseCpu[] = "ACCELERATE_USE_CPU";
constexpr char kAccumulationSteps[] = "ACCELERATE_GRADIENT_ACCUMULATION_STEPS";

// Batches on their way to an XLA device.
constexpr int kXlaPrefetch = 2;

// Training otherwise than asked for would be silent; better to say so.
void refuse_what_is_missing(std::optional<PrecisionType> precision,
                            const Environment& environment) {
  TORCH_CHECK_VALUE(precision.value_or(PrecisionType::kNo) == PrecisionType::kNo,
                    "mixed precision \"", to_string(*precision),
                    "\" was asked for, by the Accelerator's option or ACCELERATE_MIXED_PRECISION; "
                    "this version trains in full precision only");
  for (const char* plugin : {"ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED",
                             "ACCELERATE_USE_MEGATRON_LM", "ACCELERATE_USE_PARALLELISM_CONFIG"}) {
    TORCH_CHECK_VALUE(!parse_flag_from_env(plugin, false, environment), plugin,
                      " is set, but this version replicates models only; unset it");
  }
  const std::string backend = environment.get_or("ACCELERATE_DYNAMO_BACKEND", "no");
  TORCH_CHECK_VALUE(from_string<DynamoBackend>(backend) == DynamoBackend::kNo,
                    "ACCELERATE_DYNAMO_BACKEND=\"", backend,
                    "\", but this version compiles nothing; set it to \"no\"");
}

AcceleratorOptions with_environment(AcceleratorOptions options, const Environment& environment) {
  options.cpu = options.cpu || parse_flag_from_env(kUseCpu, false, environment);
  if (options.gradient_accumulation_plugin) {
    TORCH_CHECK_VALUE(options.gradient_accumulation_steps.value_or(1) == 1,
                      "gradient_accumulation_steps and gradient_accumulation_plugin say the same "
                      "thing; give one of them");
  } else {
    if (auto steps = parse_int_from_env(kAccumulationSteps, environment)) {
      options.gradient_accumulation_steps = steps;
    }
    TORCH_CHECK_VALUE(options.gradient_accumulation_steps.value_or(1) >= 1,
                      "gradient_accumulation_steps must be at least 1, got ",
                      *options.gradient_accumulation_steps);
    if (options.gradient_accumulation_steps) {
      options.gradient_accumulation_plugin =
          GradientAccumulationPlugin{.num_steps = options.gradient_accumulation_steps};
    }
  }
  refuse_what_is_missing(
      options.mixed_precision ? options.mixed_precision : mixed_precision_from_env(environment),
      environment);
  if (options.split_batches) {
    TORCH_CHECK_VALUE(*options.split_batches || !options.dataloader_config.split_batches,
                      "split_batches=false contradicts dataloader_config.split_batches=true");
    options.dataloader_config.split_batches = *options.split_batches;
  }
  return options;
}

bool is_trained(const torch::nn::Module& module) {
  const std::vector<at::Tensor> parameters = module.parameters();
  return std::any_of(parameters.begin(), parameters.end(),
                     [](const at::Tensor& parameter) { return parameter.requires_grad(); });
}

}  // namespace

Accelerator::Accelerator(AcceleratorOptions options, Runtime& runtime)
    : options_(with_environment(std::move(options), runtime.environment())),
      handlers_(KwargsHandlers::from_list(options_.kwargs_handlers)),
      state_(AcceleratorState::initialize(runtime, {.mixed_precision = options_.mixed_precision,
                                                    .cpu = options_.cpu,
                                                    .init = handlers_.init})),
      gradient_state_(
          runtime.shared<GradientState>([] { return std::make_unique<GradientState>(); })),
      training_(runtime.shared<internal::TrainingState>(
          [] { return std::make_unique<internal::TrainingState>(); })) {
  if (runtime.owns_process()) check_os_kernel(runtime);
  if (training_.generation != state_.generation()) {
    training_ = internal::TrainingState{.generation = state_.generation()};
    gradient_state_.reset();
  }
  if (!options_.gradient_accumulation_plugin) return;
  const GradientAccumulationPlugin& plugin = *options_.gradient_accumulation_plugin;
  TORCH_CHECK_VALUE(!training_.accumulation_is_set || plugin == gradient_state_.plugin(),
                    "gradient accumulation with ", to_kwargs(plugin).dump(),
                    " contradicts an earlier Accelerator on this Runtime, which set ",
                    to_kwargs(gradient_state_.plugin()).dump());
  gradient_state_.set_plugin(plugin);
  training_.accumulation_is_set = true;
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
  AcceleratedOptimizer prepared(std::move(optimizer), gradient_state_);
  std::erase_if(training_.optimizers, [](const auto& known) { return known.expired(); });
  training_.optimizers.push_back(prepared.shared());
  return prepared;
}

AcceleratedScheduler Accelerator::prepare_scheduler(torch::optim::LRScheduler& scheduler) {
  AcceleratedScheduler prepared(scheduler, gradient_state_,
                                {.num_processes = num_processes(),
                                 .split_batches = options_.dataloader_config.split_batches,
                                 .step_with_optimizer = options_.step_scheduler_with_optimizer});
  std::erase_if(training_.schedulers, [](const auto& known) { return known.expired(); });
  training_.schedulers.push_back(prepared.shared());
  return prepared;
}

ShardOptions Accelerator::shard_options(bool device_placement) const {
  const DataLoaderConfiguration& config = options_.dataloader_config;
  // A TPU's host feeds it ahead of time.
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
          .gradient_state = &gradient_state_};
}

UnevenInputsScope::Restorer::~Restorer() {
  for (auto& [loader, even_batches] : loaders) loader->set_even_batches(even_batches);
  if (training == nullptr) return;
  // Ranks count their steps from the same one on.
  training->joining = false;
  training->step = 0;
}

UnevenInputsScope Accelerator::join(const JoinOptions& options, const ReplicatedModels& models) {
  UnevenInputsScope::Restorer restorer;
  if (!use_distributed()) return UnevenInputsScope(std::move(restorer), JoinScope({}, false));
  if (options.even_batches) override_even_batches(*options.even_batches, restorer);
  const bool uneven = !options.even_batches.value_or(options_.dataloader_config.even_batches);
  if (uneven) {
    training_.joining = true;
    restorer.training = &training_;
  }
  JoinScope join(std::vector(models.begin(), models.end()), uneven,
                 [this, models](int source) { catch_up(source, models); });
  return UnevenInputsScope(std::move(restorer), std::move(join));
}

void Accelerator::catch_up(int source, const ReplicatedModels& models) {
  std::unordered_set<const at::TensorImpl*> parameters;
  for (const auto& model : training_.models) {
    if (std::find(models.begin(), models.end(), model->ddp()) == models.end()) continue;
    for (const at::Tensor& parameter : model->module()->parameters()) {
      parameters.insert(parameter.unsafeGetTensorImpl());
    }
  }
  auto is_joined = [&](const torch::optim::Optimizer& optimizer) {
    for (const torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
      for (const at::Tensor& parameter : group.params()) {
        if (parameters.contains(parameter.unsafeGetTensorImpl())) return true;
      }
    }
    return false;
  };
  // Schedulers first: what they do to the learning rate is overwritten by what it is.
  for (const auto& known : training_.schedulers) {
    if (auto scheduler = known.lock()) scheduler->catch_up(state_.group(), source);
  }
  for (const auto& known : training_.optimizers) {
    if (auto prepared = known.lock(); prepared && is_joined(*prepared->optimizer)) {
      broadcast_optimizer_state(state_.group(), *prepared->optimizer, source, device());
    }
  }
}

void Accelerator::override_even_batches(bool even_batches, UnevenInputsScope::Restorer& restorer) {
  bool some_keep_theirs = false;
  for (const auto& known : training_.loaders) {
    std::shared_ptr<internal::LoaderCore> loader = known.lock();
    if (!loader) continue;
    if (!loader->can_set_even_batches()) {
      some_keep_theirs = true;
      continue;
    }
    restorer.loaders.emplace_back(loader, loader->even_batches());
    loader->set_even_batches(even_batches);
  }
  if (some_keep_theirs) {
    TORCH_WARN(
        "join_uneven_inputs: even_batches can only be set for map-style data that is not "
        "dispatched; other prepared loaders keep theirs");
  }
}

void Accelerator::remember_loader(const std::shared_ptr<internal::LoaderCore>& loader) {
  std::erase_if(training_.loaders, [](const auto& known) { return known.expired(); });
  training_.loaders.push_back(loader);
}

ProcessGroupPtr Accelerator::metrics_group(const BatchRound* round) const {
  if (round == nullptr || round->ranks == 0 || round->ranks == num_processes()) {
    return state_.group();
  }
  // The other ranks have left the loop; members alone make the group.
  ProcessGroupPtr& group = training_.first_ranks[round->ranks];
  if (!group && round->ranks > 1) {
    GroupOptions options;
    for (int rank = 0; rank < round->ranks; ++rank) options.ranks.push_back(rank);
    group = runtime().new_group(options);
  }
  return group;
}

c10::SmallVector<DistributedDataParallel*, 4> Accelerator::all_replicated() const {
  c10::SmallVector<DistributedDataParallel*, 4> replicated;
  for (const auto& model : training_.models) {
    if (model->ddp() != nullptr) replicated.push_back(model->ddp());
  }
  return replicated;
}

void Accelerator::advance_accumulation() {
  // Where ranks run different numbers of steps, all must synchronise at the same ones.
  const BatchRound* round = gradient_state_.round();
  const bool end =
      training_.joining && round != nullptr ? round->last : gradient_state_.end_of_dataloader();
  if (end && gradient_state_.sync_with_dataloader()) {
    training_.step = 0;
    gradient_state_.set_sync_gradients(true);
  } else {
    ++training_.step;
    gradient_state_.set_sync_gradients(training_.step % gradient_state_.num_steps() == 0);
  }
}

void Accelerator::backward(const at::Tensor& loss) {
  const int64_t steps = gradient_state_.num_steps();
  if (distributed_type() == DistributedType::kXla && sync_gradients()) {
    gradient_state_.set_is_xla_gradients_synced(true);
  }
  if (steps == 1) return loss.backward();
  loss.div(steps).backward();
}

bool Accelerator::check_trigger() {
  const at::Tensor flag = at::full({1}, std::exchange(trigger_, false) ? 1 : 0, at::kLong);
  return reduce_tensor(state_.group(), flag, Reduction::kSum).item<int64_t>() > 0;
}

Profiler Accelerator::profile(std::optional<ProfileKwargs> profile_handler) const {
  std::vector<std::shared_ptr<torch::nn::Module>> modules;
  for (const auto& model : training_.models) modules.push_back(model->module());
  return Profiler(state_.partial_state(), profile_handler.value_or(handlers_.profile),
                  std::move(modules));
}

void Accelerator::forget_prepared() {
  TORCH_CHECK_VALUE(!training_.joining, "free_memory: ranks still join inside join_uneven_inputs");
  training_.models.clear();
  training_.loaders.clear();
  training_.optimizers.clear();
  training_.schedulers.clear();
  training_.step = 0;
  gradient_state_.set_sync_gradients(true);
}

double Accelerator::clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm,
                                    double norm_type) {
  if (!sync_gradients()) return 0.0;
  return torch::nn::utils::clip_grad_norm_(parameters, max_norm, norm_type);
}

}  // namespace accelerate
