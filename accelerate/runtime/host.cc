#include "accelerate/runtime/host.h"

#include <unistd.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <sstream>
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
