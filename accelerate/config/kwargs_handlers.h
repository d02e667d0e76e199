/// Options that reach through the Accelerator to the parts it builds.
/// to_kwargs and to_dict (fields.h) give each of them as JSON.
/// Mirrors: HF Accelerate's KwargsHandler classes, fields and defaults. An Accelerator takes at
/// most one of each, and a TensorParallelPlan for each class of models.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "accelerate/base/enums.h"
#include "accelerate/base/fields.h"
#include "accelerate/base/libtorch_fwd.h"
#include "accelerate/config/pipeline_plan.h"
#include "accelerate/config/tensor_parallel_plan.h"
#include "accelerate/platform/environment.h"

namespace accelerate {

class Profiler;

/// How PowerSGD compresses a bucket of gradients into two thin matrices.
/// Source: Vogels, Karimireddy, Jaggi, "PowerSGD", NeurIPS 2019. The fields are those of
/// torch.distributed.algorithms.ddp_comm_hooks' PowerSGDState.
struct PowerSgdOptions {
  int64_t matrix_approximation_rank = 1;
  /// First passes without compression. At least 2 with error feedback or warm start.
  int64_t start_powerSGD_iter = 1000;
  /// A matrix is compressed only where that makes it smaller by more than this factor.
  double min_compression_rate = 2;
  /// The part of the gradients that the compression lost is added to the next step's gradients.
  bool use_error_feedback = true;
  /// The matrices of the last step are where the next one starts.
  bool warm_start = true;
  /// Added to a column's norm before it is divided by. 0: none.
  double orthogonalization_epsilon = 0;
  int64_t random_seed = 0;
  /// Rank 0 logs what was saved every so many backward passes.
  int64_t compression_stats_logging_frequency = 10'000;
  /// Matrices of one shape are multiplied as one batch.
  bool batch_tensors_with_same_shape = false;
};
ACCELERATE_STRUCT(PowerSgdOptions, matrix_approximation_rank, start_powerSGD_iter,
                  min_compression_rate, use_error_feedback, warm_start, orthogonalization_epsilon,
                  random_seed, compression_stats_logging_frequency, batch_tensors_with_same_shape)

/// How models are sharded over ranks. Differs: FullyShardedDataParallelPlugin has other names.
struct ShardedDataParallelKwargs {
  /// Whether the next group of parameters is gathered while one is used.
  bool prefetch = true;
  /// Parameters form a group up to the module that makes it at least this large.
  int64_t group_bytes = int64_t{1} << 20;
};
ACCELERATE_STRUCT(ShardedDataParallelKwargs, prefetch, group_bytes)
/// How DistributedDataParallel works.
struct DistributedDataParallelKwargs {
  /// The dimension that batches are spread along. Only 0 is possible here.
  int64_t dim = 0;
  /// Rank 0's buffers are copied to all ranks once a step, before its first forward pass.
  bool broadcast_buffers = true;
  /// Size of a gradient bucket, in MiB. The first one is at most 1 MiB, so that it starts early.
  double bucket_cap_mb = 25;
  /// Look for parameters that a forward pass did not use, and count their gradient as zero.
  bool find_unused_parameters = false;
  /// Has no effect, as in HF Accelerate, where it is deprecated.
  bool check_reduction = false;
  /// Gradients are views into the buckets, which saves a copy and their memory.
  bool gradient_as_bucket_view = false;
  /// The graph is the same in every backward pass.
  bool static_graph = false;
  /// How a bucket is changed on its way to other ranks, and the dtype it is cast to before.
  DDPCommunicationHookType comm_hook = DDPCommunicationHookType::kNo;
  DDPCommunicationHookType comm_wrapper = DDPCommunicationHookType::kNo;
  /// For the two PowerSGD hooks.
  PowerSgdOptions comm_state_option = {};
};
ACCELERATE_STRUCT(DistributedDataParallelKwargs, dim, broadcast_buffers, bucket_cap_mb,
                  find_unused_parameters, check_reduction, gradient_as_bucket_view, static_graph,
                  comm_hook, comm_wrapper, comm_state_option)

/// Whether and how the forward pass computes in the job's precision.
struct AutocastKwargs {
  bool enabled = true;
  /// Whether a weight is cast once per scope, not at each use. Absent: as LibTorch has it, yes.
  std::optional<bool> cache_enabled = std::nullopt;
};
ACCELERATE_STRUCT(AutocastKwargs, enabled, cache_enabled)

/// How the loss is scaled in fp16, where small gradients would be lost.
struct GradScalerKwargs {
  double init_scale = 65536.0;
  /// The scale's factor, above 1, after `growth_interval` steps without infinite gradients.
  double growth_factor = 2.0;
  /// And after a step with one. Less than 1.
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;
  bool enabled = true;
};
ACCELERATE_STRUCT(GradScalerKwargs, init_scale, growth_factor, backoff_factor, growth_interval,
                  enabled)

/// How the job's process group is made. The first Accelerator on a Runtime decides.
struct InitProcessGroupKwargs {
  /// Name of a backend; empty lets the Runtime choose.
  std::string backend = {};
  /// How ranks find each other: only what the launcher has decided, see check_init_method.
  std::optional<std::string> init_method = std::nullopt;
  /// How long an operation waits for its peers. Absent: see effective_timeout.
  std::optional<absl::Duration> timeout = std::nullopt;

