/// What can be asked of an Accelerator: the arguments of its constructor and of its methods.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "accelerate/base/enums.h"
#include "accelerate/config/kwargs_handlers.h"
#include "accelerate/config/project_configuration.h"
#include "accelerate/data/data_loader_options.h"
#include "accelerate/optim/accelerated_scheduler.h"
#include "accelerate/tracking/registry.h"

namespace accelerate {

struct AcceleratorOptions {
  /// Move prepared models and their batches to the device.
  bool device_placement = true;
  /// What prepared models compute in. Absent: ACCELERATE_MIXED_PRECISION, or what an earlier
  /// Accelerator on the Runtime said, or none.
  std::optional<PrecisionType> mixed_precision = std::nullopt;
  /// Backward passes per optimizer step: 1, or what an earlier Accelerator on the Runtime set.
  /// ACCELERATE_GRADIENT_ACCUMULATION_STEPS overrides it.
  std::optional<int64_t> gradient_accumulation_steps = std::nullopt;
  /// Instead of gradient_accumulation_steps: how they accumulate as a whole. The environment does
  /// not override it.
  std::optional<GradientAccumulationPlugin> gradient_accumulation_plugin = std::nullopt;
  /// Compute on the CPU whatever there is. ACCELERATE_USE_CPU=true does the same.
  bool cpu = false;
  /// `split_batches` can be given here as well; it must not contradict the configuration's.
  std::optional<bool> split_batches = std::nullopt;
  DataLoaderConfiguration dataloader_config = {};
  /// What prepared loaders set to rank 0's state at the start of each pass.
  std::vector<RNGType> rng_types = {RNGType::kGenerator};
  /// Off: prepared schedulers advance exactly when they are told to.
  bool step_scheduler_with_optimizer = true;
  /// What a step of prepared schedulers stands for; the peer knows the first one only.
  SchedulerUnit scheduler_unit = SchedulerUnit::kPerProcessBatch;
  /// Where checkpoints and logs go; project_config says more. Both may be given if they agree.
  std::optional<std::string> project_dir = std::nullopt;
  ProjectConfiguration project_config = {};
  /// At most one of each class.
  std::vector<KwargsHandler> kwargs_handlers = {};
  /// Trackers by name, "all", or the user's own: {"tensorboard", "jsonl"}. They begin with
  /// init_trackers, and keep their files in project_config.logging_dir, or else in project_dir.
  std::vector<TrackerChoice> log_with = {};
};

struct PrepareOptions {
  /// One entry per object, in order; empty: the Accelerator's own setting for all.
  std::vector<bool> device_placement = {};
};

struct PrepareModelOptions {
  std::optional<bool> device_placement = std::nullopt;
  /// The model is not trained: it is placed, but not replicated over ranks.
  bool evaluation_mode = false;
};

struct JoinOptions {
  /// Replaces the configuration's even_batches while joined. Absent: the configuration's.
  std::optional<bool> even_batches = std::nullopt;
};

/// What `Accelerator::backward` passes on to at::Tensor::backward.
struct BackwardOptions {
  /// Of the loss, where that is no scalar.
  at::Tensor gradient = {};
  /// Absent: as create_graph.
  std::optional<bool> retain_graph = std::nullopt;
  bool create_graph = false;
  /// Only these get gradients.
  std::optional<std::vector<at::Tensor>> inputs = std::nullopt;
  /// For an optimizer that steps during the backward pass (LOMO). Absent: that of its groups.
  std::optional<double> learning_rate = std::nullopt;
};

}  // namespace accelerate
