#include "launch/agent/log_folder.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace accelerate::launch::agent {
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
                                             const std::string& run_token) {
  const std::string plain = plain_log_folder(log_dir, run_id);
  for (int number = 1;; ++number) {
    const std::string folder = number == 1 ? plain : absl::StrCat(plain, ".", number);
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    const bool is_new = !error && std::filesystem::is_empty(folder, error);
    if (error) return cannot_make(folder, error.message());
    // The first entry of the folder names its owner: a link appears atomically, with its text.
    const std::string owner = absl::StrCat(folder, "/.run");
    if (is_new && symlink(run_token.c_str(), owner.c_str()) != 0 && errno != EEXIST) {
      return cannot_make(owner, std::strerror(errno));
    }
    if (std::filesystem::read_symlink(owner, error) == run_token) return folder;
  }
}

}  // namespace accelerate::launch::agent