  /// `timeout` or, where that is absent, what is usual for the backend: ten minutes for "nccl",
  /// thirty for any other and for the Runtime's own choice.
  absl::Duration effective_timeout() const;
};
ACCELERATE_STRUCT(InitProcessGroupKwargs, backend, init_method, timeout)

/// Accepts an absent init_method, "env://", and "tcp://HOST:PORT" where MASTER_ADDR and MASTER_PORT
/// have the same address or are unset. Local.
/// Errors: c10::ValueError for anything else, naming what is accepted.
void check_init_method(const InitProcessGroupKwargs& kwargs, const Environment& environment);

/// Which steps are recorded: none of the first `skip_first`; then cycles of `wait` steps that are
/// not recorded, `warmup` steps in which the profiler is made ready, and `active` steps that are
/// recorded; `repeat` cycles, or until the end if that is 0.
struct ProfileSchedule {
  int64_t skip_first = 0;
  int64_t wait = 0;
  int64_t warmup = 0;
  /// At least 1; there is no default.
  int64_t active = 0;
  int64_t repeat = 0;
};

/// The events that `Accelerator::profile` records, its steps, and where traces go. Mirrors:
/// torch.profiler.schedule. Differs: `activities` holds each name once, in no order.
struct ProfileKwargs {
  /// "cpu", "cuda", "xpu", "mtia", "hpu". Empty: the CPU and the rank's device.
  /// "hpu" is any device that LibTorch knows as PrivateUse1.
  std::set<std::string> activities = {};
  /// Absent: everything is recorded.
  std::optional<ProfileSchedule> schedule_option = std::nullopt;
  /// Called at the end of each recording, with the profiler that holds it.
  std::function<void(Profiler&)> on_trace_ready = nullptr;
  /// Shapes and types of what operators are given.
  bool record_shapes = false;
  /// Whether memory that operators allocate and release is recorded.
  bool profile_memory = false;
  /// The user's C++ functions that led to an operator.
  bool with_stack = false;
  /// Floating-point operations of matrix products, convolutions, additions and multiplications.
  bool with_flops = false;
  /// The prepared model's module whose parameters an operator uses.
  bool with_modules = false;
  /// Each rank writes its last recording there as "profile_{rank}.json", in Chrome's trace format.
  std::optional<std::string> output_trace_dir = std::nullopt;
};

/// Errors: c10::ValueError naming the activity that does not exist or the number that is not
///         allowed.
void check(const ProfileKwargs& kwargs);

ACCELERATE_STRUCT(ProfileSchedule, skip_first, wait, warmup, active, repeat)

constexpr const char* name_of_class(const ProfileKwargs& /*kwargs*/) { return "ProfileKwargs"; }

/// Functions cannot be compared: of `on_trace_ready` visitors learn whether there is one.
template <typename Visitor>
void visit_fields(const ProfileKwargs& kwargs, Visitor&& visit) {
  visit("activities", kwargs.activities);
  visit("schedule_option", kwargs.schedule_option);
  visit("on_trace_ready", static_cast<bool>(kwargs.on_trace_ready));
  visit("record_shapes", kwargs.record_shapes);
  visit("profile_memory", kwargs.profile_memory);
  visit("with_stack", kwargs.with_stack);
  visit("with_flops", kwargs.with_flops);
  visit("with_modules", kwargs.with_modules);
  visit("output_trace_dir", kwargs.output_trace_dir);
}

// ---- How 8-bit floating point is computed.
//
// The options of the three ways that HF Accelerate knows, and which of them a job uses.
// An absent field takes the value of its environment variable, or the default named beside it; the
// variables are called ACCELERATE_FP8 and what the field's comment ends with. Giving one of these
// without mixed_precision fp8 is an error, and so is giving two of them.
// Errors: c10::ValueError naming the field, or the variable and its text.
// Mirrors: also accelerator.py, fp8_backend.

/// Scales that follow the largest values of past steps (delayed scaling), or blocks of 32 values
/// with a scale each.
struct TERecipeKwargs {
  /// fp8 in evaluation too: false. _USE_AUTOCAST_DURING_EVAL
  std::optional<bool> use_autocast_during_eval = std::nullopt;
  /// The scale leaves room for values 2^margin times as large: 0. _MARGIN
  std::optional<int64_t> margin = std::nullopt;
  /// Steps between two computations of the scale: 1. _INTERVAL
  std::optional<int64_t> interval = std::nullopt;
  /// "E4M3" in both directions, or "HYBRID", which has E5M2 for gradients: HYBRID. _FORMAT
  std::optional<std::string> fp8_format = std::nullopt;
  /// How many steps are looked back: 1024. _AMAX_HISTORY_LEN
  std::optional<int64_t> amax_history_len = std::nullopt;
  /// "max" of the history, or "most_recent": most_recent. _AMAX_COMPUTE_ALGO
  std::optional<std::string> amax_compute_algo = std::nullopt;
  /// Which of the products forward, gradient of the input and gradient of the weight stay in high
  /// precision: none. _OVERRIDE_FPROP, _OVERRIDE_DGRAD, _OVERRIDE_WGRAD
  std::optional<std::array<bool, 3>> override_linear_precision = std::nullopt;
  /// A power of two as scale for each 32 values: false. _USE_MXFP8_BLOCK_SCALING
  std::optional<bool> use_mxfp8_block_scaling = std::nullopt;
  /// The first and the last Linear layer stay in high precision. Only here, without a variable.
  bool keep_first_and_last = false;
};
ACCELERATE_STRUCT(TERecipeKwargs, use_autocast_during_eval, margin, interval, fp8_format,
                  amax_history_len, amax_compute_algo, override_linear_precision,
                  use_mxfp8_block_scaling, keep_first_and_last)

/// Gradients (O1) and the optimizer's moments (O2) in few bits.
struct MSAMPRecipeKwargs {
  /// "O1" or "O2": O2. _OPT_LEVEL
  std::optional<std::string> opt_level = std::nullopt;
};
ACCELERATE_STRUCT(MSAMPRecipeKwargs, opt_level)

/// torchao's class of this name, with the fields that have a meaning here.
struct Float8LinearConfig {
  /// "tensorwise": one scale per tensor. torchao's "rowwise" and "rowwise_with_gw_hp" are errors.
  std::string recipe = "tensorwise";
  bool pad_inner_dim = false;
  bool enable_fsdp_float8_all_gather = false;
};
ACCELERATE_STRUCT(Float8LinearConfig, recipe, pad_inner_dim, enable_fsdp_float8_all_gather)

/// One scale per tensor, computed from the tensor itself.
struct AORecipeKwargs {
  /// Where it is given, it has the values of the two flags below, which must not say otherwise, and
  /// the environment is not read.
  std::optional<Float8LinearConfig> config = std::nullopt;
  /// Whether a Linear layer, by its name, is computed in fp8. Absent: all but the first and the
  /// last one.
  std::function<bool(const torch::nn::Module& module, const std::string& name)> module_filter_func =
      {};
  /// Whether dimensions that are not a multiple of 16 are padded where the filter chooses such a
  /// layer: true.
  /// _PAD_INNER_DIM
  std::optional<bool> pad_inner_dim = std::nullopt;
  /// Shards are cast before they are gathered: true. _ENABLE_FSDP_FLOAT8_ALL_GATHER
  std::optional<bool> enable_fsdp_float8_all_gather = std::nullopt;
};
ACCELERATE_STRUCT(AORecipeKwargs, config, module_filter_func, pad_inner_dim,
                  enable_fsdp_float8_all_gather)

/// Deprecated: TERecipeKwargs or MSAMPRecipeKwargs, as `backend` says, with the fields of both.
struct FP8RecipeKwargs {
  /// "TE" or "MSAMP". Absent: ACCELERATE_FP8_BACKEND, else MSAMP where opt_level is given, else TE.
  std::optional<std::string> backend = std::nullopt;
  std::optional<std::string> opt_level = std::nullopt;
  std::optional<bool> use_autocast_during_eval = std::nullopt;
  std::optional<int64_t> margin = std::nullopt;
  std::optional<int64_t> interval = std::nullopt;
  std::optional<std::string> fp8_format = std::nullopt;
  std::optional<int64_t> amax_history_len = std::nullopt;
  std::optional<std::string> amax_compute_algo = std::nullopt;
  std::optional<std::array<bool, 3>> override_linear_precision = std::nullopt;
  std::optional<bool> use_mxfp8_block_scaling = std::nullopt;
};
ACCELERATE_STRUCT(FP8RecipeKwargs, backend, opt_level, use_autocast_during_eval, margin, interval,
                  fp8_format, amax_history_len, amax_compute_algo, override_linear_precision,
                  use_mxfp8_block_scaling)

/// The handlers that the user gave.
struct Fp8Handlers {
  std::optional<TERecipeKwargs> te;
  std::optional<MSAMPRecipeKwargs> msamp;
  std::optional<AORecipeKwargs> ao;
  std::optional<FP8RecipeKwargs> recipe;

