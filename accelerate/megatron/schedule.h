/// Megatron-LM's rates of learning and of weight decay, in closed form.
///
/// Steps count samples of all ranks, so an iteration is a global batch. The learning rate rises in
/// a line over the warmup and then falls to min_lr; weight decay goes from its start to its end
/// over the whole training.
///
/// Errors:  c10::ValueError naming the argument.
/// Threads: pure functions.
/// Source:  Megatron-LM, megatron/core/optimizer_param_scheduler.py, OptimizerParamScheduler, and
///          megatron/training: get_optimizer_param_scheduler.
#pragma once

#include <cstdint>

#include <nlohmann/json_fwd.hpp>

#include "accelerate/base/enum_text.h"

namespace accelerate {

enum class MegatronDecay { kConstant, kLinear, kCosine, kInverseSquareRoot };

ACCELERATE_ENUM_TEXTS(MegatronDecay, "lr_decay_style", "constant", "linear", "cosine",
                      "inverse-square-root")

struct MegatronSchedule {
  double init_lr = 0;
  double max_lr = 0;
  double min_lr = 0;
  /// Not always whole: a share of the decay.
  double lr_warmup_steps = 0;
  int64_t lr_decay_steps = 0;
  MegatronDecay lr_decay_style = MegatronDecay::kLinear;
  double start_wd = 0;
  double end_wd = 0;
  int64_t wd_incr_steps = 0;
  MegatronDecay wd_incr_style = MegatronDecay::kConstant;

  bool operator==(const MegatronSchedule&) const = default;
};

/// The schedule of a plug-in's arguments, which have "train_iters" and "global_batch_size", or
/// "train_samples"; "lr" and "weight_decay".
/// Errors: also for a length that is given in two ways, or not at all; a warmup that is not shorter
///         than the decay; rates below 0 or that do not go from the smaller to the larger one; a
///         constant weight decay with a start or an end, and another one without.
MegatronSchedule megatron_schedule(const nlohmann::ordered_json& args);

/// After so many samples, from 0 on.
double megatron_lr(const MegatronSchedule& schedule, int64_t step);
double megatron_weight_decay(const MegatronSchedule& schedule, int64_t step);

}  // namespace accelerate
