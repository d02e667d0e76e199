#include "launch/agent/log_folder.h"

#include <stdlib.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace accelerate::launch {
namespace {

absl::Status cannot_make(const std::string& folder, const std::string& why) {
  return absl::UnavailableError(absl::StrCat("cannot make a folder for logs, ", folder, ": ", why,
                                             "; give another --log_dir"));
}

}  // namespace

std::string plain_log_folder(const std::string& log_dir, const std::string& run_id) {
  std::string name = run_id;
  std::replace_if(
      name.begin(), name.end(),
      [](char c) { return !absl::ascii_isalnum(c) && c != '-' && c != '_' && c != '.'; }, '_');
  return absl::StrCat(log_dir, name.empty() || name[0] == '.' ? "/_" : "/", name);
}

absl::StatusOr<std::string> claim_log_folder(const std::string& log_dir, const std::string& run_id,
                                             const Round& round) {
  const std::string plain = plain_log_folder(log_dir, run_id);
  for (int number = 1;; ++number) {
    const std::string folder = number == 1 ? plain : absl::StrCat(plain, ".", number);
    const std::string attempt = absl::StrCat(folder, "/attempt_", round.number);
    std::error_code error;
    std::filesystem::create_directories(attempt, error);
    if (error) return cannot_make(attempt, error.message());
    // Made by one alone: also two runs that start at the same time do not get the same.
    const std::string mine = absl::StrCat(attempt, "/", round.first_rank);
    if (mkdir(mine.c_str(), 0777) == 0) return folder;
    if (errno != EEXIST) return cannot_make(mine, std::strerror(errno));
  }
}

absl::StatusOr<std::string> temporary_log_dir() {
  std::error_code error;
  std::string folder =
      (std::filesystem::temp_directory_path(error) / "accelerate_logs_XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) return cannot_make(folder, std::strerror(errno));
  return folder;
}

}  // namespace accelerate::launch
