#include "accelerate/accelerator.h"

#include <algorithm>
#include <memory>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/ops/full.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "accelerate/big_model/load_plan.h"
#include "accelerate/checkpoint/folder/state_saver.h"
#include "accelerate/dispatch/dispatch_technique.h"
#include "accelerate/dispatch/dispatched_model.h"
#include "accelerate/dispatch/offloaded_state.h"
#include "accelerate/modules/module_tensors.h"
#include "accelerate/modules/value_at_use.h"
#include "accelerate/optim/accelerated_optimizer.h"
#include "accelerate/quantization/models/load_and_quantize.h"
#include "accelerate/quantization/models/quantized_weight.h"
#include "accelerate/report/environment_report.h"
#include "accelerate/runtime/env_parsing.h"
#include "accelerate/step/training_state.h"
#include "accelerate/tensors/tensor_memory.h"

namespace accelerate {

Accelerator::Accelerator(AcceleratorOptions options, Runtime& runtime)
    : options_(internal::with_environment(std::move(options), runtime)),
      handlers_(internal::handlers_of(options_)),
      state_(AcceleratorState::initialize(
          runtime,
          {.mixed_precision = options_.mixed_precision,
           .cpu = options_.cpu,
           .init = handlers_.init,
           .parallelism_config = options_.parallelism_config,
           .fsdp_plugin = options_.fsdp_plugin ? std::make_shared<FullyShardedDataParallelPlugin>(
                                                     *options_.fsdp_plugin)
                                               : nullptr,
           .deepspeed_plugins = options_.deepspeed_plugins})),
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
  // ZeRO's configuration says what is not computed in fp8.
  const bool in_fp8 = options_.mixed_precision == PrecisionType::kFp8 || handlers_.fp8.any();
  training_.precision.choose(mixed_precision(), in_fp8, handlers_, distributed_type(),
                             state_.group(), runtime.environment());
  if (options_.gradient_accumulation_plugin) {
    gradient_state_.request_plugin(*options_.gradient_accumulation_plugin);
  }
}

Accelerator::~Accelerator() = default;

FP8BackendType Accelerator::fp8_backend() const { return training_.precision.fp8_backend(); }

int Accelerator::mesh_rank(const char* parallelism, MeshAxis axis) const {
  TORCH_CHECK_VALUE(parallelism_config(), parallelism,
                    " is not configured. Set `parallelism_config` first.");
  const DeviceMesh* mesh = torch_device_mesh();
  return mesh == nullptr ? 0 : mesh->coordinate(axis);
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
  step_.begin_zero(together, options_.dataloader_config.split_batches);
  step_.check_before_sharding(together.modules, together.optimizers);
}

