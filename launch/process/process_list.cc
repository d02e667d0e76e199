#include "launch/process/process_list.h"

#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "accelerate/platform/unique_fd.h"

namespace accelerate::launch::process {
namespace {

// Not read with a stream: a process that goes away between open and read is an ordinary outcome
// here, and the stream's buffer throws at it.
std::string read_all(const std::filesystem::path& path) {
  UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  char buffer[4096];
  ssize_t size;
  while ((size = read(file.get(), buffer, sizeof(buffer))) > 0) {
    text.append(buffer, static_cast<size_t>(size));
  }
  return text;
}

// Field 4 of /proc/PID/stat. Field 2 is the program's name in parentheses and may hold anything,
// so fields are counted from the last parenthesis.
pid_t parent_of(const std::filesystem::path& process) {
  const std::string stat = read_all(process / "stat");
  const size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return -1;
  const std::vector<absl::string_view> fields =
      absl::StrSplit(absl::string_view(stat).substr(name_end + 1), ' ', absl::SkipEmpty());
  pid_t parent = -1;
  if (fields.size() < 2 || !absl::SimpleAtoi(fields[1], &parent)) return -1;
  return parent;
}

// Those whose folder in /proc has what is wanted.
template <typename Wanted>
std::vector<pid_t> processes_with(const Wanted& wanted) {
  std::vector<pid_t> found;
  std::error_code error;
  std::filesystem::directory_iterator entry("/proc", error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    pid_t pid = 0;
    if (!absl::SimpleAtoi(entry->path().filename().string(), &pid)) continue;
    if (wanted(entry->path())) found.push_back(pid);
  }
  return found;
}

}  // namespace

std::vector<pid_t> children_of(pid_t parent) {
  return processes_with(
      [parent](const std::filesystem::path& process) { return parent_of(process) == parent; });
}

std::vector<pid_t> started_with(absl::string_view text) {
  return processes_with([text](const std::filesystem::path& process) {
    return absl::StrContains(read_all(process / "environ"), text);
  });
}

}  // namespace accelerate::launch::process
