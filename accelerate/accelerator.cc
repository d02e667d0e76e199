#include "accelerate/accelerator.h"

#include <algorithm>
#include <unordered_set>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/reciprocal.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "accelerate/checkpoint/folder/state_saver.h"
#include "accelerate/optim/accelerated_optimizer.h"
#include "accelerate/optim/clip_grad.h"
#include "accelerate/optim/lomo.h"
#include "accelerate/parallel/communication_hook.h"
#include "accelerate/parallel/compression_hooks.h"
#include "accelerate/parallel/fp8_gradients.h"
#include "accelerate/parallel/replicate.h"
#include "accelerate/precision/fp8_model.h"
#include "accelerate/report/availability.h"
#include "accelerate/report/os_kernel.h"
#include "accelerate/runtime/env_parsing.h"
#include "accelerate/values/fields.h"
#include "accelerate/values/from_string.h"

namespace accelerate {
namespace {

constexpr char kUseCpu[] = "ACCELERATE_USE_CPU";
constexpr char kAccumulationSteps[] = "ACCELERATE_GRADIENT_ACCUMULATION_STEPS";

// Batches on their way to an XLA device.
constexpr int kXlaPrefetch = 2;

// Training otherwise than asked for would be silent; better to say so.
void refuse_what_is_missing(const Environment& environment) {
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

void check_precision(PrecisionType precision, const Runtime& runtime) {
  const bool available = precision == PrecisionType::kNo ||
                         (precision == PrecisionType::kFp16 ? is_fp16_available(runtime)
                                                            : is_bf16_available(false, runtime));
  TORCH_CHECK_VALUE(
      precision != PrecisionType::kFp16 || !is_torch_xla_available(true, false, runtime),
      "mixed precision \"fp16\": TPUs compute in bf16; use mixed_precision=\"bf16\"");
  TORCH_CHECK_VALUE(available, "mixed precision \"", to_string(precision),
                    "\": this rank's device does not compute in it");
}

PrecisionType chosen_precision(const AcceleratorOptions& options, const Runtime& runtime) {
  if (options.mixed_precision) return *options.mixed_precision;
  // Read in any case: a mistake in it is named even where it no longer matters.
  const auto from_environment = mixed_precision_from_env(runtime.environment());
  const auto* earlier = runtime.find_shared<AcceleratorState>();
  if (earlier != nullptr && earlier->initialized()) return earlier->mixed_precision();
  return from_environment.value_or(PrecisionType::kNo);
}

AcceleratorOptions with_environment(AcceleratorOptions options, const Runtime& runtime) {
  const Environment& environment = runtime.environment();
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
  refuse_what_is_missing(environment);
  options.mixed_precision = chosen_precision(options, runtime);
  check_precision(*options.mixed_precision, runtime);
  if (options.split_batches) {
    TORCH_CHECK_VALUE(*options.split_batches || !options.dataloader_config.split_batches,
                      "split_batches=false contradicts dataloader_config.split_batches=true");
    options.dataloader_config.split_batches = *options.split_batches;
  }
  return options;
}

std::string text_of(const Fp8Plan& plan) {
  const std::string recipe =
      std::visit([](const auto& kwargs) { return to_dict(kwargs).dump(); }, plan.recipe);
  return std::string(to_string(plan.backend())) + " " + recipe;
}

// Of numbers that gradients are multiplied by.
at::ScalarType factor_dtype(c10::Device device) {
  return device.is_mps() ? at::kFloat : at::kDouble;
}

ProjectConfiguration project_of(const AcceleratorOptions& options) {
  ProjectConfiguration project = options.project_config;
  if (!options.project_dir) return project;
  TORCH_CHECK_VALUE(!project.project_dir || *project.project_dir == *options.project_dir,
                    "project_dir=\"", *options.project_dir,
                    "\" contradicts project_config's project_dir=\"", *project.project_dir, "\"");
  project.set_directories(options.project_dir);
  return project;
}

KwargsHandlers checked(KwargsHandlers handlers, const AcceleratorOptions& options) {
  check_fp8_handlers(handlers.fp8, *options.mixed_precision);
  check_ddp_options(handlers.ddp);
  return handlers;
}

bool has(const torch::optim::Optimizer& optimizer, const at::Tensor& parameter) {
  const auto& groups = optimizer.param_groups();
  return std::any_of(groups.begin(), groups.end(), [&](const auto& group) {
    return std::any_of(group.params().begin(), group.params().end(),
                       [&](const at::Tensor& other) { return other.is_same(parameter); });
  });
}

bool trains(const torch::optim::Optimizer& optimizer, const torch::nn::Module& module) {
  const std::vector<at::Tensor> parameters = module.parameters();
  return std::any_of(parameters.begin(), parameters.end(),
                     [&](const at::Tensor& parameter) { return has(optimizer, parameter); });
}

bool is_trained(const torch::nn::Module& module) {
  const std::vector<at::Tensor> parameters = module.parameters();
  return std::any_of(parameters.begin(), parameters.end(),
                     [](const at::Tensor& parameter) { return parameter.requires_grad(); });
}

// fn(object) for each that still has a handle.
template <typename T, typename Fn>
void for_each_alive(const std::vector<std::weak_ptr<T>>& known, Fn&& fn) {
  for (const std::weak_ptr<T>& each : known) {
    if (const std::shared_ptr<T> alive = each.lock()) fn(alive);
  }
}

template <typename T>
void remember(std::vector<std::weak_ptr<T>>& known, const std::shared_ptr<T>& object) {
  std::erase_if(known, [](const auto& each) { return each.expired(); });
  known.push_back(object);
}

// The scaler, the schedulers and the optimizers that are meant take rank `source`'s state.
// Collective.
template <typename IsMeant>
void adopt_state(const internal::TrainingState& training, const ProcessGroupPtr& group, int source,
                 c10::Device device, IsMeant&& is_meant) {
  if (training.scaler) {
    training.scaler->scaler().set_group(group);
    training.scaler->scaler().adopt_state(source);
  }
  // Schedulers first: what they do to the learning rate is overwritten by what it is.
  for_each_alive(training.schedulers,
                 [&](const auto& scheduler) { scheduler->catch_up(group, source); });
  for_each_alive(training.optimizers, [&](const auto& prepared) {
    if (!is_meant(*prepared->optimizer)) return;
    if (prepared->moments) prepared->moments->unpack();
    broadcast_optimizer_state(group, *prepared->optimizer, source, device);
    if (prepared->moments) prepared->moments->pack();
  });
}

}  // namespace

Accelerator::Accelerator(AcceleratorOptions options, Runtime& runtime)
    : options_(with_environment(std::move(options), runtime)),
      handlers_(checked(KwargsHandlers::from_list(options_.kwargs_handlers), options_)),
      state_(AcceleratorState::initialize(runtime, {.mixed_precision = options_.mixed_precision,
                                                    .cpu = options_.cpu,
                                                    .init = handlers_.init})),
      gradient_state_(
          runtime.shared<GradientState>([] { return std::make_unique<GradientState>(); })),
      training_(runtime.shared<internal::TrainingState>(
          [] { return std::make_unique<internal::TrainingState>(); })),
      saver_(
          std::make_unique<StateSaver>(state_, training_, gradient_state_, project_of(options_))),
      trackers_(options_.log_with, logging_dir().value_or(""), runtime) {
  if (runtime.owns_process()) check_os_kernel(runtime);
  if (training_.generation != state_.generation()) {
    training_ = internal::TrainingState{.generation = state_.generation()};
    gradient_state_.reset();
  }
  if (mixed_precision() == PrecisionType::kFp8 && (!training_.fp8 || handlers_.fp8.any())) {
    Fp8Plan plan = resolve_fp8(handlers_.fp8, runtime.environment());
    TORCH_CHECK_VALUE(
        !training_.fp8 || text_of(*training_.fp8) == text_of(plan), "fp8 by ", text_of(plan),
        " contradicts an earlier Accelerator on this Runtime, which has ", text_of(*training_.fp8));
    if (!training_.fp8) training_.fp8 = std::move(plan);
  }
  const bool scales =
      mixed_precision() == PrecisionType::kFp16 || fp8_backend() == FP8BackendType::kMsamp;
  if (scales && !training_.scaler) {
    training_.scaler_kwargs = handlers_.scaler;
    training_.scaler = std::make_shared<SharedScaler>(get_grad_scaler(
        distributed_type(), handlers_.scaler, use_distributed() ? state_.group() : nullptr));
  }
  TORCH_CHECK_VALUE(!training_.scaler || handlers_.scaler == GradScalerKwargs() ||
                        handlers_.scaler == training_.scaler_kwargs,
                    "GradScalerKwargs ", to_kwargs(handlers_.scaler).dump(),
                    " contradict an earlier Accelerator on this Runtime, which had ",
                    to_kwargs(training_.scaler_kwargs).dump());
  if (!options_.gradient_accumulation_plugin) return;
  const GradientAccumulationPlugin& plugin = *options_.gradient_accumulation_plugin;
  if (!training_.accumulation) {
    gradient_state_.set_plugin(plugin);
    training_.accumulation = plugin;
  }
  // Setters may have changed it since; what counts is what was asked for.
  TORCH_CHECK_VALUE(plugin == *training_.accumulation || plugin == gradient_state_.plugin(),
                    "gradient accumulation with ", to_kwargs(plugin).dump(),
                    " contradicts an earlier Accelerator on this Runtime, which set ",
                    to_kwargs(gradient_state_.plugin()).dump());
}

Accelerator::~Accelerator() = default;

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
    auto model = std::make_shared<ModelState>(module);
    model->set_autocast(autocast_settings(mixed_precision(), device().type(), handlers_.autocast));
    known = training_.models.insert(training_.models.end(), std::move(model));
  }
  // Of a model that was prepared for evaluation only, this may be the first preparation to train.
  const std::shared_ptr<ModelState> model = *known;
  if (!options.evaluation_mode && !std::exchange(model->is_trained, true)) spread(*model);
  if (training_.fp8 && !model->fp8()) {
    model->set_fp8(Fp8Model::convert(*module, *training_.fp8, nullptr));
  }
  return model;
}