namespace {

using DispatchedModels = std::vector<std::shared_ptr<DispatchedModel>>;

// Where a device map has placed a model, or one inside of it, ranks cannot train it together.
void check_placement(const DispatchedModels& dispatched, const AcceleratorState& state,
                     bool trains) {
  const bool is_spread = std::ranges::any_of(
      dispatched, [](const auto& each) { return each->device_map().size() > 1; });
  if (state.use_distributed() && is_spread) {
    TORCH_CHECK_VALUE(parse_flag_from_env("ACCELERATE_BYPASS_DEVICE_MAP"),
                      "prepare: the model is placed on several devices by a device map, and rank ",
                      state.process_index(), " is one of ", state.num_processes(),
                      " ranks, each of which would train such a model: run one process, or set "
                      "ACCELERATE_BYPASS_DEVICE_MAP=true if that is what you want");
  }
  const bool divides = state.fsdp_plugin() != nullptr || state.deepspeed_plugin() != nullptr;
  if (!trains || (!state.use_distributed() && !divides)) return;
  for (const auto& each : dispatched) {
    TORCH_CHECK_VALUE(
        each->offloaded().empty(), "prepare: a device map has offloaded parameter \"",
        each->offloaded()[0].name,
        "\" of the model, which one process can train, without FSDP or DeepSpeed: let those "
        "offload the model, or prepare it with evaluation_mode");
  }
}

void check_codes_are_frozen(const torch::nn::Module& module) {
  for (const auto& item : module.named_parameters()) {
    TORCH_CHECK_VALUE(!item.value().requires_grad() || !quantized_bits(item.value()),
                      "prepare: parameter \"", item.key(),
                      "\" is quantised and requires gradients; codes are not trained, but what is "
                      "beside them, such as adapters");
  }
}

// A quantised model is trained beside its weights, where it is.
void check_quantized_placement(const DispatchedModel& dispatched, const AcceleratorState& state) {
  if (!is_quantized(*dispatched.module())) return;
  const std::vector<DevicePlacement> placements = dispatched.device_map().placements();
  TORCH_CHECK_VALUE(placements.size() == 1 || !state.use_distributed(),
                    "You can't train a model that has been loaded in 8-bit or 4-bit precision on "
                    "multiple devices in any distributed mode. Rank ",
                    state.process_index(), " is one of ", state.num_processes(),
                    ": load the model on one device, or run one process.");
  const bool on_host = state.device().is_cpu();
  for (const DevicePlacement& each : placements) {
    TORCH_CHECK_VALUE(
        !each.is_disk() && (!each.is_cpu() || on_host),
        "You can't train a model that has been loaded in 8-bit or 4-bit precision with "
        "CPU or disk offload: its device map has \"",
        each.text(), "\". Load it on devices, or prepare it with evaluation_mode.");
  }
  const std::optional<c10::Device> device = internal::device_of(placements.front());
  TORCH_CHECK_VALUE(placements.size() > 1 || check_device_same(*device, state.device()),
                    "You can't train a model that has been loaded in 8-bit or 4-bit precision on a "
                    "different device than the one you're training on: rank ",
                    state.process_index(), " computes on ", state.device(),
                    ", and the model is on ", *device,
                    ". Leave device_map out of load_and_quantize_model.");
}

// Moves what is around the dispatched models in a module.
class MoveAround {
 public:
  MoveAround(const DispatchedModels& dispatched, c10::Device device) : device_(device) {
    for (const auto& each : dispatched) {
      modules_.insert(each->module().get());
      // What a dispatched model shares with what is around it stays.
      for (const at::Tensor& tensor : each->module()->parameters()) {
        parameters_.insert(tensor.unsafeGetTensorImpl());
      }
    }
  }

  void operator()(const torch::nn::Module& module) const {
    if (modules_.contains(&module)) return;
    for (const at::Tensor& each : module.parameters(/*recurse=*/false)) move(each);
    for (const at::Tensor& each : module.buffers(/*recurse=*/false)) move(each);
    for (const auto& child : module.children()) (*this)(*child);
  }

 private:
  void move(const at::Tensor& tensor) const {
    if (!tensor.defined() || tensor.device() == device_) return;
    if (parameters_.contains(tensor.unsafeGetTensorImpl())) return;
    internal::rebind(tensor, internal::moved_to(tensor, device_));
  }

  const c10::Device device_;
  std::unordered_set<const torch::nn::Module*> modules_;
  std::unordered_set<const c10::TensorImpl*> parameters_;
};

}  // namespace

std::shared_ptr<ModelState> Accelerator::prepare_module(
    const std::shared_ptr<torch::nn::Module>& module, const PrepareModelOptions& options) {
  const bool trains = !options.evaluation_mode;
  const bool moves = options.device_placement.value_or(options_.device_placement);
  const DispatchedModels dispatched =
      module != nullptr ? internal::dispatched_within(*module) : DispatchedModels();
  if (module != nullptr && trains) {
    check_codes_are_frozen(*module);
    for (const auto& each : dispatched) check_quantized_placement(*each, state_);
  }
  if (dispatched.empty()) return step_.add_model(module, handlers_, moves, trains);
  check_placement(dispatched, state_, trains);
  // What a device map has placed stays there.
  if (moves) MoveAround(dispatched, device())(*module);
  // Before optimizers are given what the technique has in place of parameters.
  return step_.add_model(module, handlers_, /*device_placement=*/false, trains,
                         [&]() -> std::unique_ptr<Technique> {
                           return std::make_unique<DispatchTechnique>(*module, dispatched);
                         });
}

AcceleratedOptimizer Accelerator::prepare_optimizer(
    std::shared_ptr<torch::optim::Optimizer> optimizer, std::optional<bool> device_placement) {
  TORCH_CHECK_VALUE(optimizer != nullptr, "prepare: the optimizer is null");
  step_.check_before_sharding({}, {optimizer.get()});
  if (device_placement.value_or(options_.device_placement)) {
    move_optimizer_state(*optimizer, device());
  }
  return step_.add_optimizer(std::move(optimizer));
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
  return {.share = share.index,
          .num_shares = share.count,
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
  auto survivors = internal::watch_prepared(training_);
  step_.forget_prepared();
  return survivors;
}

}  // namespace accelerate
