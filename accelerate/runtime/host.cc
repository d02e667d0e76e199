#include "accelerate/runtime/host.h"

#include <unistd.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <array>
#include <cstdio>

namespace accelerate::host {

void write_console(ConsoleStream stream, std::string_view text) {
  std::FILE* file = stream == ConsoleStream::kOut ? stdout : stderr;
  std::fwrite(text.data(), 1, text.size(), file);
  std::fflush(file);
}

bool is_terminal(ConsoleStream stream) {
  return isatty(stream == ConsoleStream::kOut ? STDOUT_FILENO : STDERR_FILENO) == 1;
}

std::string name() {
  std::array<char, 256> text{};
  gethostname(text.data(), text.size() - 1);
  return text.data();
}

void release_free_memory() {
#ifdef __GLIBC__
  malloc_trim(/*pad=*/0);
#endif
}

}  // namespace accelerate::host
