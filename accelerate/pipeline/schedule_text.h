/// Schedules as texts: drawings for people, and tables that are read back.
///
/// Threads: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "accelerate/pipeline/costs.h"
#include "accelerate/pipeline/schedule.h"

namespace accelerate::pipeline {

struct ScheduleTextOptions {
  /// A line with more is cut there, where a `>` ends it.
  int columns = 200;
  /// What each stage keeps of a micro-batch for its backward pass. Lines say how many bytes each
  /// rank keeps at most; empty: they do not.
  std::vector<int64_t> stage_bytes = {};
};

/// The schedule along the time, a line for each rank, below a line about all of it:
///
///   2 ranks, 2 stages, 3 micro-batches: bubble 25.0 %
///   rank 0 (bubble 25.0 %, 2 in flight): F0 F1 ..... B0    F2 B1    .. B2
///   rank 1 (bubble 25.0 %, 1 in flight): .. F0 B0    F1 B1    F2 B2    .....
///
/// Dots are time in which the rank waits. An action is F (forward), B (backward), I or W (the
/// backward pass's halves for input and weights), and a micro-batch; the stage stands before the
/// letter unless each rank has the one stage of its number. The shortest action is as wide as the
/// longest name. What a rank has in flight are forward passes whose results it keeps for backward
/// passes, at most at a time. `times` are those of schedule_times for this schedule.
std::string schedule_text(const Schedule& schedule, const ScheduleTimes& times,
                          const ScheduleTextOptions& options = {});

/// A line for each rank, of its actions as action_text writes them with blanks between: what
/// parse_schedule reads.
std::string schedule_table(const Schedule& schedule);

/// Reads a schedule that a user has written, and checks it (check.h).
///
/// A table has a line for each rank, of actions with blanks or commas between; empty lines and
/// lines that begin with `#` do not count, and empty cells neither, so tables of PyTorch's pipeline
/// schedules (its "compute_only" format) are read, too. Without a stage, as in "F0", an action is
/// for the stage with the rank's number. A document has the lines in a list, as texts or as lists
/// of actions:
///
///   ranks:
///     - F0 F1 B0 B1
///     - [1F0, 1B0, 1F1, 1B1]
///
/// `name` is what errors call it: a path that ends with .json, .yaml or .yml has a document, any
/// other one a table. There are as many stages and micro-batches as the highest numbers say.
/// Errors: InvalidArgument in one line, with the name and the place.
absl::StatusOr<Schedule> parse_schedule(absl::string_view text, absl::string_view name);

}  // namespace accelerate::pipeline
