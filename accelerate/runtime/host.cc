#include "accelerate/runtime/host.h"

#include <unistd.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"

namespace accelerate::host {

absl::StatusOr<std::string> read_file(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path));
  std::ostringstream contents;
  contents << file.rdbuf();
  // A folder opens but does not read.
  if (file.bad() || contents.fail()) {
    return absl::FailedPreconditionError(absl::StrCat("cannot read ", path));
  }
  return std::move(contents).str();
}

absl::Status write_file(const std::string& path, std::string_view contents) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code made;
  if (!folder.empty()) std::filesystem::create_directories(folder, made);
  if (made) {
    return absl::ErrnoToStatus(made.value(), absl::StrCat("cannot make the folder of ", path));
  }
  // Two processes that write the same file do not share a temporary one.
  const std::string partial = absl::StrCat(path, ".partial-", getpid());
  std::FILE* file = std::fopen(partial.c_str(), "wb");
  if (file == nullptr) return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path));
  int error = 0;
  if (std::fwrite(contents.data(), 1, contents.size(), file) != contents.size()) error = errno;
  // Closing writes what is buffered, and only then does a full disk show.
  if (std::fclose(file) != 0 && error == 0) error = errno;
  if (error == 0 && std::rename(partial.c_str(), path.c_str()) != 0) error = errno;
  if (error == 0) return absl::OkStatus();
  unlink(partial.c_str());
  return absl::ErrnoToStatus(error, absl::StrCat("cannot write ", path));
}

void write_console(ConsoleStream stream, std::string_view text) {
  std::FILE* file = stream == ConsoleStream::kOut ? stdout : stderr;
  std::fwrite(text.data(), 1, text.size(), file);
  std::fflush(file);
}

bool is_terminal(ConsoleStream stream) {
  return isatty(stream == ConsoleStream::kOut ? STDOUT_FILENO : STDERR_FILENO) == 1;
}

void release_free_memory() {
#ifdef __GLIBC__
  malloc_trim(/*pad=*/0);
#endif
}

}  // namespace accelerate::host
