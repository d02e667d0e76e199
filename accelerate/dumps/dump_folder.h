/// Dumps of a job's ranks in a folder, and what they say about its end.
///
///     failure/run.json            what failed, and how to repeat it
///     failure/run.log             a simulated run's log, if it wrote one
///     failure/store.json          the keys of a simulated run's store, with their values' bytes
///     failure/ranks/00003.json    what rank 3 did last
///     failure/flight_recorder/3   the same for PyTorch's analyser
///
/// Files of Flight Recorders may lie in a folder of their own: the digits at the end of a file's
/// name are the rank. So may files that NCCL wrote its log to, or the output of a whole job with it
/// (flight_recorder.h); their names have "nccl", or end with .log, .out, .err or .txt.
///
/// Threads: any, one at a time for a folder.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "accelerate/dumps/flight_recorder.h"

namespace accelerate {

/// Writes one rank's files; makes the folder. Errors: those of the file system.
absl::Status write_rank_dump(const std::string& folder, const RankDump& dump);

/// Writes run.json, and removes an earlier failure's files of ranks. Errors: as above.
absl::Status write_run(const std::string& folder, const nlohmann::ordered_json& run);

/// Writes run.json and all ranks' files, in the place of an earlier failure's.
absl::Status write_dumps(const std::string& folder, const nlohmann::ordered_json& run,
                         const std::vector<RankDump>& dumps);

/// Ascending by rank. Errors: NotFound if the folder has no dumps; InvalidArgument if it has more
///         than one of a rank; what is wrong with a file, with its path.
absl::StatusOr<std::vector<RankDump>> read_dumps(const std::string& folder);

/// What run.json of the folder says, a line each: what failed, the command that repeats the run,
/// and where its log is. Empty without such a file, as beside the dumps of real ranks.
std::string run_lines(const std::string& folder);

/// What a live failure's report would be, group by group, of those in which ranks are behind, their
/// calls differ, or a call has not ended: who is behind, by how many calls, the first call that
/// differs, which rank has no dump, and the last calls.
std::string dumps_report(const std::vector<RankDump>& dumps);

}  // namespace accelerate
