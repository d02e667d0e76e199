#include "integration_tests/watch/processes.h"

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <system_error>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace accelerate::watch_tests {
namespace {

int checked(int result, const char* what) {
  if (result < 0) throw std::system_error(errno, std::generic_category(), what);
  return result;
}

// A listening socket on a free port, for rank 0 to inherit.
int listen_anywhere() {
  const int fd = checked(socket(AF_INET6, SOCK_STREAM, 0), "socket");
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  checked(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), "bind");
  checked(listen(fd, 16), "listen");
  return fd;
}

int port_of(int fd) {
  sockaddr_in6 address{};
  socklen_t size = sizeof(address);
  checked(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), "getsockname");
  return ntohs(address.sin6_port);
}

// Replaces the process. The result is that of a program that cannot be started.
int execute(const std::vector<std::string>& command) {
  std::vector<char*> arguments;
  for (const std::string& argument : command) {
    arguments.push_back(const_cast<char*>(argument.c_str()));
  }
  arguments.push_back(nullptr);
  execv(arguments[0], arguments.data());
  return 127;
}

// A copy of a process has the calling thread alone, and the locks of all others.
void need_one_thread() {
  const std::filesystem::directory_iterator threads("/proc/self/task");
  if (std::distance(begin(threads), end(threads)) == 1) return;
  throw std::system_error(EBUSY, std::generic_category(), "a process to copy has several threads");
}

}  // namespace

ProcessJob::Child ProcessJob::start(
    int rank, int ranks, int listen_fd, const std::function<int()>& program,
    const std::vector<std::pair<std::string, std::string>>& environment) {
  std::array<int, 2> pipe_ends{};
  checked(pipe2(pipe_ends.data(), O_CLOEXEC), "pipe2");
  // platform/child.h waits for a command before it starts the next one, and ranks run together.
  const pid_t pid = checked(fork(), "fork");
  if (pid != 0) {
    close(pipe_ends[1]);
    return {.pid = pid, .output = pipe_ends[0]};
  }
  dup2(pipe_ends[1], STDOUT_FILENO);
  dup2(pipe_ends[1], STDERR_FILENO);
  auto set = [](const char* name, const std::string& value) { setenv(name, value.c_str(), 1); };
  set("RANK", std::to_string(rank));
  set("LOCAL_RANK", std::to_string(rank));
  set("WORLD_SIZE", std::to_string(ranks));
  set("LOCAL_WORLD_SIZE", std::to_string(ranks));
  set("MASTER_ADDR", "127.0.0.1");
  set("MASTER_PORT", std::to_string(port_of(listen_fd)));
  set("OMP_NUM_THREADS", "1");
  if (rank == 0) {
    set("ACCELERATE_STORE_LISTEN_FD", std::to_string(listen_fd));
  } else {
    unsetenv("ACCELERATE_STORE_LISTEN_FD");
    close(listen_fd);
  }
  for (const auto& [name, value] : environment) set(name.c_str(), value);
  std::exit(program());
}

ProcessResult ProcessJob::finish(const Child& child) {
  ProcessResult result;
  std::array<char, 4096> chunk;
  for (ssize_t n; (n = read(child.output, chunk.data(), chunk.size())) > 0;) {
    result.output.append(chunk.data(), static_cast<size_t>(n));
  }
  close(child.output);
  int status = 0;
  checked(waitpid(child.pid, &status, 0), "waitpid");
  if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  return result;
}

void ProcessJob::start_all(int ranks, const std::function<int()>& program,
                           const std::vector<std::pair<std::string, std::string>>& environment) {
  // What is not written yet is not for a child to write as well.
  std::cout.flush();
  std::fflush(nullptr);
  const int listen_fd = listen_anywhere();
  for (int rank = 0; rank < ranks; ++rank) {
    children_.push_back(start(rank, ranks, listen_fd, program, environment));
  }
  close(listen_fd);
}

ProcessJob::ProcessJob(int ranks, const std::vector<std::string>& command,
                       const std::vector<std::pair<std::string, std::string>>& environment) {
  start_all(ranks, [&]() -> int { _exit(execute(command)); }, environment);
}

ProcessJob::ProcessJob(int ranks, const std::function<int()>& program,
                       const std::vector<std::pair<std::string, std::string>>& environment) {
  need_one_thread();
  start_all(ranks, program, environment);
}

std::vector<ProcessResult> ProcessJob::wait() {
  std::vector<ProcessResult> results;
  for (const Child& child : children_) results.push_back(finish(child));
  return results;
}

}  // namespace accelerate::watch_tests