void Accelerator::spread(ModelState& model) {
  const std::shared_ptr<torch::nn::Module>& module = model.module();
  if (!use_distributed()) return;
  if (distributed_type() == DistributedType::kXla) return replicate(state_.group(), *module);
  if (!is_trained(*module) && distributed_type() != DistributedType::kMultiCpu) return;
  auto hook = make_communication_hook(handlers_.ddp);
  if (training_.fp8) {
    model.set_fp8(Fp8Model::convert(*module, *training_.fp8, state_.group()));
    if (fp8_backend() == FP8BackendType::kMsamp) {
      if (hook == nullptr) hook = std::make_unique<MeanHook>();
      hook = std::make_unique<Fp8GradientHook>(model.fp8()->weights(), std::move(hook));
    }
  }
  model.set_ddp(std::make_unique<DistributedDataParallel>(module, state_.group(), handlers_.ddp,
                                                          std::move(hook)));
  leave_gradients_to_lomo();
}

AcceleratedOptimizer Accelerator::prepare_optimizer(
    std::shared_ptr<torch::optim::Optimizer> optimizer) {
  TORCH_CHECK_VALUE(optimizer != nullptr, "prepare: the optimizer is null");
  auto* lomo = dynamic_cast<optim::FusedBackwardOptimizer*>(optimizer.get());
  if (options_.device_placement) move_optimizer_state(*optimizer, device());
  if (lomo != nullptr) {
    TORCH_CHECK_VALUE(!training_.scaler,
                      "an optimizer that steps during the backward pass would use the scaled "
                      "gradients of mixed_precision=\"fp16\" and of MS-AMP; use bf16");
    lomo->set_process_group(use_distributed() ? state_.group() : nullptr);
    training_.steps_in_backward = true;
  }
  // On TPUs the step averages, not the backward pass.
  const bool averages =
      use_distributed() && distributed_type() == DistributedType::kXla && lomo == nullptr;
  const auto* msamp =
      training_.fp8 ? std::get_if<MSAMPRecipeKwargs>(&training_.fp8->recipe) : nullptr;
  AcceleratedOptimizer prepared(std::move(optimizer), gradient_state_,
                                {.scaler = training_.scaler,
                                 .averages_over = averages ? state_.group() : nullptr,
                                 .packs_moments = msamp != nullptr && msamp->opt_level == "O2"});
  prepared.shared()->readers = training_.readers;
  remember(training_.optimizers, prepared.shared());
  leave_gradients_to_lomo();
  for_each_alive(training_.schedulers,
                 [&](const auto& scheduler) { scheduler->add(prepared.shared()); });
  return prepared;
}

