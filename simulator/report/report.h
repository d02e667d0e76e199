/// Writes what people and programs want to know of a simulated run into a folder:
///
///     report.html    one page to look at, from disk, without a network
///     trace.json     the same for ui.perfetto.dev and chrome://tracing
///     summary.json   the sums, for programs
#pragma once

#include <string>

#include "absl/status/status.h"
#include "simulator/trace/trace.h"

namespace accelerate::simulator {

/// Makes the folder if it is not there, and replaces the three files of an earlier report.
/// Equal traces give equal bytes.
/// Errors: a Status that names the path; files written before it stay.
absl::Status write_report(const Trace& trace, const std::string& directory);

}  // namespace accelerate::simulator
