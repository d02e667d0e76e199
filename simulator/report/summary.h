/// Writes the sums of a trace as JSON, for scripts that compare runs.
///
/// Top level: topology, seed (as text: it has 64 bits), device, world_size, elapsed_ns, steps (null
/// if there are none), ranks (an object per rank), operators (by total time), slices,
/// dropped_slices. Names are those of the structs in simulator/trace/trace.h.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "simulator/trace/trace.h"

namespace accelerate::simulator {

/// Equal traces give equal bytes.
/// Errors: those of OutputFile; the file is then not there.
absl::Status write_summary(const Trace& trace, const std::string& path);

}  // namespace accelerate::simulator