AcceleratedScheduler Accelerator::prepare_scheduler(torch::optim::LRScheduler& scheduler) {
  std::vector<std::shared_ptr<const AcceleratedOptimizer::Shared>> optimizers;
  for_each_alive(training_.optimizers,
                 [&](const auto& optimizer) { optimizers.push_back(optimizer); });
  AcceleratedScheduler prepared(scheduler, gradient_state_,
                                {.num_processes = num_processes(),
                                 .split_batches = options_.dataloader_config.split_batches,
                                 .step_with_optimizer = options_.step_scheduler_with_optimizer,
                                 .unit = options_.scheduler_unit},
                                std::move(optimizers));
  remember(training_.schedulers, prepared.shared());
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
  if (training->scaler) training->scaler->scaler().set_group(std::move(scaling_group));
}

UnevenInputsScope Accelerator::join(const JoinOptions& options, const ReplicatedModels& models) {
  UnevenInputsScope::Restorer restorer;
  if (distributed_type() == DistributedType::kXla && use_distributed()) {
    TORCH_WARN("join_uneven_inputs has no effect on TPUs, whose optimizers step together");
  }
  if (!use_distributed() || distributed_type() == DistributedType::kXla) {
    return UnevenInputsScope(std::move(restorer), JoinScope({}, false));
  }
  if (options.even_batches) override_even_batches(*options.even_batches, restorer);
  const bool uneven = !options.even_batches.value_or(options_.dataloader_config.even_batches);
  if (uneven) {
    training_.joining = true;
    restorer.training = &training_;
    // Ranks that have ended do not step; the others have equal gradients.
    if (GradScaler* scaler = this->scaler()) {
      restorer.scaling_group = scaler->group();
      scaler->set_group(nullptr);
    }
  }
  JoinScope join(std::vector(models.begin(), models.end()), uneven,
                 [this, models](int source) { catch_up(source, models); });
  return UnevenInputsScope(std::move(restorer), std::move(join));
}