  bool any() const { return te || msamp || ao || recipe; }
};

/// How a job computes in fp8: one of the three, all its fields given and right.
struct Fp8Plan {
  std::variant<TERecipeKwargs, MSAMPRecipeKwargs, AORecipeKwargs> recipe;

  FP8BackendType backend() const;
};

/// With every absent field filled in, texts in their usual case, and values checked.
TERecipeKwargs resolve(TERecipeKwargs kwargs, const Environment& environment);
MSAMPRecipeKwargs resolve(MSAMPRecipeKwargs kwargs, const Environment& environment);
AORecipeKwargs resolve(AORecipeKwargs kwargs, const Environment& environment);

/// The handler's, else that of ACCELERATE_FP8_BACKEND, else the first of AO, TE and MSAMP that this
/// build has: AO, for it has all.
Fp8Plan resolve_fp8(const Fp8Handlers& handlers, const Environment& environment);

/// Refuses handlers in a job that computes in another precision.
void check_fp8_handlers(const Fp8Handlers& handlers, PrecisionType precision);

// ---- Options that are not handlers.

/// How gradients accumulate over micro-steps.
struct GradientAccumulationPlugin {
  /// Backward passes per optimizer step.
  std::optional<int64_t> num_steps = std::nullopt;
  /// Schedulers advance in micro-steps that do not step the optimizer as well. Absent: they do not.
  std::optional<bool> adjust_scheduler = std::nullopt;
  /// The last batch of a loader always synchronises.
  bool sync_with_dataloader = true;
  /// Gradients are synchronised in every micro-step: more traffic, less memory where they are kept
  /// in shards.
  bool sync_each_batch = false;
  /// Where a loader ends within a window, gradients are divided by the micro-steps that there were,
  /// not by num_steps. HF Accelerate has no such option: there the last window weighs less.
  bool normalize_partial_window = false;
};
ACCELERATE_STRUCT(GradientAccumulationPlugin, num_steps, adjust_scheduler, sync_with_dataloader,
                  sync_each_batch, normalize_partial_window)

/// Where a project's checkpoints and logs go, and how many checkpoints are kept.
/// Differs: a checkpoint that is loaded restores `iteration`.
struct ProjectConfiguration {
  /// Holds `checkpoints/`. Absent: checkpoints need a folder of their own each time.
  std::optional<std::string> project_dir = std::nullopt;
  /// For trackers. Absent: project_dir.
  std::optional<std::string> logging_dir = std::nullopt;
  /// save_state() saves to project_dir/checkpoints/checkpoint_{iteration}, and load_state() finds
  /// the latest complete one there.
  bool automatic_checkpoint_naming = false;
  /// How many automatically named checkpoints are kept; absent: all. The oldest are removed once a
  /// new one is complete, never that one nor the one with the best SaveStateOptions::metric.
  std::optional<int64_t> total_limit = std::nullopt;
  /// Number of the next checkpoint.
  int64_t iteration = 0;
  /// Nodes share no disk: the first rank of each saves what otherwise rank 0 alone does.
  bool save_on_each_node = false;

