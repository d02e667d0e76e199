/// Schedules of common practice in language modelling: a linear warm-up from 0, then a decay.
///
/// Each is a LambdaLR; the factors are of the base rates. Steps are the scheduler's own: where
/// ranks advance a prepared scheduler once per process, count the batches of all ranks
/// (accelerate/docs/schedulers.md).
/// Errors:  c10::ValueError for negative numbers of steps.
/// Mirrors: transformers optimization.py, the functions of these names.
#pragma once

#include <cstdint>
#include <optional>

#include "accelerate/optim/schedulers/lambda.h"

namespace accelerate::optim {

LambdaLR get_constant_schedule(torch::optim::Optimizer& optimizer);

LambdaLR get_constant_schedule_with_warmup(torch::optim::Optimizer& optimizer,
                                           int64_t num_warmup_steps);

/// Down to 0 at `num_training_steps`.
LambdaLR get_linear_schedule_with_warmup(torch::optim::Optimizer& optimizer,
                                         int64_t num_warmup_steps, int64_t num_training_steps);

/// Along a cosine of so many whole cycles; a half ends at 0.
LambdaLR get_cosine_schedule_with_warmup(torch::optim::Optimizer& optimizer,
                                         int64_t num_warmup_steps, int64_t num_training_steps,
                                         double num_cycles = 0.5);

/// Down to 0 along half a cosine, `num_cycles` times.
LambdaLR get_cosine_with_hard_restarts_schedule_with_warmup(torch::optim::Optimizer& optimizer,
                                                            int64_t num_warmup_steps,
                                                            int64_t num_training_steps,
                                                            int64_t num_cycles = 1);

/// Down to the rate `lr_end` at `num_training_steps`. The factor is that of the optimizer's default
/// rate. Errors: c10::ValueError unless that is larger than lr_end.
LambdaLR get_polynomial_decay_schedule_with_warmup(torch::optim::Optimizer& optimizer,
                                                   int64_t num_warmup_steps,
                                                   int64_t num_training_steps, double lr_end = 1e-7,
                                                   double power = 1.0);

/// As 1 / sqrt(step). `timescale` is how fast: num_warmup_steps, or 10,000 without a warm-up.
LambdaLR get_inverse_sqrt_schedule(torch::optim::Optimizer& optimizer, int64_t num_warmup_steps,
                                   std::optional<int64_t> timescale = std::nullopt);

}  // namespace accelerate::optim
