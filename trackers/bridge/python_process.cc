#include "trackers/bridge/python_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <stdexcept>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace accelerate::trackers {
namespace {

using Clock = std::chrono::steady_clock;

constexpr off_t kMaxPrinted = 1 << 20;  // bytes that are kept of what it prints
constexpr off_t kLastWords = 2000;      // bytes, about
constexpr size_t kMaxLine = 65536;      // bytes
constexpr int kJoinPollMilliseconds = 5;
// The time that a process has to end by itself before it is killed.
constexpr absl::Duration kEndLimit = absl::Seconds(2);

bool is_program(const std::string& path) {
  struct stat facts;
  return stat(path.c_str(), &facts) == 0 && S_ISREG(facts.st_mode) &&
         access(path.c_str(), X_OK) == 0;
}

std::string text_of_file(int fd, off_t begin, off_t end) {
  std::string text(static_cast<size_t>(std::max<off_t>(end - begin, 0)), '\0');
  const ssize_t size = pread(fd, text.data(), text.size(), begin);
  text.resize(static_cast<size_t>(std::max<ssize_t>(size, 0)));
  return text;
}

off_t size_of_file(int fd) {
  struct stat facts;
  return fstat(fd, &facts) == 0 ? facts.st_size : 0;
}

std::vector<char*> pointers_to(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

[[noreturn]] void fail(const char* what, int error) {
  throw std::runtime_error(absl::StrCat(what, ": ", std::strerror(error)));
}

// Owns the settings of posix_spawn.
class SpawnSetup {
 public:
  SpawnSetup() {
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
  }
  ~SpawnSetup() {
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
  }
  SpawnSetup(const SpawnSetup&) = delete;
  SpawnSetup& operator=(const SpawnSetup&) = delete;

  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
};

}  // namespace

std::string find_python(const Environment& environment) {
  const std::string name = environment.get_or("ACCELERATE_PYTHON", "python3");
  if (name.find('/') != name.npos) {
    if (is_program(name)) return name;
    throw std::runtime_error(
        absl::StrCat("ACCELERATE_PYTHON is ", name, ", which is not a program"));
  }
  const std::string path = environment.get_or("PATH", "/usr/local/bin:/usr/bin:/bin");
  for (const std::string& folder : std::vector<std::string>(absl::StrSplit(path, ':'))) {
    const std::string program = absl::StrCat(folder.empty() ? "." : folder, "/", name);
    if (is_program(program)) return program;
  }
  throw std::runtime_error(absl::StrCat(
      "there is no ", name, " on the PATH (ACCELERATE_PYTHON may name a Python interpreter)"));
}

PythonProcess::PythonProcess(const Environment& environment, const std::string& program,
                             const std::vector<std::string>& args) {
  const std::string python = find_python(environment);
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    fail("cannot make a socket pair", errno);
  }
  socket_ = ends[0];
  printed_ = memfd_create("accelerate_bridge", MFD_CLOEXEC);
  int error = printed_ < 0 ? errno : 0;
  if (error == 0) {
    SpawnSetup setup;
    posix_spawn_file_actions_adddup2(&setup.actions, ends[1], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&setup.actions, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&setup.actions, printed_, STDERR_FILENO);
#if __GLIBC_PREREQ(2, 34)
    posix_spawn_file_actions_addclosefrom_np(&setup.actions, STDERR_FILENO + 1);
#endif
    sigset_t signals;
    sigemptyset(&signals);
    posix_spawnattr_setsigmask(&setup.attributes, &signals);
    sigfillset(&signals);
    posix_spawnattr_setsigdefault(&setup.attributes, &signals);
    posix_spawnattr_setpgroup(&setup.attributes, 0);
    posix_spawnattr_setflags(
        &setup.attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);

    std::vector<std::string> words = {python, "-u", "-c", program};
    words.insert(words.end(), args.begin(), args.end());
    std::vector<std::string> variables;
    for (const auto& [name, value] : environment.variables()) {
      variables.push_back(absl::StrCat(name, "=", value));
    }
    error = posix_spawn(&pid_, python.c_str(), &setup.actions, &setup.attributes,
                        pointers_to(words).data(), pointers_to(variables).data());
  }
  close(ends[1]);
  if (error != 0) {
    close(socket_);
    if (printed_ >= 0) close(printed_);
    fail(absl::StrCat("cannot start ", python).c_str(), error);
  }
}

