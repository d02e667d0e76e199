/// Recordings in Chrome's trace event format, which chrome://tracing and ui.perfetto.dev open.
///
/// Categories and arguments are those of Kineto, which other tools read: "cpu_op" with "External
/// id", "Sequence number", "Input Dims", ...; "user_annotation", "cpu_instant_event", "kernel".
/// Beside them stand "Module Hierarchy", "Call stack" and "flops".
/// Format: "Trace Event Format", Google. Units: microseconds, with the nanoseconds as decimals.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/strings/string_view.h"
#include "accelerate/platform/topology.h"
#include "accelerate/profiling/event.h"

namespace accelerate {

/// What Kineto does not record of an operator.
struct TraceNote {
  std::string module;
  std::vector<std::string> stack;
};
/// By the event's number.
using TraceNotes = std::unordered_map<uint64_t, TraceNote>;

/// A trace of events, whose process is the rank. Equal events give equal text.
std::string chrome_trace(const std::vector<ProfileEvent>& events, const Topology& topology);

/// Kineto's trace with the rank for the process's name, the job under "distributedInfo", and notes.
std::string label_kineto_trace(absl::string_view text, const Topology& topology,
                               const TraceNotes& notes);

/// Whether a trace's text is complete.
bool is_whole_trace(absl::string_view text);

}  // namespace accelerate
