/// Whether a schedule can run, in which order its actions become possible, and what ranks keep.
///
/// A forward pass needs the forward pass of the stage before; a backward pass, or the first half of
/// one, needs the forward pass of its stage and the backward pass of the stage behind; the second
/// half needs the first one.
/// Errors:  absl::InvalidArgument in one line, naming ranks and actions (action_text).
/// Threads: pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "accelerate/pipeline/schedule.h"

namespace accelerate::pipeline {

/// Checks that each rank has a stage and each stage is on one rank; that each stage has the forward
/// pass of each micro-batch once, and either no backward passes at all or one for each, whole or as
/// both halves; and that ranks never wait for each other in a circle.
///
/// That suffices for messages as messages.h orders them, over one channel from each rank to each
/// other one, also where a message moves only when both ends have come to it: sends wait in their
/// channel and not their rank, and a channel has its messages in the order in which its receiver
/// takes them.
absl::Status check_schedule(const Schedule& schedule);

/// All actions, each behind the actions that it needs and behind those before it on its rank.
/// Errors: those of check_schedule.
absl::StatusOr<std::vector<ActionPlace>> causal_order(const Schedule& schedule);

/// Whether a rank has backward passes.
bool has_backward_passes(const Schedule& schedule);

/// By rank, the most that it keeps for backward passes at a time. A forward pass adds what its
/// stage has in `stage_sizes`, as bytes of activations, or 1 where that is empty; the backward
/// pass, or its second half, removes that. A schedule without backward passes keeps nothing. The
/// schedule is one that check_schedule passes; sizes are one a stage.
std::vector<int64_t> most_in_flight(const Schedule& schedule,
                                    absl::Span<const int64_t> stage_sizes = {});

/// Checks that no rank keeps more than `limit` at a time, in the unit of the sizes.
/// Errors: also one that names the rank, the limit and the action that goes beyond it.
absl::Status check_in_flight(const Schedule& schedule, int64_t limit,
                             absl::Span<const int64_t> stage_sizes = {});

}  // namespace accelerate::pipeline
