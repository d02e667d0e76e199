/// The training loop of a grad_sync case, worked out by hand: the independent side of the decision
/// about adjust_scheduler. A linear regression, its gradients and rates in closed form.
///
/// Threads: pure functions.
#pragma once

#include <nlohmann/json.hpp>

namespace accelerate::golden {

/// Rewrites what follows from the learning rates in the `out` of a case, as if its scheduler moved
/// at every micro-step. When ranks synchronise, and what backward divides by, is taken from it.
/// Errors: CaseError for an `in` that is not of the family.
void train_with_adjusted_scheduler(const nlohmann::json& in, nlohmann::json& out);

/// Micro-steps per optimizer step. Errors: as above.
int64_t accumulation_steps(const nlohmann::json& in);

/// Batches of each rank in an epoch. Errors: as above.
int64_t batches_per_epoch(const nlohmann::json& in);

}  // namespace accelerate::golden
