/// What a rank did last, as a file in the folder of a failure's dumps.
///
/// Threads: pure functions, but for files.
#pragma once

#include <string>
#include <vector>

#include "accelerate/comm/watch/operation_log.h"

namespace accelerate {

/// What one rank did last.
struct RankDump {
  OperationHistory history;
  /// The global ranks of each of the history's groups; empty: not known, all ranks of the job.
  std::vector<std::vector<int>> members;
};

/// The rank's file below the folder, "ranks/00003.json".
std::string rank_dump_file(int rank);

/// JSON with the fields of RankDump.
std::string rank_dump_text(const RankDump& dump);
/// Errors: std::exception that says what is wrong with the text.
RankDump parse_rank_dump(const std::string& text);

/// Writes that file, and makes the folder. Returns what went wrong; empty if nothing did.
std::string write_rank_dump_file(const std::string& folder, const RankDump& dump);

}  // namespace accelerate
