#include "launch/commands/probe.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <functional>

#include "absl/strings/str_cat.h"
#include "launch/process/unique_fd.h"

namespace accelerate::launch::commands {

using process::UniqueFd;
namespace {

constexpr unsigned kSeconds = 10;

struct Child {
  int status = -1;
  std::string output;
};

// Runs `body` in a child and reads what it writes to the descriptor that it is given.
std::optional<Child> run_child(const std::function<void(int)>& body) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return std::nullopt;
  UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  const pid_t pid = fork();
  if (pid < 0) return std::nullopt;
  if (pid == 0) {
    const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    dup2(null, STDIN_FILENO);
    dup2(null, STDOUT_FILENO);
    dup2(null, STDERR_FILENO);
    // Also stops a program that takes this process's place, unless it sets an alarm of its own.
    signal(SIGALRM, SIG_DFL);
    alarm(kSeconds);
    body(write_end.get());
    // Nothing of a library that was loaded runs at the end.
    _exit(EXIT_FAILURE);
  }
  write_end.reset();
  Child child;
  char buffer[4096];
  while (true) {
    const ssize_t n = read(read_end.get(), buffer, sizeof(buffer));
    if (n > 0) {
      child.output.append(buffer, n);
    } else if (n == 0 || errno != EINTR) {
      break;
    }
  }
  while (waitpid(pid, &child.status, 0) < 0 && errno == EINTR) {
  }
  return child;
}

void say(int fd, const std::string& text) {
  const char* next = text.data();
  size_t left = text.size();
  while (left > 0) {
    const ssize_t n = write(fd, next, left);
    if (n < 0 && errno != EINTR) return;
    if (n > 0) {
      next += n;
      left -= n;
    }
  }
}

std::string path_of(void* handle) {
  link_map* map = nullptr;
  char real[PATH_MAX];
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0 || realpath(map->l_name, real) == nullptr) {
    return "";
  }
  return real;
}

// What the child says: '+' or '-' for the symbol and the path, or '!' and what is wrong.
void load_and_say(int fd, const std::string& name, const std::string& symbol) {
  void* handle = dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (handle == nullptr) return say(fd, absl::StrCat("!", dlerror()));
  const bool has_symbol = !symbol.empty() && dlsym(handle, symbol.c_str()) != nullptr;
  say(fd, absl::StrCat(has_symbol ? "+" : "-", path_of(handle)));
}

}  // namespace

LibraryProbe probe_library(const std::string& name, const std::string& symbol) {
  const std::optional<Child> child = run_child([&](int fd) { load_and_say(fd, name, symbol); });
  if (!child) return {.error = absl::StrCat("no child process: ", std::strerror(errno))};
  const std::string& said = child->output;
  if (said.empty()) {
    const int number = WIFSIGNALED(child->status) ? WTERMSIG(child->status) : 0;
    if (number == SIGALRM) return {.error = absl::StrCat("not loaded within ", kSeconds, " s")};
    if (number == 0) return {.error = "it ends the process that loads it"};
    return {.error = absl::StrCat("it crashes when it is loaded (", strsignal(number), ")")};
  }
  if (said[0] == '!') return {.error = said.substr(1)};
  return {.is_loadable = true, .path = said.substr(1), .has_symbol = said[0] == '+'};
}

std::optional<std::string> output_of(const std::vector<std::string>& argv) {
  std::vector<char*> words;
  for (const std::string& word : argv) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  const std::optional<Child> child = run_child([&](int fd) {
    dup2(fd, STDOUT_FILENO);
    execvp(words[0], words.data());
  });
  if (!child || !WIFEXITED(child->status) || WEXITSTATUS(child->status) != 0) return std::nullopt;
  return child->output;
}

}  // namespace accelerate::launch::commands
