/// Where a rule of the plan of faults fired, in the trace of a run.
///
/// Threads: values.
#pragma once

#include <cstdint>

namespace accelerate::simulator {

struct FaultStrike {
  int32_t rank = 0;   ///< that came to the place
  uint32_t rule = 0;  ///< its text, as a number of Trace::names
  int64_t at_ns = 0;
};

}  // namespace accelerate::simulator
