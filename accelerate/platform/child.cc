#include "accelerate/platform/child.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "accelerate/platform/unique_fd.h"

namespace accelerate {
namespace {

absl::Status no_resources(const char* what) {
  return absl::ResourceExhaustedError(absl::StrCat("cannot ", what, ": ", std::strerror(errno)));
}

// Until one of them is readable or closed; false if the deadline came first. Negative descriptors
// count as none.
bool wait_readable(absl::Span<pollfd> entries, absl::Time deadline) {
  while (true) {
    const absl::Duration left = deadline - absl::Now();
    const bool is_endless = left == absl::InfiniteDuration();
    // Rounded up, so that the loop does not spin through the last millisecond.
    const int64_t milliseconds = absl::ToInt64Milliseconds(left + absl::Microseconds(999));
    if (!is_endless && milliseconds <= 0) return false;
    const int timeout =
        is_endless ? -1 : static_cast<int>(std::min<int64_t>(milliseconds, 1 << 30));
    if (poll(entries.data(), entries.size(), timeout) > 0) return true;
  }
}

pollfd entry_of(int fd) { return {.fd = fd, .events = POLLIN, .revents = 0}; }

// The beginning and the end of what is added.
class KeptOutput {
 public:
  void add(absl::string_view text) {
    const size_t fits = std::min(text.size(), kMostOutput / 2 - begin_.size());
    begin_.append(text.data(), fits);
    end_.append(text.data() + fits, text.size() - fits);
    // Once for each half that came, so that moving bytes costs no more than adding them.
    if (end_.size() >= kMostOutput) drop(end_.size() - kMostOutput / 2);
  }

  void take(ChildResult& result) && {
    if (end_.size() > kMostOutput / 2) drop(end_.size() - kMostOutput / 2);
    result.output = std::move(begin_);
    result.left_out = left_out_;
    if (left_out_ > 0) {
      absl::StrAppend(&result.output, "\n... ", left_out_, " bytes are left out ...\n");
    }
    result.output += end_;
  }

 private:
  void drop(size_t bytes) {
    end_.erase(0, bytes);
    left_out_ += static_cast<int64_t>(bytes);
  }

  std::string begin_;
  std::string end_;
  int64_t left_out_ = 0;
};

// Reads once, and no more than `most` bytes. Returns how many came; 0 at the end of the pipe.
size_t read_some(int fd, size_t most, KeptOutput& output) {
  char buffer[4096];
  ssize_t size;
  do {
    size = read(fd, buffer, std::min(most, sizeof(buffer)));
  } while (size < 0 && errno == EINTR);
  if (size <= 0) return 0;
  output.add({buffer, static_cast<size_t>(size)});
  return static_cast<size_t>(size);
}

// Reads until the pipe or the process ends; false if the deadline came first. What the process has
// started, and left behind with its output, may write on; that is not waited for.
bool read_to_end(int fd, int process, absl::Time deadline, KeptOutput& output) {
  pollfd entries[] = {entry_of(fd), entry_of(process)};
  while (wait_readable(entries, deadline)) {
    if (entries[1].revents == 0) {
      if (read_some(fd, SIZE_MAX, output) == 0) return true;
      continue;
    }
    int written = 0;
    ioctl(fd, FIONREAD, &written);
    auto left = static_cast<size_t>(std::max(written, 0));
    while (left > 0) {
      const size_t size = read_some(fd, left, output);
      if (size == 0) break;
      left -= size;
    }
    return true;
  }
  return false;
}

}  // namespace

std::vector<char*> pointers_to(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

bool write_all(int fd, absl::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written < 0 && errno != EINTR) return false;
    if (written > 0) text.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

absl::StatusOr<ChildResult> run_in_child(const std::function<void(int fd)>& body,
                                         absl::Duration limit) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return no_resources("open a pipe");
  const UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  const absl::Time deadline = absl::Now() + limit;
  const pid_t pid = fork();
  if (pid < 0) return no_resources("start a process");
  if (pid == 0) {
    const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(null, fd);
    body(write_end.get());
    _exit(EXIT_FAILURE);
  }
  write_end.reset();
  ChildResult result;
  KeptOutput output;
  const UniqueFd process(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  result.timed_out = !read_to_end(read_end.get(), process.get(), deadline, output);
  std::move(output).take(result);
  // A child may close its output long before it ends.
  if (!result.timed_out && process.is_open()) {
    pollfd entry = entry_of(process.get());
    result.timed_out = !wait_readable({&entry, 1}, deadline);
  }
  if (result.timed_out) kill(pid, SIGKILL);
  int status = 0;
  while (waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR) return no_resources("wait for a process");
  }
  result.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  result.exit_code = result.signal != 0 ? 128 + result.signal : WEXITSTATUS(status);
  return result;
}

absl::StatusOr<ChildResult> run_command(const std::vector<std::string>& argv,
                                        const CommandOptions& options) {
  std::vector<std::string> words = argv;
  const std::vector<char*> pointers = pointers_to(words);
  return run_in_child(
      [&](int fd) {
        dup2(fd, STDOUT_FILENO);
        if (options.collects_errors) dup2(fd, STDERR_FILENO);
        execvp(pointers[0], pointers.data());
        _exit(errno == ENOENT ? 127 : 126);
      },
      options.limit);
}

absl::StatusOr<ChildResult> run_shell(const std::string& line, const CommandOptions& options) {
  return run_command({"/bin/sh", "-c", line}, options);
}

}  // namespace accelerate
