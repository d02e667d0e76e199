#include "accelerate/dumps/dump_folder.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <utility>

#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "accelerate/base/json_text.h"
#include "accelerate/base/status.h"

namespace accelerate {
namespace {

namespace fs = std::filesystem;

constexpr char kRanks[] = "ranks";  // as in rank_dump_file()
constexpr char kRun[] = "run.json";
constexpr char kFlightRecorder[] = "flight_recorder";

absl::Status write_file_at(const fs::path& path, const std::string& bytes) {
  std::error_code problem;
  fs::create_directories(path.parent_path(), problem);
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << bytes << std::flush;
  return file ? absl::OkStatus()
              : absl::PermissionDeniedError(absl::StrCat("cannot write ", path.string()));
}

// The number at the end of a file's name, before ".json"; -1 without one.
int rank_of(const fs::path& path) {
  const std::string name =
      path.extension() == ".json" ? path.stem().string() : path.filename().string();
  size_t first = name.size();
  while (first > 0 && std::isdigit(static_cast<unsigned char>(name[first - 1])) != 0) --first;
  int rank = -1;
  return absl::SimpleAtoi(name.substr(first), &rank) ? rank : -1;
}

// What an earlier failure has left, perhaps of ranks that this job does not have.
void remove_rank_files(const fs::path& folder) {
  std::error_code problem;
  std::vector<fs::path> old;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, problem)) {
    if (entry.is_regular_file(problem) && rank_of(entry.path()) >= 0) old.push_back(entry.path());
  }
  for (const fs::path& path : old) fs::remove(path, problem);
}

absl::StatusOr<std::string> bytes_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (file || !bytes.empty()) return bytes;
  return absl::PermissionDeniedError(absl::StrCat(path.string(), ": cannot be read"));
}

// Whether a file of that name may have what NCCL or a whole job said.
bool is_named_as_log(const fs::path& path) {
  const std::string extension = path.extension().string();
  return absl::StrContains(path.filename().string(), "nccl") || extension == ".log" ||
         extension == ".out" || extension == ".err" || extension == ".txt";
}

absl::StatusOr<RankDump> read_dump(const fs::path& path, const std::string& bytes, int rank) {
  try {
    const bool is_ours =
        absl::StartsWith(bytes, "{") && internal::parse_ordered_json(bytes).contains("history");
    if (is_ours) return parse_rank_dump(bytes);
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(path.string(), ": ", error.what()));
  }
  return in_file(path.string(), read_flight_recorder(bytes, rank));
}

// A group of the job: all ranks that have a dump of it, or that its members say.
struct Group {
  std::vector<int> ranks;
  bool has_open_calls = false;
};

}  // namespace

absl::Status write_rank_dump(const std::string& folder, const RankDump& dump) {
  const std::string problem = write_rank_dump_file(folder, dump);
  if (!problem.empty()) return absl::PermissionDeniedError(problem);
  return write_file_at(fs::path(folder) / kFlightRecorder / absl::StrCat(dump.history.rank),
                       flight_recorder_pickle(dump));
}

absl::Status write_run(const std::string& folder, const nlohmann::ordered_json& run) {
  remove_rank_files(fs::path(folder) / kRanks);
  remove_rank_files(fs::path(folder) / kFlightRecorder);
  return write_file_at(fs::path(folder) / kRun, json_text(run, 2) + "\n");
}

absl::Status write_dumps(const std::string& folder, const nlohmann::ordered_json& run,
                         const std::vector<RankDump>& dumps) {
  absl::Status status = write_run(folder, run);
  for (const RankDump& dump : dumps) status.Update(write_rank_dump(folder, dump));
  return status;
}