PythonProcess::~PythonProcess() {
  // Packages save their data when the process ends by itself. Its answers are not read any more.
  shutdown(socket_, SHUT_RDWR);
  if (!join(kEndLimit)) kill();
  close(socket_);
  close(printed_);
}

size_t PythonProcess::write_some(std::string_view text) {
  size_t written = 0;
  while (written < text.size() && !gone_) {
    const ssize_t size =
        send(socket_, text.data() + written, text.size() - written, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (size >= 0) {
      written += static_cast<size_t>(size);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return written;
    } else if (errno != EINTR) {
      break;
    }
  }
  // The process has ended, which `read_some` finds out after reading what it wrote before.
  return text.size();
}

std::string PythonProcess::read_some() {
  // The socket may stay open in a process that it forked, so the end is looked up too: before
  // reading, so that nothing is missed.
  const bool ended = join(absl::ZeroDuration());
  std::string text;
  std::array<char, 65536> buffer;
  while (!gone_) {
    const ssize_t size = recv(socket_, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (size > 0) {
      text.append(buffer.data(), static_cast<size_t>(size));
    } else if (size < 0 && errno == EINTR) {
      continue;
    } else if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      gone_ = ended;
      break;
    } else {
      gone_ = true;
    }
  }
  return text;
}

void PythonProcess::wait(absl::Duration limit, bool writing) {
  if (gone_) return;
  pollfd wanted = {.fd = socket_, .events = static_cast<short>(POLLIN | (writing ? POLLOUT : 0))};
  const int64_t milliseconds = absl::ToInt64Milliseconds(absl::Ceil(limit, absl::Milliseconds(1)));
  poll(&wanted, 1, static_cast<int>(std::clamp<int64_t>(milliseconds, 0, 1 << 30)));
}

void PythonProcess::close_input() { shutdown(socket_, SHUT_WR); }

bool PythonProcess::join(absl::Duration limit) {
  const Clock::time_point end = Clock::now() + absl::ToChronoNanoseconds(limit);
  while (!status_) {
    int status = 0;
    const pid_t found = waitpid(pid_, &status, WNOHANG);
    if (found == pid_) {
      status_ = status;
    } else if (found < 0 && errno != EINTR) {
      status_ = 0;  // this program ignores SIGCHLD, so the status is unknown
    } else if (Clock::now() >= end) {
      return false;
    } else {
      poll(nullptr, 0, kJoinPollMilliseconds);
    }
  }
  return true;
}

void PythonProcess::kill() {
  ::kill(-pid_, SIGKILL);
  ::kill(pid_, SIGKILL);
  // SIGKILL can only be delayed by the kernel, for example during I/O on a network file system.
  join(absl::Seconds(5));
}

std::string PythonProcess::how_it_ended() const {
  if (!status_) return "it cannot be killed";
  if (WIFSIGNALED(*status_)) return absl::StrCat("signal ", WTERMSIG(*status_));
  return absl::StrCat("exit status ", WEXITSTATUS(*status_));
}

std::vector<std::string> PythonProcess::new_lines() {
  const off_t size = size_of_file(printed_);
  std::string text = text_of_file(printed_, printed_read_, size);
  size_t complete = text.rfind('\n') + 1;
  // A progress bar may never end its line.
  if (complete == 0 && text.size() > kMaxLine) complete = text.size();
  text.resize(complete);
  printed_read_ += static_cast<off_t>(complete);
  if (printed_read_ > kMaxPrinted) {
    // Frees the memory. Truncating the file would lose what is printed at the same time.
    fallocate(printed_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, printed_read_ - kLastWords);
  }
  std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipWhitespace());
  for (std::string& line : lines) {
    absl::StripTrailingAsciiWhitespace(&line);
    line.erase(0, line.rfind('\r') + 1);  // as a terminal would show it in the end
  }
  return lines;
}

std::string PythonProcess::last_words() const {
  const off_t size = size_of_file(printed_);
  const off_t begin = std::max<off_t>(size - kLastWords, 0);
  std::string text = text_of_file(printed_, begin, size);
  if (begin > 0) text.erase(0, text.find('\n') + 1);
  return std::string(absl::StripAsciiWhitespace(text));
}

}  // namespace accelerate::trackers
