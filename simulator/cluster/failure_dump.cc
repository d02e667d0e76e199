#include "simulator/cluster/failure_dump.h"

#include <filesystem>
#include <iostream>
#include <system_error>
#include <utility>

#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "accelerate/dumps/dump_folder.h"
#include "accelerate/platform/file_system.h"
#include "accelerate/platform/host_files.h"
#include "simulator/c10d/communicator.h"

namespace accelerate::simulator {
namespace {

namespace fs = std::filesystem;

using Json = nlohmann::ordered_json;

constexpr char kLog[] = "run.log";
constexpr char kStore[] = "store.json";

absl::Status copy_log(const std::string& log_file, const fs::path& copy) {
  std::error_code unknown;
  if (fs::equivalent(log_file, copy, unknown)) return absl::OkStatus();
  std::error_code problem;
  fs::copy_file(log_file, copy, fs::copy_options::overwrite_existing, problem);
  if (!problem) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("cannot write ", copy.string(), ": ", problem.message()));
}

absl::Status write_store(const std::map<std::string, int64_t>& store, const fs::path& path) {
  Json json = Json::object();
  for (const auto& [key, bytes] : store) json[key] = bytes;
  HostFiles disk(1);
  UnsyncedFiles files(disk);
  // A key may be any bytes.
  return write_file(
      files, path.string(),
      json.dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n");
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

std::map<std::string, int64_t> sizes_of(const Fabric::Store& store) {
  std::map<std::string, int64_t> sizes;
  for (const auto& [key, value] : store.values) {
    sizes[key] = static_cast<int64_t>(value.bytes.size());
  }
  return sizes;
}

void write_failure(const std::string& folder, const FailedRun& failed) {
  const bool has_log = !failed.log_file.empty();
  Json json;
  json["failure"] = failed.failure;
  json["repeat_command"] = failed.repeat_command;
  for (const auto& [name, value] : failed.run) json["run"][name] = value;
  if (has_log) json["log"] = kLog;
  absl::Status written = write_dumps(folder, json, failed.dumps);
  if (written.ok()) written = write_store(failed.store, fs::path(folder) / kStore);
  if (written.ok() && has_log) written = copy_log(failed.log_file, fs::path(folder) / kLog);
  if (!written.ok()) std::cerr << "accelerate: no dump: " << written.message() << std::endl;
}

}  // namespace accelerate::simulator
