/// Writes a trace as one self-contained HTML page: key figures, timeline, memory over time,
/// communication matrix, exposed communication, operators. It needs no network and opens from disk.
///
/// Template: report.html, report.css and the scripts beside it, all in the page as written; the
/// data stand in it as JSON. A page stays below about 20 MB: of a trace with more slices or memory
/// samples than that, it shows a level of detail (level_of_detail.h) and says so.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "simulator/trace/trace.h"

namespace accelerate::simulator {

/// Equal traces give equal bytes.
/// Errors: those of OutputFile; the file is then not there.
absl::Status write_html(const Trace& trace, const std::string& path);

}  // namespace accelerate::simulator
