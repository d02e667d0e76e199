#include "accelerate/accelerator.h"

#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/ops/full.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "accelerate/checkpoint/folder/state_saver.h"
#include "accelerate/comm/differentiable.h"
#include "accelerate/comm/process_group.h"
#include "accelerate/optim/accelerated_optimizer.h"
#include "accelerate/report/environment_report.h"
#include "accelerate/script/script_module.h"
#include "accelerate/step/training_state.h"
#include "accelerate/techniques/technique_list.h"
#include "accelerate/values/texts.h"

namespace accelerate {

Accelerator::Accelerator(AcceleratorOptions options, Runtime& runtime)
    : options_(internal::with_environment(std::move(options), runtime)),
      handlers_(internal::handlers_of(options_)),
      state_(AcceleratorState::initialize(
          runtime, {.mixed_precision = options_.mixed_precision,
                    .cpu = options_.cpu,
                    .init = handlers_.init,
                    .parallelism_config = options_.parallelism_config,
                    .fsdp_plugin = options_.fsdp_plugin ? &*options_.fsdp_plugin : nullptr,
                    .deepspeed_plugins = options_.deepspeed_plugins,
                    .megatron_lm_plugin =
                        options_.megatron_lm_plugin ? &*options_.megatron_lm_plugin : nullptr,
                    .dynamo_plugin = options_.dynamo_plugin})),
      gradient_state_(
          runtime.shared<GradientState>([] { return std::make_unique<GradientState>(); })),
      training_(runtime.shared<internal::TrainingState>(
          [] { return std::make_unique<internal::TrainingState>(); })),
      step_(state_, gradient_state_, training_),
      saver_(std::make_unique<StateSaver>(state_, training_, gradient_state_,
                                          internal::project_of(options_))),
      trackers_(options_.log_with, logging_dir().value_or(""), runtime) {
  if (runtime.sees_machine()) check_os_kernel(runtime);
  if (training_.generation != state_.generation()) {
    training_ = internal::TrainingState{.generation = state_.generation()};
    gradient_state_.reset();
  }
  training_.techniques = all_techniques();
  // ZeRO's configuration says what is not computed in fp8.
  const bool in_fp8 = options_.mixed_precision == PrecisionType::kFp8 || handlers_.fp8.any();
  training_.precision.choose(mixed_precision(), in_fp8, handlers_, distributed_type(),
                             state_.group(), runtime.environment());
  if (options_.gradient_accumulation_plugin) {
    gradient_state_.request_plugin(*options_.gradient_accumulation_plugin);
  }
}

Accelerator::~Accelerator() = default;

ContextParallelScope Accelerator::maybe_context_parallel(
    const std::vector<at::Tensor>& buffers, const std::vector<int64_t>& buffer_seq_dims,
    const std::vector<at::Tensor>& no_restore_buffers, SequenceOrder order) const {
  ContextRing ring = {.order = order};
  const std::optional<ParallelismConfig>& config = parallelism_config();
  if (config && config->cp_enabled()) {
    ring.group = torch_device_mesh()->group(MeshAxis::kCp);
    ring.gathers = config->cp_handler()->cp_comm_strategy == "allgather";
  }
  return {runtime(),
          ring,
          {.buffers = buffers, .seq_dims = buffer_seq_dims, .no_restore = no_restore_buffers}};
}

FP8BackendType Accelerator::fp8_backend() const { return training_.precision.fp8_backend(); }

int Accelerator::mesh_rank(const char* parallelism, MeshAxis axis) const {
  TORCH_CHECK_VALUE(parallelism_config(), parallelism,
                    " is not configured. Set `parallelism_config` first.");
  const DeviceMesh* mesh = torch_device_mesh();
  return mesh == nullptr ? 0 : mesh->coordinate(axis);
}

std::shared_ptr<ScriptModule> Accelerator::script_module(const torch::jit::Module& script) const {
  for (const auto& model : training_.models) {
    auto known = std::dynamic_pointer_cast<ScriptModule>(model->module());
    if (known != nullptr && known->script() == script) return known;
  }
  return std::make_shared<ScriptModule>(script);
}

std::vector<bool> Accelerator::placements(const PrepareOptions& options, size_t objects) const {
  if (options.device_placement.empty()) {
    return std::vector<bool>(objects, options_.device_placement);
  }
  TORCH_CHECK_VALUE(options.device_placement.size() == objects, "prepare: device_placement has ",
                    options.device_placement.size(), " entries for ", objects, " objects");
  return options.device_placement;
}

void Accelerator::begin_prepare(const internal::PreparedTogether& together) {
  step_.configure_zero(together, options_.dataloader_config.split_batches);
  step_.check_before_sharding(together.modules, together.optimizers);
}

std::shared_ptr<ModelState> Accelerator::add_model(const std::shared_ptr<torch::nn::Module>& module,
                                                   const PrepareModelOptions& options) {
  TORCH_CHECK_VALUE(
      megatron_lm_plugin() == nullptr || (module != nullptr && module.get() == engine_model_),
      "prepare: with a megatron_lm_plugin a model is prepared by prepare_megatron_lm, which makes "
      "its engine, and an Accelerator has one engine");
  return step_.add_model(module, handlers_,
                         options.device_placement.value_or(options_.device_placement),
                         /*trains=*/!options.evaluation_mode);
}

AcceleratedOptimizer Accelerator::add_optimizer(std::shared_ptr<torch::optim::Optimizer> optimizer,
                                                bool device_placement) {
  TORCH_CHECK_VALUE(optimizer != nullptr, "prepare: the optimizer is null");
  if (device_placement) move_optimizer_state(*optimizer, device());
  return step_.add_optimizer(std::move(optimizer));
}

std::shared_ptr<ModelState> Accelerator::prepare_module(
    const std::shared_ptr<torch::nn::Module>& module, const PrepareModelOptions& options) {
  if (!options.evaluation_mode) step_.check_before_sharding({module.get()}, {});
  return add_model(module, options);
}

AcceleratedOptimizer Accelerator::prepare_optimizer(
    std::shared_ptr<torch::optim::Optimizer> optimizer, std::optional<bool> device_placement) {
  step_.check_before_sharding({}, {optimizer.get()});
  return add_optimizer(std::move(optimizer), device_placement.value_or(options_.device_placement));
}

SchedulerPolicy Accelerator::scheduler_policy() const {
  return {.num_shares = state_.data_share().count,
          .split_batches = options_.dataloader_config.split_batches,
          .step_with_optimizer = options_.step_scheduler_with_optimizer,
          .unit = options_.scheduler_unit};
}

AcceleratedScheduler Accelerator::prepare_scheduler(torch::optim::LRScheduler& scheduler) {
  return step_.add_scheduler(scheduler, scheduler_policy());
}

ShardOptions Accelerator::shard_options(bool device_placement) const {
  const DataLoaderConfiguration& config = options_.dataloader_config;
  const DataShare share = state_.data_share();
  // Each rank along sp has a share of its own, next to those of the others.
  const ProcessGroupPtr sequences = sp_group();
  const int ranks = size_of(sequences);
  return {.share = share.index * ranks + rank_of(sequences),
          .num_shares = share.count * ranks,
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
          .device_prefetch = device_prefetch_on(distributed_type()),
          .use_stateful_dataloader = config.use_stateful_dataloader,
          .sequence_group = sequences,
          .sequence_length = sequence_length(),
          .gradient_state = &gradient_state_};
}

ProcessGroupPtr Accelerator::sp_group() const {
  const DeviceMesh* mesh = torch_device_mesh();
  return mesh != nullptr ? mesh->group(MeshAxis::kSp) : nullptr;
}

int64_t Accelerator::sequence_length() const {
  const std::optional<ParallelismConfig>& config = parallelism_config();
  if (!config || !config->sp_enabled()) return 0;
  const DeepSpeedSequenceParallelConfig& handler = *config->sp_handler();
  return *handler.sp_seq_length_is_variable ? 0 : *handler.sp_seq_length;
}

at::Tensor Accelerator::mean_over_sequences(const at::Tensor& loss,
                                            const at::Tensor& n_tokens) const {
  return mean_over_tokens(loss, n_tokens, state_.sequence_group());
}

void Accelerator::backward(const at::Tensor& loss, const BackwardOptions& options) {
  try {
    step_.backward(loss, options);
  } catch (const std::exception&) {
    explain_failed_backward(loss);
    throw;
  }
}

at::Tensor Accelerator::backward_tokens(const at::Tensor& loss_sum, int64_t n_tokens,
                                        const BackwardOptions& options) {
  try {
    return step_.backward_tokens(loss_sum, n_tokens, options);
  } catch (const std::exception&) {
    explain_failed_backward(loss_sum);
    throw;
  }
}

void Accelerator::explain_failed_backward(const at::Tensor& loss) const {
  const LiveContext* const context = runtime().find_shared<LiveContext>();
  TORCH_CHECK_VALUE(context == nullptr || !context->has_ended_before_backward(loss), "rank ",
                    process_index(),
                    ": the loss was computed inside of maybe_context_parallel, whose scope has "
                    "ended before the backward pass and has made its buffers whole again; call "
                    "backward inside of the scope, or name the buffers in no_restore_buffers (",
                    exception_text(), ")");
}

at::Tensor Accelerator::gather_sequences(const at::Tensor& part, int64_t dim) const {
  const LiveContext* const context = runtime().find_shared<LiveContext>();
  if (context != nullptr && context->scope != nullptr) return context->scope->gathered(part, dim);
  return all_gather_along(part, dim, sp_group());
}

void Accelerator::register_loader(const std::shared_ptr<internal::LoaderCore>& loader) {
  internal::register_in(training_.loaders, loader);
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

std::function<MemoryReport(const Runtime&)> Accelerator::release_prepared() {
  auto survivors = internal::watch_prepared(training_);
  engine_model_ = nullptr;
  step_.release_prepared();
  return survivors;
}

}  // namespace accelerate
