#include "launch/process/program.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "launch/process/environment_words.h"

namespace accelerate::launch::process {
namespace {

absl::Status check_executable(const std::string& path) {
  struct stat info = {};
  if (stat(path.c_str(), &info) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) {
      return absl::NotFoundError(absl::StrCat("program ", path, " not found"));
    }
    return absl::PermissionDeniedError(
        absl::StrCat("program ", path, " cannot be executed: ", std::strerror(errno)));
  }
  if (S_ISDIR(info.st_mode)) {
    return absl::PermissionDeniedError(absl::StrCat("program ", path, " is a directory"));
  }
  if (access(path.c_str(), X_OK) != 0) {
    return absl::PermissionDeniedError(absl::StrCat("program ", path, " is not executable"));
  }
  return absl::OkStatus();
}

}  // namespace

std::string search_path_of(absl::Span<const std::string> environment) {
  return find_in_environment(environment, "PATH").value_or("/bin:/usr/bin");
}

absl::StatusOr<std::string> find_program(absl::string_view name, absl::string_view search_path) {
  if (absl::StrContains(name, '/')) {
    std::string path(name);
    if (absl::Status ok = check_executable(path); !ok.ok()) return ok;
    return path;
  }
  absl::Status refused;
  for (absl::string_view directory : absl::StrSplit(search_path, ':')) {
    std::string path = absl::StrCat(directory.empty() ? "." : directory, "/", name);
    absl::Status ok = check_executable(path);
    if (ok.ok()) return path;
    // As in a shell, a later directory may still have one that works.
    if (absl::IsPermissionDenied(ok) && refused.ok()) refused = ok;
  }
  if (!refused.ok()) return refused;
  return absl::NotFoundError(absl::StrCat("program ", name, " not found in PATH"));
}

}  // namespace accelerate::launch::process