absl::StatusOr<std::vector<RankDump>> read_dumps(const std::string& folder) {
  std::error_code problem;
  const fs::path ours = fs::path(folder) / kRanks;
  const fs::path from = fs::is_directory(ours, problem) ? ours : fs::path(folder);
  std::vector<RankDump> dumps;
  std::string logs;  // NCCL's
  for (const fs::directory_entry& entry : fs::directory_iterator(from, problem)) {
    const int rank = rank_of(entry.path());
    const bool may_be_log = is_named_as_log(entry.path());
    if (!entry.is_regular_file(problem) || (rank < 0 && !may_be_log)) continue;
    ACCELERATE_ASSIGN_OR_RETURN(const std::string bytes, bytes_of(entry.path()));
    if (may_be_log && is_nccl_log(bytes)) {
      absl::StrAppend(&logs, bytes, "\n");
    } else if (rank >= 0) {
      ACCELERATE_ASSIGN_OR_RETURN(RankDump dump, read_dump(entry.path(), bytes, rank));
      dumps.push_back(std::move(dump));
    }
  }
  for (RankDump& dump : read_nccl_log(logs)) dumps.push_back(std::move(dump));
  if (dumps.empty()) {
    return absl::NotFoundError(
        absl::StrCat(folder, " has no dumps: files whose names end with a rank, or logs of NCCL"));
  }
  const auto by_rank = [](const RankDump& dump) { return dump.history.rank; };
  std::ranges::sort(dumps, {}, by_rank);
  const auto twice = std::ranges::adjacent_find(dumps, {}, by_rank);
  if (twice != dumps.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat(folder, " has several dumps of rank ", twice->history.rank,
                     ": leave those of one failure there, all of one kind"));
  }
  return dumps;
}

std::string run_lines(const std::string& folder) {
  std::ifstream file(fs::path(folder) / kRun);
  if (!file) return "";
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const auto run = internal::parse_ordered_json(text, /*allow_exceptions=*/false);
  if (!run.is_object()) return "";
  std::string lines;
  for (const auto& [key, words] :
       {std::pair("failure", "the run: "), std::pair("repeat_command", "repeat with: ")}) {
    const auto value = run.find(key);
    if (value == run.end() || !value->is_string()) continue;
    std::string said = value->get<std::string>();
    said.resize(std::min(said.size(), said.find('\n')));
    absl::StrAppend(&lines, words, said, "\n");
  }
  const auto log = run.find("log");
  if (log != run.end() && log->is_string()) {
    absl::StrAppend(&lines, "its log, which --replay follows: ", folder, "/",
                    log->get<std::string>(), "\n");
  }
  return lines;
}

std::string dumps_report(const std::vector<RankDump>& dumps) {
  std::vector<OperationHistory> histories;
  std::vector<int> all;
  for (const RankDump& dump : dumps) {
    histories.push_back(dump.history);
    all.push_back(dump.history.rank);
  }
  std::map<std::string, Group> groups;
  for (const RankDump& dump : dumps) {
    for (size_t i = 0; i < dump.history.groups.size(); ++i) {
      Group& group = groups[dump.history.groups[i].name];
      if (group.ranks.empty()) group.ranks = dump.members[i].empty() ? all : dump.members[i];
    }
    for (const OperationRecord& record : dump.history.operations) {
      const bool is_open = record.state == OperationState::kWaiting ||
                           record.state == OperationState::kIssued ||
                           record.state == OperationState::kFailed;
      if (is_open) groups[dump.history.groups[record.group].name].has_open_calls = true;
    }
  }
  std::string text;
  for (const auto& [name, group] : groups) {
    const OperationFailure failure{.reason = "", .group = name, .ranks = group.ranks};
    // A rank of which nothing is known stands for none of the group's.
    const std::string behind = ranks_behind(failure, histories, /*asking=*/-1);
    if (behind.empty() && !group.has_open_calls) continue;
    const std::string reason = behind.empty()
                                   ? absl::StrCat("group \"", name, "\": calls that had not ended")
                                   : absl::StrCat("group \"", name, "\"; behind: ", behind);
    absl::StrAppend(
        &text, text.empty() ? "" : "\n\n",
        operation_report({.reason = reason, .group = name, .ranks = group.ranks}, histories));
  }
  if (!text.empty()) return text;
  return absl::StrCat("the dumps of ", dumps.size(), dumps.size() == 1 ? " rank" : " ranks",
                      " tell of no call that had not ended, and of no rank that was behind");
}

}  // namespace accelerate
