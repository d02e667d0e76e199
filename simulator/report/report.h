/// Writes the results of a simulated run into a folder, for people and for programs:
///
///     report.html    one page to look at, from disk, without a network
///     trace.json     the same data for ui.perfetto.dev and chrome://tracing
///     summary.json   the sums, for programs
///
/// Equal traces give equal bytes.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "simulator/trace/trace.h"

namespace accelerate::simulator {

/// The most slices in trace.json unless the caller asks for another number: about 30 MB, which
/// viewers open without delay.
inline constexpr size_t kMaxTraceSlices = 100'000;

/// Creates the folder if it does not exist, and replaces the three files of an earlier report.
/// Errors: a Status that names the path; files written before the error stay.
absl::Status write_report(const Trace& trace, const std::string& directory,
                          size_t max_trace_slices = kMaxTraceSlices);

/// Writes one self-contained HTML page: of a failed run the failure, each rank's last call and what
/// it waited for; a note if time is not modelled; key figures, timeline, memory over time,
/// communication matrix, exposed communication, collectives, operators. The page needs no network
/// and opens from disk. The reader can open a second report beside it.
///
/// Template: report.html, report.css and the scripts beside it, all in the page as written; the
/// data are embedded as JSON. A page stays below about 20 MB: of a trace with more slices or memory
/// samples than that, it shows a level of detail (level_of_detail.h) and says so.
/// Errors: those of OutputFile; the file then does not exist.
absl::Status write_html(const Trace& trace, const std::string& path);

/// Writes a trace in Chrome's trace event format, which ui.perfetto.dev and chrome://tracing open.
///
/// The file has a process per rank, a thread per stream and one for the host, flow arrows through
/// the members of each collective and from sender to receiver, and a memory counter per category.
/// A trace with more slices than about `max_slices`, or more than a quarter as many memory samples,
/// is shown with less detail (level_of_detail.h); "otherData" has both numbers of slices. Format:
/// "Trace Event Format", Google, the sections on complete, flow, counter and metadata events.
/// Units: the format's microseconds, with the nanoseconds as decimals. Errors: those of OutputFile;
/// the file then does not exist.
absl::Status write_perfetto(const Trace& trace, const std::string& path,
                            size_t max_slices = kMaxTraceSlices);

/// Writes the sums of a trace as JSON, for scripts that compare runs.
///
/// Top level: topology, seed (as text, because it has 64 bits), versions, arithmetic, program,
/// device, world_size, failure (null if the run succeeded), time_is_modelled, elapsed_ns, steps
/// (null if there are none), traffic_by_axis (the bytes sent in groups along each axis of the mesh,
/// and with "none" in other groups), stages (StageShare of step_shares.h, an object per place
/// along pp), links (LinkSummary, an object per kind), peak (the rank with the highest peak and its
/// modules' bytes by category; null if none allocated), ranks (an object per rank; "place" is its
/// place in the mesh), operators (by total time), collectives (by total time), slices,
/// dropped_slices, repeat_command, memory_capacity, executed_ranks, ranks_per_node,
/// devices_per_rank. Names are those of the structs in simulator/trace/trace.h; of steps, phases_ns
/// and shares_ns (step_shares.h) have names, critical_path is that of the median step
/// (critical_path.h; null if it is not known), and samples are those of all ranks in a step.
/// Errors: those of OutputFile; the file then does not exist.
absl::Status write_summary(const Trace& trace, const std::string& path);

}  // namespace accelerate::simulator
