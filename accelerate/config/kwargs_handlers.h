/// Options that reach through the Accelerator to the parts it builds.
///
/// to_kwargs and to_dict (fields.h) give each of them as JSON.
/// Mirrors: the peer's KwargsHandler classes, fields and defaults. An Accelerator takes at most one
/// of each.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "accelerate/config/profile_kwargs.h"
#include "accelerate/runtime/environment.h"

namespace accelerate {

/// How DistributedDataParallel works.
struct DistributedDataParallelKwargs {
  /// Rank 0's buffers are copied to all ranks before each synchronising forward pass.
  bool broadcast_buffers = true;
  /// Size of a gradient bucket, in MiB. The first one is at most 1 MiB, so that it starts early.
  double bucket_cap_mb = 25;
  /// Look for parameters that a forward pass did not use, and count their gradient as zero.
  bool find_unused_parameters = false;
  /// Gradients are views into the buckets, which saves a copy and their memory.
  bool gradient_as_bucket_view = false;

  bool operator==(const DistributedDataParallelKwargs&) const = default;
};

template <typename Visitor>
void visit_fields(const DistributedDataParallelKwargs& kwargs, Visitor&& visit) {
  visit("broadcast_buffers", kwargs.broadcast_buffers);
  visit("bucket_cap_mb", kwargs.bucket_cap_mb);
  visit("find_unused_parameters", kwargs.find_unused_parameters);
  visit("gradient_as_bucket_view", kwargs.gradient_as_bucket_view);
}

/// How the job's process group is made. The first Accelerator on a Runtime decides.
struct InitProcessGroupKwargs {
  /// Name of a backend; empty lets the Runtime choose.
  std::string backend = {};
  /// How ranks find each other. Whoever started the program has decided that already, so this can
  /// only repeat it: see check_init_method.
  std::optional<std::string> init_method = std::nullopt;
  /// How long an operation waits for its peers. Absent: see effective_timeout.
  std::optional<absl::Duration> timeout = std::nullopt;

  /// `timeout` or, where that is absent, what is usual for the backend: ten minutes for "nccl",
  /// thirty for any other and for the Runtime's own choice.
  absl::Duration effective_timeout() const;

  bool operator==(const InitProcessGroupKwargs&) const = default;
};

template <typename Visitor>
void visit_fields(const InitProcessGroupKwargs& kwargs, Visitor&& visit) {
  visit("backend", kwargs.backend);
  visit("init_method", kwargs.init_method);
  visit("timeout", kwargs.timeout);
}

/// Accepts an absent init_method, "env://", and "tcp://HOST:PORT" where MASTER_ADDR and MASTER_PORT
/// say the same or nothing. Local.
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

  bool operator==(const GradientAccumulationPlugin&) const = default;
};

template <typename Visitor>
void visit_fields(const GradientAccumulationPlugin& plugin, Visitor&& visit) {
  visit("num_steps", plugin.num_steps);
  visit("adjust_scheduler", plugin.adjust_scheduler);
  visit("sync_with_dataloader", plugin.sync_with_dataloader);
  visit("sync_each_batch", plugin.sync_each_batch);
}

using KwargsHandler =
    std::variant<DistributedDataParallelKwargs, InitProcessGroupKwargs, ProfileKwargs>;

/// The handlers by class, defaults where none was given.
struct KwargsHandlers {
  DistributedDataParallelKwargs ddp;
  std::optional<InitProcessGroupKwargs> init;
  ProfileKwargs profile;

  /// Errors: c10::ValueError naming the class that was given twice.
  static KwargsHandlers from_list(const std::vector<KwargsHandler>& list);
};

}  // namespace accelerate