  /// project_dir, and logging_dir where there is none.
  void set_directories(std::optional<std::string> directory = std::nullopt) {
    project_dir = directory;
    if (!logging_dir) logging_dir = project_dir;
  }
};
ACCELERATE_STRUCT(ProjectConfiguration, project_dir, logging_dir, automatic_checkpoint_naming,
                  total_limit, iteration, save_on_each_node)

using KwargsHandler = std::variant<DistributedDataParallelKwargs, InitProcessGroupKwargs,
                                   ProfileKwargs, AutocastKwargs, GradScalerKwargs, TERecipeKwargs,
                                   MSAMPRecipeKwargs, AORecipeKwargs, FP8RecipeKwargs,
                                   ShardedDataParallelKwargs, TensorParallelPlan, PipelinePlan>;

/// The handlers by class, defaults where none was given.
struct KwargsHandlers {
  DistributedDataParallelKwargs ddp;
  ShardedDataParallelKwargs sharded;
  std::optional<InitProcessGroupKwargs> init;
  ProfileKwargs profile;
  AutocastKwargs autocast;
  GradScalerKwargs scaler;
  Fp8Handlers fp8;
  /// The plan for all models, if one was given, and the plans for models of a class.
  std::optional<TensorParallelPlan> tensor_parallel;
  TensorParallelPlans tensor_parallel_by_class;
  PipelinePlan pipeline;

  /// Errors: c10::ValueError naming the class of handlers, or of models, that was given twice.
  static KwargsHandlers from_list(const std::vector<KwargsHandler>& list);
};

}  // namespace accelerate
