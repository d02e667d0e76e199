#include "accelerate/tracking/flush_on_exit.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "accelerate/tracking/tracker_queue.h"

namespace accelerate {
namespace {

std::atomic<bool> is_ending = false;

// For all trackers together; whoever sent the signal will not wait for ever.
constexpr absl::Duration kLimit = absl::Seconds(5);

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};

struct Queues {
  std::mutex mutex;
  std::vector<TrackerQueue*> queues;
  bool installed = false;

  void drain() {
    const std::lock_guard lock(mutex);
    set_process_is_ending(true);
    std::vector<std::pair<TrackerQueue*, uint64_t>> requests;
    for (TrackerQueue* queue : queues) requests.emplace_back(queue, queue->request_flush());
    const absl::Time end = absl::Now() + kLimit;
    for (const auto& [queue, request] : requests) queue->wait_flushed(request, end - absl::Now());
  }
};

// Never destroyed: threads and exit handlers use it to the end. A forked process has another one.
Queues* present_queues = nullptr;

Queues& all_queues() {
  static std::once_flag made;
  std::call_once(made, [] { present_queues = new Queues(); });
  return *present_queues;
}

// A signal's number goes through it, from the handler to a thread that may do what handlers may
// not.
int signal_pipe[2] = {-1, -1};
pid_t signal_process = -1;

void pass_on(int signal) {
  const int error = errno;
  if (getpid() != signal_process) {
    // Just forked, and not yet told so: what it does is the default already.
    raise(signal);
    return;
  }
  const auto number = static_cast<unsigned char>(signal);
  if (write(signal_pipe[1], &number, 1) != 1) _exit(128 + signal);
  errno = error;
}

void wait_for_signal(int pipe) {
  unsigned char number = 0;
  while (read(pipe, &number, 1) != 1) {
    if (errno != EINTR) return;
  }
  all_queues().drain();
  // What it does is the default again: see SA_RESETHAND.
  kill(getpid(), number);
}

// A forked process has neither the trackers' threads nor the one that waits for signals.
void forget_in_child() {
  present_queues = new Queues();
  for (const int signal : kSignals) {
    struct sigaction present = {};
    if (sigaction(signal, nullptr, &present) == 0 && present.sa_handler == pass_on) {
      ::signal(signal, SIG_DFL);
    }
  }
  for (int& end : signal_pipe) {
    if (end >= 0) close(std::exchange(end, -1));
  }
}

void install_in_process() {
  if (pipe2(signal_pipe, O_CLOEXEC) != 0) return;
  signal_process = getpid();
  for (const int signal : kSignals) {
    struct sigaction present = {};
    if (sigaction(signal, nullptr, &present) != 0 || present.sa_handler != SIG_DFL) continue;
    struct sigaction action = {};
    action.sa_handler = pass_on;
    action.sa_flags = SA_RESETHAND | SA_RESTART;
    sigaction(signal, &action, nullptr);
  }
  std::thread(wait_for_signal, signal_pipe[0]).detach();
}

}  // namespace

FlushOnExit::FlushOnExit(TrackerQueue& queue) : queue_(queue) {
  Queues& queues = all_queues();
  static std::once_flag once;  // in this process and those forked from it
  std::call_once(once, [] {
    std::atexit([] { all_queues().drain(); });
    pthread_atfork(nullptr, nullptr, forget_in_child);
  });
  const std::lock_guard lock(queues.mutex);
  if (!std::exchange(queues.installed, true)) install_in_process();
  queues.queues.push_back(&queue_);
}

FlushOnExit::~FlushOnExit() {
  Queues& queues = all_queues();
  const std::lock_guard lock(queues.mutex);
  std::erase(queues.queues, &queue_);
}

bool process_is_ending() { return is_ending; }

void set_process_is_ending(bool ending) { is_ending = ending; }

}  // namespace accelerate
