/// A time as most formats of trackers have it.
///
///   event.set_wall_time(unix_seconds(when));
///
/// Units: seconds since 1970-01-01 00:00 UTC, with the fraction that a double keeps. Threads: any.
#pragma once

#include "absl/time/time.h"

namespace accelerate::trackers {

inline double unix_seconds(absl::Time time) {
  return absl::ToDoubleSeconds(time - absl::UnixEpoch());
}

}  // namespace accelerate::trackers