void Accelerator::catch_up(int source, const ReplicatedModels& models) {
  adopt_state(training_, state_.group(), source, device(), [&](const auto& optimizer) {
    return std::any_of(training_.models.begin(), training_.models.end(), [&](const auto& model) {
      return std::find(models.begin(), models.end(), model->ddp()) != models.end() &&
             trains(optimizer, *model->module());
    });
  });
}

void Accelerator::adopt_training_state(const ModelState& model, int source) {
  adopt_state(training_, state_.group(), source, device(),
              [&](const auto& optimizer) { return trains(optimizer, *model.module()); });
}

void Accelerator::override_even_batches(bool even_batches, UnevenInputsScope::Restorer& restorer) {
  bool some_keep_theirs = false;
  for_each_alive(training_.loaders, [&](const auto& loader) {
    if (!loader->can_set_even_batches()) {
      some_keep_theirs = true;
      return;
    }
    restorer.loaders.emplace_back(loader, loader->even_batches());
    loader->set_even_batches(even_batches);
  });
  if (some_keep_theirs) {
    TORCH_WARN(
        "join_uneven_inputs: even_batches can only be set for map-style data that is not "
        "dispatched; other prepared loaders keep theirs");
  }
}

void Accelerator::remember_loader(const std::shared_ptr<internal::LoaderCore>& loader) {
  remember(training_.loaders, loader);
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

void Accelerator::advance_accumulation(std::initializer_list<const ModelState*> models) {
  if (gradient_state_.sync_gradients()) training_.window = {};
  ++training_.window.steps;
  training_.window.models.assign(models.begin(), models.end());
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

void Accelerator::backward(const at::Tensor& loss, const BackwardOptions& options) {
  internal::AccumulationWindow& window = training_.window;
  TORCH_CHECK_VALUE(!window.divides_by_tokens,
                    "backward() after backward_tokens() in the same accumulation window");
  window.divides_by_steps = window.steps > 0;
  int64_t steps = gradient_state_.num_steps();
  if (sync_gradients() && window.steps > 0 && window.steps < steps &&
      gradient_state_.normalize_partial_window()) {
    if (!std::exchange(window.rescaled, true)) {
      multiply_gradients(
          at::scalar_tensor(static_cast<double>(steps) / window.steps, factor_dtype(at::kCPU)));
    }
    steps = window.steps;
  }
  run_backward(steps == 1 ? loss : loss.div(steps), options);
}

std::vector<optim::FusedBackwardOptimizer*> Accelerator::lomo_optimizers() const {
  std::vector<optim::FusedBackwardOptimizer*> found;
  for_each_alive(training_.optimizers, [&](const auto& prepared) {
    auto* lomo = dynamic_cast<optim::FusedBackwardOptimizer*>(prepared->optimizer.get());
    if (lomo != nullptr) found.push_back(lomo);
  });
  return found;
}

void Accelerator::lomo_backward(const at::Tensor& loss, std::optional<double> learning_rate) {
  const auto optimizers = lomo_optimizers();
  TORCH_CHECK_VALUE(!optimizers.empty(),
                    "lomo_backward: no prepared optimizer steps during the backward pass; was a "
                    "LOMO optimizer passed to prepare?");
  TORCH_CHECK_VALUE(optimizers.size() == 1, "lomo_backward: ", optimizers.size(),
                    " prepared optimizers step during the backward pass, which there is one of");
  for_each_alive(training_.optimizers, [&](const auto& prepared) {
    if (prepared->optimizer.get() == optimizers.front()) prepared->wait_for_readers();
  });
  optimizers.front()->fused_backward(loss, learning_rate);
}

void Accelerator::leave_gradients_to_lomo() {
  const auto optimizers = lomo_optimizers();
  for (const auto& model : training_.models) {
    if (model->ddp() == nullptr) continue;
    const bool leaves = std::any_of(optimizers.begin(), optimizers.end(), [&](const auto* lomo) {
      return trains(*lomo, *model->module());
    });
    if (leaves == model->is_left_to_lomo) continue;
    for (const at::Tensor& parameter : model->module()->parameters()) {
      TORCH_CHECK_VALUE(!leaves || !parameter.requires_grad() ||
                            std::any_of(optimizers.begin(), optimizers.end(),
                                        [&](const auto* lomo) { return has(*lomo, parameter); }),
                        "an optimizer that steps during the backward pass takes all parameters of "
                        "a model that ranks train together, or none of them");
    }
    model->is_left_to_lomo = leaves;
    if (leaves) {
      model->ddp()->silence();
    } else {
      --*model->ddp()->silences();
    }
  }
}

at::Tensor Accelerator::backward_tokens(const at::Tensor& loss_sum, int64_t n_tokens,
                                        const BackwardOptions& options) {
  internal::AccumulationWindow& window = training_.window;
  TORCH_CHECK_VALUE(n_tokens >= 0, "backward_tokens: a loss over ", n_tokens, " tokens");
  TORCH_CHECK_VALUE(
      !training_.joining,
      "backward_tokens: ranks whose data has ended would not count along inside "
      "join_uneven_inputs; use even batches, or zero tokens in the batches that fill up");
  TORCH_CHECK_VALUE(!window.divides_by_steps,
                    "backward_tokens() after backward() in the same accumulation window");
  TORCH_CHECK_VALUE(!window.tokens_are_summed || window.steps == 1,
                    "backward_tokens: the window's tokens were summed already; a window of several "
                    "micro-steps has one loss in each");
  window.divides_by_tokens = window.steps > 0;
  window.tokens += n_tokens;
  if (!sync_gradients()) {
    // Nearly a mean, which fp16 needs; not where ranks are averaged before the end.
    if (window.token_unit == 0) {
      window.token_unit = gradient_state_.sync_each_batch() ? 1 : std::max<int64_t>(1, n_tokens);
    }
    run_backward(window.token_unit == 1 ? loss_sum : loss_sum.div(window.token_unit), options);
    return {};
  }
  at::Tensor tokens =
      at::full({1}, std::exchange(window.tokens, 0), at::TensorOptions(device()).dtype(at::kLong));
  if (use_distributed()) tokens = reduce_tensor(state_.group(), tokens, Reduction::kSum);
  tokens = tokens.reshape({});
  // Averaging over ranks divides by their number.
  const at::Tensor factor =
      at::reciprocal(tokens.clamp_min(1).to(factor_dtype(device()))).mul_(num_processes());
  if (window.token_unit != 0) multiply_gradients(factor.mul(window.token_unit));
  window.token_unit = 0;
  window.tokens_are_summed = window.steps > 0;
  run_backward(loss_sum.mul(factor.to(loss_sum.options())), options);
  return tokens;
}

void Accelerator::run_backward(const at::Tensor& loss, const BackwardOptions& options) {
  auto run = [&](const at::Tensor& tensor) {
    if (!options.inputs) {
      return tensor.backward(options.gradient, options.retain_graph, options.create_graph);
    }
    tensor.backward(options.gradient, options.retain_graph, options.create_graph,
                    at::TensorList(*options.inputs));
  };
  if (distributed_type() == DistributedType::kXla) {
    // What comes now is still to be averaged.
    for_each_alive(training_.optimizers,
                   [](const auto& optimizer) { optimizer->are_averaged = false; });
  }
  if (training_.scaler) {
    training_.scaler->begin_backward();
    return run(scaler()->scale(loss));
  }
  if (!has_lomo_optimizer()) return run(loss);
  TORCH_CHECK_VALUE(!options.gradient.defined() && !options.retain_graph && !options.inputs &&
                        !options.create_graph,
                    "backward: an optimizer that steps meanwhile takes none of autograd's options");
  lomo_backward(loss, options.learning_rate);
}

void Accelerator::multiply_gradients(const at::Tensor& factor) {
  at::NoGradGuard no_grad;
  const auto& named = training_.window.models;
  std::unordered_set<const at::TensorImpl*> seen;
  auto multiply = [&](const at::Tensor& parameter) {
    at::Tensor& gradient = parameter.mutable_grad();
    if (seen.insert(parameter.unsafeGetTensorImpl()).second && gradient.defined()) {
      gradient.mul_(factor.to(gradient.device()));
    }
  };
  for (const auto& model : training_.models) {
    const bool is_named =
        named.empty() || std::find(named.begin(), named.end(), model.get()) != named.end();
    for (const at::Tensor& parameter : model->module()->parameters()) {
      if (is_named) {
        multiply(parameter);
      } else {
        seen.insert(parameter.unsafeGetTensorImpl());
      }
    }
  }
  for_each_alive(training_.optimizers, [&](const auto& prepared) {
    for (const torch::optim::OptimizerParamGroup& group : prepared->optimizer->param_groups()) {
      for (const at::Tensor& parameter : group.params()) multiply(parameter);
    }
  });
}

void Accelerator::unscale_gradients() {
  if (scaler() != nullptr && sync_gradients()) settle_gradients();
}

void Accelerator::unscale_gradients(const AcceleratedOptimizer& optimizer) {
  if (scaler() == nullptr || !sync_gradients()) return;
  TORCH_CHECK_VALUE(optimizer, "unscale_gradients: the prepared optimizer was freed");
  optimizer.shared()->settle_gradients(gradient_state_);
}

void Accelerator::settle_gradients() {
  for_each_alive(training_.optimizers,
                 [&](const auto& optimizer) { optimizer->settle_gradients(gradient_state_); });
}

bool Accelerator::optimizer_step_was_skipped() const {
  return std::any_of(training_.optimizers.begin(), training_.optimizers.end(),
                     [](const auto& known) {
                       auto optimizer = known.lock();
                       return optimizer && optimizer->step_was_skipped;
                     });
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
  training_.steps_in_backward = false;
  training_.step = 0;
  training_.window = {};
  gradient_state_.set_sync_gradients(true);
}

at::Tensor Accelerator::clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm,
                                        double norm_type, bool error_if_nonfinite) {
  if (!sync_gradients()) return at::zeros({}, at::TensorOptions(device()));
  settle_gradients();
  return accelerate::clip_grad_norm_(
      parameters, max_norm, {.norm_type = norm_type, .error_if_nonfinite = error_if_nonfinite});
}

void Accelerator::clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value) {
  if (!sync_gradients()) return;
  settle_gradients();
  accelerate::clip_grad_value_(parameters, clip_value);
}

}  // namespace accelerate
