/// Writes a trace in Chrome's trace event format, which ui.perfetto.dev and chrome://tracing open.
///
/// A process per rank, a thread per stream and one for the host, flow arrows through the members of
/// each collective and from sender to receiver, and a memory counter per category.
/// Format: "Trace Event Format", Google, the sections on complete, flow, counter and metadata
/// events. Units: the format's microseconds, with the nanoseconds as decimals.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "simulator/trace/trace.h"

namespace accelerate::simulator {

/// Equal traces give equal bytes.
/// Errors: those of OutputFile; the file is then not there.
absl::Status write_perfetto(const Trace& trace, const std::string& path);

}  // namespace accelerate::simulator
