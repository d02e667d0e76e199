/// What a collective's members send each other, for the report.
///
/// Threads: one at a time.
#pragma once

#include <vector>

#include "simulator/c10d/collectives.h"
#include "simulator/c10d/operation.h"
#include "simulator/trace/recorder.h"

namespace accelerate::simulator {

/// Records the bytes that each member sends: to or from the root what is gathered or scattered, all
/// else to the next member, as on a ring. A broadcast ends, and a reduction begins, where the ring
/// comes round to the root. `axis` is the recorder's number.
void record_traffic(Recorder& recorder, const Operation& operation, const Members& members,
                    const std::vector<int>& ranks, int axis);

}  // namespace accelerate::simulator
