/// How long the stages of a pipeline compute in a training step, and how long they wait.
///
/// Units: nanoseconds of virtual time.
/// Threads: pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "simulator/trace/trace.h"

namespace accelerate::simulator {

/// A place along the pipeline.
struct StageShare {
  int stage = 0;
  int ranks = 0;  ///< that have it, and whose slices were recorded
  /// The mean over these ranks of the time with a kernel or a copy on one of the rank's devices,
  /// and of the rest of the step.
  int64_t busy_ns = 0;
  int64_t bubble_ns = 0;

  bool operator==(const StageShare&) const = default;
};

/// Those of the median step, by place along the axis "pp"; empty where the program's mesh has no
/// such axis, and as step_shares.h says.
std::vector<StageShare> stage_shares(const Trace& trace);

}  // namespace accelerate::simulator
