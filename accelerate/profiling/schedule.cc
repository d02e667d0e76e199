#include "accelerate/profiling/schedule.h"

namespace accelerate {

ProfileAction profile_action(const std::optional<ProfileSchedule>& schedule, int64_t step) {
  if (!schedule) return ProfileAction::kRecord;
  if (step < schedule->skip_first) return ProfileAction::kNone;
  const int64_t length = schedule->wait + schedule->warmup + schedule->active;
  const int64_t cycle = (step - schedule->skip_first) / length;
  const int64_t position = (step - schedule->skip_first) % length;
  if (schedule->repeat > 0 && cycle >= schedule->repeat) return ProfileAction::kNone;
  if (position < schedule->wait) return ProfileAction::kNone;
  if (position < schedule->wait + schedule->warmup) return ProfileAction::kWarmup;
  return position + 1 < length ? ProfileAction::kRecord : ProfileAction::kRecordAndSave;
}

}  // namespace accelerate
