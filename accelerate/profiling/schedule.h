/// What a profiler does in a step.
///
/// Mirrors: torch.profiler.schedule.
#pragma once

#include <cstdint>
#include <optional>

#include "accelerate/config/profile_kwargs.h"

namespace accelerate {

enum class ProfileAction {
  kNone,
  kWarmup,  ///< getting ready, so that the first recorded step does not pay for it
  kRecord,
  kRecordAndSave,  ///< the last recorded step of a cycle
};

/// `step` counts from 0. Without a schedule every step is kRecord: the recording ends with the
/// scope. The schedule has been checked.
ProfileAction profile_action(const std::optional<ProfileSchedule>& schedule, int64_t step);

}  // namespace accelerate
