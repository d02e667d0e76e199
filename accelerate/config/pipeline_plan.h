/// How the ranks along pp divide a model into stages, and in which order they compute.
///
///   Accelerator accelerator({.parallelism_config = ParallelismConfig({.pp_size = 2}),
///                            .kwargs_handlers = {PipelinePlan{.split_points = {"blocks.3"}}}});
///
/// Without it stages have as many parts each as can be, and ranks compute in the order of 1F1B. It
/// has no effect where pp has one rank. A model says its parts (config/model_parts.h), or is a
/// Sequential, whose parts are its modules.
/// Errors:  a model is refused when it is prepared; see parallel/pipeline/model_stages.h.
/// Threads: values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/base/fields.h"
#include "accelerate/pipeline/schedule.h"
#include "accelerate/platform/environment.h"

namespace accelerate {

/// What stages are to have the same of, as far as that can be.
enum class StageBalance {
  /// Parts; the first stages have more.
  kCount,
  /// Bytes of parameters.
  kBytes,
};

struct PipelinePlan {
  /// The schedule of windows that do not name another one, and the rank of each stage.
  pipeline::ScheduleKind schedule = pipeline::ScheduleKind::k1f1b;
  /// More than 1 for the schedules that have several.
  int stages_per_rank = 1;
  /// The parts at which all stages but the first begin, in the model's order, one less than there
  /// are stages; empty: as `balance` or `weights` say.
  std::vector<std::string> split_points = {};
  StageBalance balance = StageBalance::kCount;
  /// What each part weighs in place of that, as its time in nanoseconds, which measure_parts
  /// (inference/measure_parts.h) gives.
  std::vector<int64_t> weights = {};
  /// How many a window has that does not say a number (step/train_batch.h).
  int micro_batches = 1;
};
ACCELERATE_STRUCT(PipelinePlan, schedule, stages_per_rank, split_points, balance, weights,
                  micro_batches)

/// What the variables of `accelerate launch` say of a plan: PARALLELISM_CONFIG and what a field's
/// name is in capitals.
struct PipelineVariables {
  std::optional<pipeline::ScheduleKind> pp_schedule = std::nullopt;
  std::optional<int64_t> pp_stages_per_rank = std::nullopt;
  std::optional<std::vector<std::string>> pp_split_points = std::nullopt;
  std::optional<int64_t> pp_micro_batches = std::nullopt;
};
ACCELERATE_FIELDS(PipelineVariables, pp_schedule, pp_stages_per_rank, pp_split_points,
                  pp_micro_batches)

/// The plan of a program that gives none, by these variables; defaults without them.
/// Errors: c10::ValueError naming the variable and its text.
PipelinePlan pipeline_plan_of(const Environment& environment);

}  // namespace accelerate
