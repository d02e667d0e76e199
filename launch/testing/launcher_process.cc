#include "launch/testing/launcher_process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"

namespace accelerate::launcher::testing {
namespace {

// Only bounds how long a broken launcher can hold up the test run.
constexpr int kGiveUpMs = 60'000;

// As read(), but ends with a failure where nothing comes for too long.
ssize_t read_in_time(int fd, char* buffer, size_t size) {
  pollfd entry = {.fd = fd, .events = POLLIN, .revents = 0};
  if (poll(&entry, 1, kGiveUpMs) != 0) return read(fd, buffer, size);
  ADD_FAILURE() << "nothing has come from the launcher for " << kGiveUpMs << " ms";
  return -1;
}

std::string next_line(int fd) {
  std::string line;
  char c;
  while (read_in_time(fd, &c, 1) == 1) {
    line += c;
    if (c == '\n') break;
  }
  return line;
}

// Calls `give_up` where nothing comes for too long, and reads no more.
std::string rest_of(int fd, const std::function<void()>& give_up) {
  std::string all;
  char buffer[4096];
  ssize_t size;
  while ((size = read_in_time(fd, buffer, sizeof(buffer))) != 0) {
    if (size < 0) {
      give_up();
      break;
    }
    all.append(buffer, size);
  }
  return all;
}

}  // namespace

std::vector<std::string> lines_of(const std::string& text) {
  return absl::StrSplit(text, '\n', absl::SkipEmpty());
}

bool exists(pid_t pid) { return kill(pid, 0) == 0; }

LauncherProcess::Pipe::Pipe() {
  int ends[2];
  EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
  // Out of the way of the fixed numbers.
  read_end.reset(fcntl(ends[0], F_DUPFD_CLOEXEC, 20));
  write_end.reset(fcntl(ends[1], F_DUPFD_CLOEXEC, 20));
  close(ends[0]);
  close(ends[1]);
}

LauncherProcess::LauncherProcess(std::vector<std::string> argv, const LauncherSetup& setup) {
  std::vector<char*> words;
  for (std::string& word : argv) words.push_back(word.data());
  words.push_back(nullptr);
  std::vector<std::string> added = setup.environment;
  std::vector<char*> environment;
  for (std::string& word : added) environment.push_back(word.data());
  for (char** word = environ; *word != nullptr; ++word) environment.push_back(*word);
  environment.push_back(nullptr);
  // Neither platform/child.h nor launch/process gives a child descriptors of fixed numbers, ignored
  // signals and a test's own calls before the program.
  pid_ = fork();
  if (pid_ == 0) {
    dup2(stdin_.read_end.get(), 0);
    dup2(stdout_.write_end.get(), 1);
    dup2(stderr_.write_end.get(), 2);
    dup2(go_.read_end.get(), kGoFd);
    dup2(alive_.write_end.get(), kAliveFd);
    // The test's parent process may ignore some of these.
    for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGPIPE}) {
      ::signal(signal, SIG_DFL);
    }
    for (int signal : setup.ignored_signals) ::signal(signal, SIG_IGN);
    if (setup.before_exec) setup.before_exec();
    execve(words[0], words.data(), environment.data());
    _exit(99);
  }
  for (Pipe* pipe : {&stdout_, &stderr_, &alive_}) pipe->write_end.reset();
  // That of go_ stays open: a go() for a launcher that has ended does not raise SIGPIPE.
  stdin_.read_end.reset();
}

LauncherProcess::~LauncherProcess() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    wait();
  }
}

void LauncherProcess::signal(int signal) { kill(pid_, signal); }

void LauncherProcess::go() { EXPECT_EQ(write(go_.write_end.get(), "go\n", 3), 3); }

void LauncherProcess::send_input(const std::string& text) {
  EXPECT_EQ(write(stdin_.write_end.get(), text.data(), text.size()), ssize_t(text.size()));
  stdin_.write_end.reset();
}

std::string LauncherProcess::next_output_line() { return next_line(stdout_.read_end.get()); }

std::vector<std::string> LauncherProcess::wait_for_lines(const std::string& ending, int count) {
  std::vector<std::string> found;
  while (static_cast<int>(found.size()) < count) {
    std::string line = next_output_line();
    if (line.empty()) break;
    if (absl::EndsWith(line, ending + "\n")) found.push_back(line);
  }
  EXPECT_EQ(static_cast<int>(found.size()), count) << "lines that end in " << ending;
  return found;
}

std::string LauncherProcess::wait_for_error(const std::string& part) {
  std::string seen;
  while (true) {
    const std::string line = next_line(stderr_.read_end.get());
    if (absl::StrContains(line, part)) return line;
    if (line.empty()) break;
    seen += line;
  }
  ADD_FAILURE() << "no line with '" << part << "' in:\n" << seen;
  return "";
}

void LauncherProcess::read_all() {
  // The guard ends what a launcher leaves that is killed.
  const auto give_up = [this] { signal(SIGKILL); };
  std::thread reader([&] { stderr_text_ += rest_of(stderr_.read_end.get(), give_up); });
  if (stdout_.read_end.is_open()) stdout_text_ += rest_of(stdout_.read_end.get(), give_up);
  reader.join();
}

int LauncherProcess::wait() {
  int status = 0;
  EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int LauncherProcess::finish() {
  read_all();
  return wait();
}

bool LauncherProcess::everyone_is_gone() {
  pollfd entry = {.fd = alive_.read_end.get(), .events = POLLIN, .revents = 0};
  return poll(&entry, 1, kGiveUpMs) == 1 && (entry.revents & POLLHUP);
}

}  // namespace accelerate::launcher::testing
