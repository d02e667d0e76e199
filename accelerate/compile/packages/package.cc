#include "accelerate/compile/packages/package.h"

#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <array>
#include <cctype>
#include <fstream>
#include <utility>

#include <nlohmann/json.hpp>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "accelerate/base/checksum.h"
#include "accelerate/base/status.h"
#include "accelerate/platform/file_system.h"
#include "accelerate/platform/host_files.h"

namespace accelerate {
namespace {

using Json = nlohmann::ordered_json;
using Kind = PackageSource::Kind;

constexpr int kFormat = 2;

// Code of a package that was compiled for another one crashes: functions of headers that LibTorch
// has as well are LibTorch's.
constexpr int kCxx11Abi = _GLIBCXX_USE_CXX11_ABI;
constexpr char kRegion[] = "region";
constexpr char kPackage[] = "package.json";
constexpr std::array<std::string_view, 4> kCode = {"forward.so", "forward.json", "backward.so",
                                                   "backward.json"};

std::string folder_of(const std::string& cache, const std::string& libtorch,
                      const std::string& id) {
  return join_path(join_path(cache, libtorch), id);
}

// ---- Whose files they are.

// That the path is a file, or a folder, which this user or root has and nobody else writes.
absl::Status check_owner(const std::string& path, bool is_folder, int64_t user) {
  struct stat info = {};
  if (lstat(path.c_str(), &info) != 0) {
    return absl::DataLossError(absl::StrCat(path, " is missing"));
  }
  if (is_folder ? !S_ISDIR(info.st_mode) : !S_ISREG(info.st_mode)) {
    return absl::PermissionDeniedError(
        absl::StrCat(path, " is not a ", is_folder ? "folder" : "file", " of the cache"));
  }
  if (info.st_uid != 0 && info.st_uid != user) {
    return absl::PermissionDeniedError(
        absl::StrCat(path, " belongs to user ", info.st_uid, ", and this is user ", user));
  }
  if ((info.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return absl::PermissionDeniedError(absl::StrCat(path, " can be written by other users"));
  }
  return absl::OkStatus();
}

// ---- package.json.

absl::StatusOr<std::vector<PackageSource>> sources_of(const Json& json,
                                                      const std::map<std::string, Kind>& kinds) {
  std::vector<PackageSource> sources;
  for (const Json& each : json) {
    if (each.is_null()) {
      sources.emplace_back();
      continue;
    }
    const auto kind = kinds.find(each.at("from").get<std::string>());
    const int index = each.at("index").get<int>();
    if (kind == kinds.end() || index < 0) {
      return invalid("a tensor from ", each.dump());
    }
    sources.push_back({kind->second, index});
  }
  return sources;
}

absl::Status check_machine(const Json& json, const RegionRequest& request, const std::string& id,
                           const RegionMachine& machine) {
  const auto differs = [](const std::string& what, const std::string& made,
                          const std::string& here) {
    return absl::FailedPreconditionError(
        absl::StrCat("it is for ", what, " ", made, ", not ", here));
  };
  const auto text = [&json](const char* name) { return json.at(name).get<std::string>(); };
  if (text("region") != id) return differs("region", text("region"), id);
  if (text("libtorch") != request.libtorch) {
    return differs("LibTorch", text("libtorch"), request.libtorch);
  }
  if (const int made = json.at("cxx11_abi").get<int>(); made != kCxx11Abi) {
    return differs("the C++11 ABI", absl::StrCat(made), absl::StrCat(kCxx11Abi));
  }
  if (text("machine") != machine.name) return differs("a machine", text("machine"), machine.name);
  for (const Json& feature : json.at("features")) {
    if (machine.features.contains(feature.get<std::string>())) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "it has instructions of ", feature.get<std::string>(), ", which this CPU lacks"));
  }
  return absl::OkStatus();
}

absl::Status check_files(const Json& files, const std::string& folder, int64_t user) {
  HostFiles disk(1);
  for (const auto& [name, expected] : files.items()) {
    if (!absl::c_linear_search(kCode, name)) {
      return invalid("it names the file \"", name, "\"");
    }
    const std::string path = join_path(folder, name);
    ACCELERATE_RETURN_IF_ERROR(check_owner(path, /*is_folder=*/false, user));
    ACCELERATE_ASSIGN_OR_RETURN(const std::string bytes, read_file(disk, path));
    const int64_t size = expected.at("bytes").get<int64_t>();
    if (static_cast<int64_t>(bytes.size()) != size) {
      return absl::DataLossError(
          absl::StrCat(name, " has ", bytes.size(), " bytes instead of ", size));
    }
    if (sha256(bytes) != expected.at("sha256").get<std::string>()) {
      return absl::DataLossError(absl::StrCat(name, " is not what was written"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<RegionPackage> package_of(const Json& json, const std::string& folder) {
  RegionPackage package{.folder = folder};
  const Json& forward = json.at("forward");
  package.inputs = forward.at("inputs").get<std::vector<int>>();
  const std::map<std::string, Kind> of_forward = {{"result", Kind::kResult},
                                                  {"input", Kind::kInput}};
  const std::map<std::string, Kind> of_backward = {
      {"result", Kind::kResult}, {"saved", Kind::kSaved}, {"grad", Kind::kGrad}};
  ACCELERATE_ASSIGN_OR_RETURN(package.outputs, sources_of(forward.at("outputs"), of_forward));
  ACCELERATE_ASSIGN_OR_RETURN(package.saved, sources_of(forward.at("saved"), of_forward));
  package.has_backward = json.contains("backward");
  if (!package.has_backward) return package;
  ACCELERATE_ASSIGN_OR_RETURN(package.gradients,
                              sources_of(json["backward"].at("gradients"), of_backward));
  return package;
}

absl::StatusOr<RegionPackage> checked_package(const std::string& folder,
                                              const RegionRequest& request, const std::string& id,
                                              const RegionMachine& machine) {
  ACCELERATE_RETURN_IF_ERROR(check_owner(folder, /*is_folder=*/true, machine.user));
  const std::string path = join_path(folder, kPackage);
  ACCELERATE_RETURN_IF_ERROR(check_owner(path, /*is_folder=*/false, machine.user));
  HostFiles disk(1);
  ACCELERATE_ASSIGN_OR_RETURN(const std::string text, read_file(disk, path));
  try {
    const Json json = Json::parse(text);
    if (json.at("format") != kFormat) {
      return absl::FailedPreconditionError(absl::StrCat(
          "package.json has format ", json["format"].dump(), ", and ", kFormat, " is known"));
    }
    ACCELERATE_RETURN_IF_ERROR(check_machine(json, request, id, machine));
    const Json& files = json.at("files");
    if (!files.contains("forward.so") ||
        files.contains("backward.so") != json.contains("backward")) {
      return absl::InvalidArgumentError("package.json has no code for a half");
    }
    ACCELERATE_RETURN_IF_ERROR(check_files(files, folder, machine.user));
    // What the loader would take besides.
    for (const std::string name : {"forward.json", "backward.json"}) {
      ACCELERATE_ASSIGN_OR_RETURN(const bool is_there, exists(disk, join_path(folder, name)));
      if (is_there && !files.contains(name)) {
        return absl::PermissionDeniedError(absl::StrCat(name, " is not one of its files"));
      }
    }
    return package_of(json, folder);
  } catch (const Json::exception& error) {
    return invalid("package.json cannot be read: ", error.what());
  }
}

absl::StatusOr<std::vector<std::string>> folders_in(FileSystem& disk, const std::string& folder) {
  const absl::StatusOr<std::vector<std::string>> names = disk.list(folder);
  if (absl::IsNotFound(names.status())) return std::vector<std::string>();
  return names;
}

bool is_release(const std::string& name) {
  return !name.empty() && name.find_first_not_of("0123456789.") == std::string::npos &&
         std::isdigit(static_cast<unsigned char>(name[0])) != 0;
}

// Whether the folder has a package in the form that this version reads, be it right or not.
bool has_package(FileSystem& disk, const std::string& folder) {
  const absl::StatusOr<std::string> text = read_file(disk, join_path(folder, kPackage));
  if (!text.ok()) return false;
  const Json json = Json::parse(*text, /*cb=*/nullptr, /*allow_exceptions=*/false);
  return json.is_object() && json.contains("format") && json["format"] == kFormat;
}

// A folder of a region, perhaps without its text, where the write of that was cut off.
struct Entry {
  std::string libtorch;
  std::string id;
  std::string folder;
};

absl::StatusOr<std::vector<Entry>> entries_of(FileSystem& disk, const std::string& cache) {
  std::vector<Entry> entries;
  ACCELERATE_ASSIGN_OR_RETURN(const auto releases, folders_in(disk, cache));
  for (const std::string& release : releases) {
    if (!is_release(release)) continue;
    ACCELERATE_ASSIGN_OR_RETURN(const auto ids, folders_in(disk, join_path(cache, release)));
    for (const std::string& id : ids) {
      const bool is_id = id.size() == 64 && id.find_first_not_of("0123456789abcdef") == id.npos;
      if (is_id) entries.push_back({release, id, folder_of(cache, release, id)});
    }
  }
  return entries;
}

}  // namespace

absl::StatusOr<std::string> region_cache(
    const std::function<std::string(std::string_view)>& variable) {
  const std::string own = variable(env::kCompileCache);
  if (!own.empty()) return own;
  std::string caches = variable("XDG_CACHE_HOME");
  if (caches.empty()) {
    const std::string home = variable("HOME");
    if (home.empty()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "there is no place for packages of regions: set ", env::kCompileCache, " or HOME"));
    }
    caches = join_path(home, ".cache");
  }
  return join_path(join_path(caches, "accelerate-cpp"), "regions");
}

std::string region_file(const RegionRequest& request) {
  Json head;
  head["libtorch"] = request.libtorch;
  head["cxx11_abi"] = kCxx11Abi;
  head["mode"] = request.mode;
  head["options"] = Json::parse(request.options);
  return absl::StrCat(head.dump(), "\n", request.text);
}

std::string region_id(const RegionRequest& request) { return sha256(region_file(request)); }

absl::Status write_region(const std::string& cache, const RegionRequest& request) {
  HostFiles disk(1);
  const std::string folder = folder_of(cache, request.libtorch, region_id(request));
  const std::string path = join_path(folder, kRegion);
  ACCELERATE_ASSIGN_OR_RETURN(const bool is_there, exists(disk, path));
  if (is_there) return absl::OkStatus();
  UnsyncedFiles files(disk);
  return write_file(files, path, region_file(request));
}

RegionMachine RegionMachine::current() {
  RegionMachine machine;
  machine.user = geteuid();
  utsname name = {};
  if (uname(&name) == 0) machine.name = name.machine;
  std::ifstream lines("/proc/cpuinfo");
  std::string line;
  while (std::getline(lines, line)) {
    if (!absl::StartsWith(line, "flags") && !absl::StartsWith(line, "Features")) continue;
    const std::pair<std::string, std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 1));
    for (const absl::string_view word : absl::StrSplit(parts.second, ' ', absl::SkipEmpty())) {
      machine.features.emplace(word);
    }
    break;
  }
  return machine;
}

absl::StatusOr<RegionPackage> find_package(const std::string& cache, const RegionRequest& request,
                                           const RegionMachine& machine) {
  const std::string id = region_id(request);
  const std::string folder = folder_of(cache, request.libtorch, id);
  HostFiles disk(1);
  ACCELERATE_ASSIGN_OR_RETURN(const bool is_there, exists(disk, join_path(folder, kPackage)));
  if (!is_there) {
    return absl::NotFoundError(absl::StrCat("there is no package for it in ", cache));
  }
  absl::StatusOr<RegionPackage> package = checked_package(folder, request, id, machine);
  if (package.ok()) return package;
  return absl::Status(
      package.status().code(),
      absl::StrCat("the package ", folder, " is not loaded: ", package.status().message(),
                   "; remove that folder, and `accelerate compile` makes it anew"));
}

absl::StatusOr<std::vector<CachedRegion>> list_regions(const std::string& cache) {
  HostFiles disk(1);
  ACCELERATE_ASSIGN_OR_RETURN(const std::vector<Entry> entries, entries_of(disk, cache));
  std::vector<CachedRegion> regions;
  for (const Entry& entry : entries) {
    const std::string path = join_path(entry.folder, kRegion);
    if (!exists(disk, path).value_or(true)) continue;
    ACCELERATE_ASSIGN_OR_RETURN(const std::string text, read_file(disk, path));
    CachedRegion& region = regions.emplace_back();
    region.libtorch = entry.libtorch;
    region.id = entry.id;
    for (const absl::string_view line : absl::StrSplit(text, '\n')) {
      region.operators += absl::StartsWith(line, "{\"op\":") ? 1 : 0;
      region.has_backward |= absl::StartsWith(line, "{\"gradients\":");
    }
    if (!has_package(disk, entry.folder)) continue;
    for (const std::string_view name : kCode) {
      const absl::StatusOr<FileInfo> info = disk.info(join_path(entry.folder, std::string(name)));
      if (info.ok()) region.bytes += info->size;
    }
  }
  return regions;
}

absl::StatusOr<int64_t> clear_regions(const std::string& cache) {
  HostFiles disk(1);
  ACCELERATE_ASSIGN_OR_RETURN(const std::vector<Entry> entries, entries_of(disk, cache));
  for (const Entry& entry : entries) {
    ACCELERATE_RETURN_IF_ERROR(remove_all(disk, entry.folder));
  }
  return static_cast<int64_t>(entries.size());
}

}  // namespace accelerate
