#include "launch/child_list.h"

#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "launch/unique_fd.h"

namespace accelerate::launch {
namespace {

// Field 4 of /proc/PID/stat. Field 2 is the program's name in parentheses and may hold anything,
// so fields are counted from the last parenthesis. Not read with a stream: a process that goes away
// between open and read is an ordinary outcome here, and the stream's buffer throws at it.
pid_t parent_of(const std::filesystem::path& process) {
  UniqueFd file(open((process / "stat").c_str(), O_RDONLY | O_CLOEXEC));
  char buffer[1024];
  const ssize_t size = read(file.get(), buffer, sizeof(buffer));
  if (size <= 0) return -1;
  const absl::string_view stat(buffer, static_cast<size_t>(size));
  const size_t name_end = stat.rfind(')');
  if (name_end == absl::string_view::npos) return -1;
  const std::vector<absl::string_view> fields =
      absl::StrSplit(stat.substr(name_end + 1), ' ', absl::SkipEmpty());
  pid_t parent = -1;
  if (fields.size() < 2 || !absl::SimpleAtoi(fields[1], &parent)) return -1;
  return parent;
}

}  // namespace

std::vector<pid_t> children_of(pid_t parent) {
  std::vector<pid_t> children;
  std::error_code error;
  std::filesystem::directory_iterator entry("/proc", error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    pid_t pid = 0;
    if (!absl::SimpleAtoi(entry->path().filename().string(), &pid)) continue;
    if (parent_of(entry->path()) == parent) children.push_back(pid);
  }
  return children;
}

}  // namespace accelerate::launch
