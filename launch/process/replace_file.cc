#include "launch/process/replace_file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "accelerate/platform/child.h"
#include "accelerate/platform/unique_fd.h"

namespace accelerate::launcher::process {
namespace {

mode_t allowed(mode_t mode) {
  const mode_t mask = umask(0);
  umask(mask);
  return mode & ~mask;
}

// A new file in its place would cut off those who have it open, and as root take the device away.
bool is_written_in_place(const std::string& path) {
  if (absl::StartsWith(path, "/dev/")) return true;
  std::error_code ignored;
  const std::filesystem::file_type type = std::filesystem::status(path, ignored).type();
  return type == std::filesystem::file_type::character || type == std::filesystem::file_type::fifo;
}

// The cause of a failure, or 0.
int write_in_place(const std::string& path, absl::string_view text) {
  const UniqueFd fd(open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
  return fd.is_open() && write_all(fd.get(), text) ? 0 : errno;
}

int write_anew(const std::string& path, absl::string_view text, mode_t mode) {
  std::error_code error;
  std::filesystem::path target = std::filesystem::canonical(path, error);
  if (error) target = path;
  // An unused name beside the file: a rename works only within one file system.
  std::string draft = absl::StrCat(target.string(), ".XXXXXX");
  const UniqueFd fd(mkostemp(draft.data(), O_CLOEXEC));
  int cause = fd.is_open() && write_all(fd.get(), text) ? 0 : errno;
  if (cause == 0 && fchmod(fd.get(), allowed(mode)) != 0) cause = errno;
  if (cause == 0 && rename(draft.c_str(), target.c_str()) != 0) cause = errno;
  if (cause != 0 && fd.is_open()) unlink(draft.c_str());
  return cause;
}

}  // namespace

absl::Status replace_file(const std::string& path, absl::string_view text, mode_t mode) {
  const int cause =
      is_written_in_place(path) ? write_in_place(path, text) : write_anew(path, text, mode);
  if (cause == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(path, ": cannot be written: ", std::strerror(cause)));
}

}  // namespace accelerate::launcher::process
