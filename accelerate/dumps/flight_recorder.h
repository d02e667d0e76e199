/// PyTorch's Flight Recorder: what a rank writes when a collective times out, a pickle or JSON of
/// its last calls. Reading executes nothing: the pickle is read as the files of torch.save are.
///
/// What a recorder does not have, a log made of it has not either: reduce operations, roots, splits
/// of an all-to-all. Read are dumps of PyTorch 2.6 to 2.15 (versions 2.4 and 2.10 of the format),
/// with the traps of its hooks: a group that is filed under no name, and completed calls that are
/// still "scheduled" but retired.
///
/// Threads: pure functions.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "accelerate/comm/watch/rank_dump.h"

namespace accelerate {

/// A dump of that rank, as a pickle or as JSON. The numbers of calls begin at 0, as in all reports.
/// Errors: DataLoss or Unimplemented for bytes that are neither; InvalidArgument that names what
///         a dump lacks.
absl::StatusOr<RankDump> read_flight_recorder(absl::string_view bytes, int rank);

/// The pickle of a dump, which PyTorch's analyser (torch.distributed.flight_recorder.fr_trace)
/// reads; its file is named PREFIX and the rank. A group's calls are counted from 1.
std::string flight_recorder_pickle(const RankDump& dump);

}  // namespace accelerate
