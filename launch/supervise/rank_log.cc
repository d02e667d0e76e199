#include "launch/supervise/rank_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace accelerate::launch::supervise {

absl::StatusOr<RankLog> RankLog::open(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  RankLog log;
  log.path_ = path;
  log.file_.reset(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  const int cause = error ? error.value() : errno;
  if (log.is_open()) return log;
  const std::string text = absl::StrCat("cannot write the log ", path, ": ", std::strerror(cause));
  if (cause == ENOSPC || cause == EDQUOT) return absl::DataLossError(text);
  return absl::InternalError(text);
}

absl::Status RankLog::append(absl::string_view bytes) {
  while (is_open() && !bytes.empty()) {
    const ssize_t written = write(file_.get(), bytes.data(), bytes.size());
    if (written >= 0) {
      bytes.remove_prefix(static_cast<size_t>(written));
    } else if (errno != EINTR) {
      const int cause = errno;
      file_.reset();
      return absl::DataLossError(
          absl::StrCat("cannot write the log ", path_, ": ", std::strerror(cause)));
    }
  }
  return absl::OkStatus();
}

}  // namespace accelerate::launch::supervise
