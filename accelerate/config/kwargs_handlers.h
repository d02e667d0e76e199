/// Options that reach through the Accelerator to the parts it builds.
///
/// to_kwargs and to_dict (fields.h) give each of them as JSON.
/// Mirrors: HF Accelerate's KwargsHandler classes, fields and defaults. An Accelerator takes at
/// most one of each.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "accelerate/base/enums.h"
#include "accelerate/base/fields.h"
#include "accelerate/config/fp8_kwargs.h"
#include "accelerate/config/profile_kwargs.h"
#include "accelerate/platform/environment.h"

namespace accelerate {

/// How PowerSGD compresses a bucket of gradients into two thin matrices.
/// Source: Vogels, Karimireddy, Jaggi, "PowerSGD", NeurIPS 2019. The fields are those of
/// torch.distributed.algorithms.ddp_comm_hooks' PowerSGDState.
struct PowerSgdOptions {
  int64_t matrix_approximation_rank = 1;
  /// Backward passes that are reduced without compression at first. At least 2 with error feedback
  /// or warm start.
  int64_t start_powerSGD_iter = 1000;
  /// A matrix is compressed only where that makes it smaller by more than this factor.
  double min_compression_rate = 2;
  /// What was lost is added to the next step's gradients.
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

  bool operator==(const PowerSgdOptions&) const = default;
};
ACCELERATE_FIELDS(PowerSgdOptions, matrix_approximation_rank, start_powerSGD_iter,
                  min_compression_rate, use_error_feedback, warm_start, orthogonalization_epsilon,
                  random_seed, compression_stats_logging_frequency, batch_tensors_with_same_shape)

/// How DistributedDataParallel works.
struct DistributedDataParallelKwargs {
  /// The dimension that batches are spread along. Only 0 is possible here.
  int64_t dim = 0;
  /// Rank 0's buffers are copied to all ranks before each synchronising forward pass.
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
  /// What becomes of a bucket on its way to the other ranks, and what it is cast to before that.
  DDPCommunicationHookType comm_hook = DDPCommunicationHookType::kNo;
  DDPCommunicationHookType comm_wrapper = DDPCommunicationHookType::kNo;
  /// For the two PowerSGD hooks.
  PowerSgdOptions comm_state_option = {};

  bool operator==(const DistributedDataParallelKwargs&) const = default;
};
ACCELERATE_FIELDS(DistributedDataParallelKwargs, dim, broadcast_buffers, bucket_cap_mb,
                  find_unused_parameters, check_reduction, gradient_as_bucket_view, static_graph,
                  comm_hook, comm_wrapper, comm_state_option)

/// Whether and how the forward pass computes in the job's precision.
struct AutocastKwargs {
  bool enabled = true;
  /// Whether a weight is cast once per scope, not at each use. Absent: as LibTorch has it, yes.
  std::optional<bool> cache_enabled = std::nullopt;

  bool operator==(const AutocastKwargs&) const = default;
};
ACCELERATE_FIELDS(AutocastKwargs, enabled, cache_enabled)

/// How the loss is scaled in fp16, where small gradients would be lost.
struct GradScalerKwargs {
  double init_scale = 65536.0;
  /// What the scale is multiplied by after `growth_interval` steps in a row without an infinite
  /// gradient. More than 1.
  double growth_factor = 2.0;
  /// And after a step with one. Less than 1.
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;
  bool enabled = true;

  bool operator==(const GradScalerKwargs&) const = default;
};
ACCELERATE_FIELDS(GradScalerKwargs, init_scale, growth_factor, backoff_factor, growth_interval,
                  enabled)

/// How the job's process group is made. The first Accelerator on a Runtime decides.
struct InitProcessGroupKwargs {
  /// Name of a backend; empty lets the Runtime choose.
  std::string backend = {};
  /// How ranks find each other. The launcher has decided that already, so this can only repeat
  /// it: see check_init_method.
  std::optional<std::string> init_method = std::nullopt;
  /// How long an operation waits for its peers. Absent: see effective_timeout.
  std::optional<absl::Duration> timeout = std::nullopt;

  /// `timeout` or, where that is absent, what is usual for the backend: ten minutes for "nccl",
  /// thirty for any other and for the Runtime's own choice.
  absl::Duration effective_timeout() const;

  bool operator==(const InitProcessGroupKwargs&) const = default;
};
ACCELERATE_FIELDS(InitProcessGroupKwargs, backend, init_method, timeout)

/// Accepts an absent init_method, "env://", and "tcp://HOST:PORT" where MASTER_ADDR and MASTER_PORT
/// have the same address or are unset. Local.
/// Errors: c10::ValueError for anything else, naming what is accepted.
void check_init_method(const InitProcessGroupKwargs& kwargs, const Environment& environment);

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

  bool operator==(const GradientAccumulationPlugin&) const = default;
};
ACCELERATE_FIELDS(GradientAccumulationPlugin, num_steps, adjust_scheduler, sync_with_dataloader,
                  sync_each_batch, normalize_partial_window)

using KwargsHandler = std::variant<DistributedDataParallelKwargs, InitProcessGroupKwargs,
                                   ProfileKwargs, AutocastKwargs, GradScalerKwargs, TERecipeKwargs,
                                   MSAMPRecipeKwargs, AORecipeKwargs, FP8RecipeKwargs>;

/// The handlers by class, defaults where none was given.
struct KwargsHandlers {
  DistributedDataParallelKwargs ddp;
  std::optional<InitProcessGroupKwargs> init;
  ProfileKwargs profile;
  AutocastKwargs autocast;
  GradScalerKwargs scaler;
  Fp8Handlers fp8;

  /// Errors: c10::ValueError naming the class that was given twice.
  static KwargsHandlers from_list(const std::vector<KwargsHandler>& list);
};

}  // namespace accelerate
