#include "simulator/cluster/failure_dump.h"

#include <cstddef>
#include <filesystem>
#include <iostream>
#include <map>
#include <system_error>
#include <vector>

#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "accelerate/base/json_text.h"
#include "accelerate/comm/watch/operation_log.h"
#include "accelerate/comm/watch/rank_dump.h"
#include "accelerate/dumps/dump_folder.h"
#include "accelerate/platform/file_system.h"
#include "accelerate/platform/host_files.h"
#include "simulator/c10d/communicator.h"
#include "simulator/faults/deaths.h"

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

// The keys, with the bytes of their values.
absl::Status write_store(const Fabric::Store& store, const fs::path& path) {
  std::map<std::string, size_t> sizes;
  for (const auto& [key, value] : store.values) sizes[key] = value.bytes.size();
  HostFiles disk(1);
  UnsyncedFiles files(disk);
  return write_file(files, path.string(), json_text(Json(sizes), 2) + "\n");
}

// What an executed rank did last.
RankDump dump_of(const Fabric& fabric, int rank) {
  RankDump dump{.history = fabric.log(rank).snapshot(OperationLog::kCapacity), .members = {}};
  for (const GroupRecord& group : dump.history.groups) {
    const auto found = fabric.communicators().find(group.name);
    const bool is_known = found != fabric.communicators().end();
    dump.members.push_back(is_known ? found->second->ranks() : std::vector<int>());
  }
  return dump;
}

}  // namespace

FailureCause cause_of(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const c10::DistError&) {
    return FailureCause::kPeers;
  } catch (const RankKilled& death) {
    return death.is_cause() ? FailureCause::kOwn : FailureCause::kEnded;
  } catch (...) {
    return FailureCause::kOwn;
  }
}

bool is_out_of_memory(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const c10::OutOfMemoryError&) {
    return true;
  } catch (...) {
    return false;
  }
}

void write_failure(const std::string& folder, const FailedRun& failed) {
  const bool has_log = !failed.log_file.empty();
  Json json;
  json["failure"] = failed.failure;
  json["repeat_command"] = failed.repeat_command;
  for (const auto& [name, value] : failed.run) json["run"][name] = value;
  if (has_log) json["log"] = kLog;
  absl::Status written = write_run(folder, json);
  for (const int rank : failed.fabric.executed().ranks()) {
    written.Update(write_rank_dump(folder, dump_of(failed.fabric, rank)));
  }
  if (written.ok()) written = write_store(failed.fabric.store(), fs::path(folder) / kStore);
  if (written.ok() && has_log) written = copy_log(failed.log_file, fs::path(folder) / kLog);
  if (!written.ok()) std::cerr << "accelerate: no dump: " << written.message() << std::endl;
}

}  // namespace accelerate::simulator
