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

#include "absl/strings/str_cat.h"
#include "accelerate/platform/child.h"
#include "accelerate/platform/unique_fd.h"

namespace accelerate::launch::process {
namespace {

mode_t allowed(mode_t mode) {
  const mode_t mask = umask(0);
  umask(mask);
  return mode & ~mask;
}

}  // namespace

absl::Status replace_file(const std::string& path, absl::string_view text, mode_t mode) {
  std::error_code error;
  std::filesystem::path target = std::filesystem::canonical(path, error);
  if (error) target = path;
  // An unused name beside the file: a rename works only within one file system.
  std::string draft = absl::StrCat(target.string(), ".XXXXXX");
  const UniqueFd fd(mkostemp(draft.data(), O_CLOEXEC));
  int cause = fd.is_open() && write_all(fd.get(), text) ? 0 : errno;
  if (cause == 0 && fchmod(fd.get(), allowed(mode)) != 0) cause = errno;
  if (cause == 0 && rename(draft.c_str(), target.c_str()) != 0) cause = errno;
  if (cause == 0) return absl::OkStatus();
  if (fd.is_open()) unlink(draft.c_str());
  return absl::UnavailableError(absl::StrCat(path, ": cannot be written: ", std::strerror(cause)));
}

}  // namespace accelerate::launch::process
