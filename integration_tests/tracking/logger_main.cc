// Logs steps to the trackers TRACKERS in the folder DIR, and ends in one of several ways:
//
//   logger TRACKERS DIR COUNT WAY
//
// WAY: return, exit, throw, wait (for a signal), fork (and end the child by SIGTERM), or flush:
// each COUNT steps, flush and print the number of steps so far, for ever.
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <iostream>
#include <stdexcept>
#include <string>

#include "absl/strings/str_split.h"
#include "accelerate/accelerate.h"

namespace {

// Whether a signal ends a forked process as if there were no trackers.
bool end_a_child() {
  const pid_t child = fork();
  if (child == 0) {
    while (true) pause();
  }
  kill(child, SIGTERM);
  int status = 0;
  return waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM;
}

int log_steps(int /*argc*/, char** argv) {
  const std::vector<std::string> trackers = absl::StrSplit(argv[1], ',');
  const int64_t count = std::atoll(argv[3]);
  const std::string way = argv[4];
  accelerate::Accelerator accelerator(
      {.project_dir = argv[2], .log_with = {trackers.begin(), trackers.end()}});
  accelerator.init_trackers("run");
  for (int64_t step = 1; step <= count || way == "flush"; ++step) {
    accelerator.log({{"loss", 1.0 / static_cast<double>(step)}}, step);
    if (way == "flush" && step % count == 0) {
      for (const std::string& tracker : trackers) accelerator.get_tracker(tracker).flush();
      std::cout << step << std::endl;
    }
  }
  if (way == "fork") return end_a_child() ? 0 : 3;
  if (way == "throw") throw std::runtime_error("training failed");
  if (way == "exit") std::exit(0);
  if (way == "wait") {
    std::cout << "logged" << std::endl;
    while (true) pause();
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return accelerate::run(argc, argv, log_steps); }
