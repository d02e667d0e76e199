#include "simulator/cluster/failure_dump.h"

#include <filesystem>
#include <iostream>
#include <system_error>
#include <utility>

#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "accelerate/dumps/dump_folder.h"
#include "simulator/c10d/communicator.h"

namespace accelerate::simulator {
namespace {

namespace fs = std::filesystem;

constexpr char kLog[] = "run.log";

absl::Status copy_log(const std::string& log_file, const fs::path& copy) {
  std::error_code unknown;
  if (fs::equivalent(log_file, copy, unknown)) return absl::OkStatus();
  std::error_code problem;
  fs::copy_file(log_file, copy, fs::copy_options::overwrite_existing, problem);
  if (!problem) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("cannot write ", copy.string(), ": ", problem.message()));
}

}  // namespace

std::vector<RankDump> dumps_of(const Fabric& fabric) {
  std::vector<RankDump> dumps;
  for (const int rank : fabric.executed().ranks()) {
    RankDump dump{.history = fabric.log(rank).snapshot(), .members = {}};
    for (const GroupRecord& group : dump.history.groups) {
      const auto found = fabric.communicators().find(group.name);
      const bool is_known = found != fabric.communicators().end();
      dump.members.push_back(is_known ? found->second->ranks() : std::vector<int>());
    }
    dumps.push_back(std::move(dump));
  }
  return dumps;
}

void write_failure(const std::string& folder, const std::string& failure,
                   const std::string& repeat_command, const RunLog::Header& run,
                   const std::vector<RankDump>& dumps, const std::string& log_file) {
  nlohmann::ordered_json json;
  json["failure"] = failure;
  json["repeat_command"] = repeat_command;
  for (const auto& [name, value] : run) json["run"][name] = value;
  if (!log_file.empty()) json["log"] = kLog;
  absl::Status written = write_dumps(folder, json, dumps);
  if (written.ok() && !log_file.empty()) written = copy_log(log_file, fs::path(folder) / kLog);
  if (!written.ok()) std::cerr << "accelerate: no dump: " << written.message() << std::endl;
}

}  // namespace accelerate::simulator
