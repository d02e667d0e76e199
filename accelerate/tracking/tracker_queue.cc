#include "accelerate/tracking/tracker_queue.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <deque>
#include <exception>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"

namespace accelerate {
namespace {

using Clock = std::chrono::steady_clock;

// The memory of a call without its values.
constexpr size_t kCallBytes = 256;

// The number of different failures that are reported.
constexpr size_t kMaxReasons = 8;

// While its service is away, a tracker still holds calls after a flush. It is flushed again after
// so many intervals without calls.
constexpr int kIdleIntervals = 5;
constexpr absl::Duration kShortestIdle = absl::Milliseconds(1);

// Waking the thread costs the caller more than pushing a call. After calls the thread rests this
// long before it looks for more, so that one wake-up serves many calls.
constexpr auto kRest = std::chrono::milliseconds(10);

// The limit of the last call where training failed.
constexpr absl::Duration kLastCallOfFailed = absl::Seconds(2);

// Bounds a time-out so that adding it to the current time cannot overflow.
std::chrono::nanoseconds bounded(absl::Duration limit) {
  return absl::ToChronoNanoseconds(std::clamp(limit, absl::ZeroDuration(), absl::Hours(24 * 365)));
}

void flush(GeneralTracker& tracker) { tracker.flush(); }

void end_run(GeneralTracker& tracker, RunEnd end) {
  if (end == RunEnd::kDone) {
    tracker.finish();
  } else {
    tracker.abandon();
  }
}

// ---- Flushing when the process ends.

std::atomic<bool> is_ending = false;

// The limit of all queues on exit together: the sender of the signal may kill the process soon.
constexpr absl::Duration kExitLimit = absl::Seconds(5);

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
    const absl::Time end = absl::Now() + kExitLimit;
    for (const auto& [queue, request] : requests) queue->wait_flushed(request, end - absl::Now());
  }
};

// Never destroyed, since threads and exit handlers use it to the end. A forked process gets its
// own.
Queues* present_queues = nullptr;

Queues& all_queues() {
  static std::once_flag made;
  std::call_once(made, [] { present_queues = new Queues(); });
  return *present_queues;
}

// The handler writes the signal's number; a thread reads it and flushes, which handlers may not do.
int signal_pipe[2] = {-1, -1};
pid_t signal_process = -1;

void pass_on(int signal) {
  const int error = errno;
  if (getpid() != signal_process) {
    // This process was just forked, and the signal's action is the default already.
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
  // SA_RESETHAND has restored the default action.
  kill(getpid(), number);
}

// A forked process has neither the trackers' threads nor the thread that waits for signals.
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

void flush_on_exit(TrackerQueue* queue) {
  Queues& queues = all_queues();
  static std::once_flag once;  // in this process and those forked from it
  std::call_once(once, [] {
    std::atexit([] { all_queues().drain(); });
    pthread_atfork(nullptr, nullptr, forget_in_child);
  });
  const std::lock_guard lock(queues.mutex);
  if (!std::exchange(queues.installed, true)) install_in_process();
  queues.queues.push_back(queue);
}

void forget_on_exit(TrackerQueue* queue) {
  Queues& queues = all_queues();
  const std::lock_guard lock(queues.mutex);
  std::erase(queues.queues, queue);
}

}  // namespace

bool process_is_ending() { return is_ending; }

void set_process_is_ending(bool ending) { is_ending = ending; }

struct TrackerQueue::State {
  struct Waiting {
    Call call;
    size_t bytes;
  };

  // Whether this is the process that has the thread.
  bool is_here() const { return getpid() == process; }
  // Whether the waiting calls must not wait for the end of the rest.
  bool is_urgent() const {
    return flushes_wanted > flushes || ending || bytes > options.capacity / 2;
  }
  void work();
  // Makes the call and reports its failure. False if it failed.
  bool make(const Call& call);

  std::string name;
  std::function<void(std::string_view)> report;
  TrackerQueueOptions options;
  std::unique_ptr<GeneralTracker> tracker;
  pid_t process = getpid();

  std::mutex mutex;  // guards the members below
  std::condition_variable wake;
  std::condition_variable progress;
  std::deque<Waiting> waiting;
  size_t bytes = 0;   // of the waiting calls and of the call that is being made
  uint64_t lost = 0;  // calls that did not fit or were given up
  uint64_t flushes_wanted = 0;
  uint64_t flushes = 0;
  std::optional<RunEnd> ending;
  bool resting = false;
  bool given_up = false;
  bool finished = false;
  std::thread thread;

  // Used only by the thread that makes the calls.
  uint64_t failures = 0;
  uint64_t told_failures = 0;
  std::set<std::string> reasons;
};

TrackerQueue::TrackerQueue(std::string name, std::unique_ptr<GeneralTracker> tracker,
                           std::function<void(std::string_view)> report,
                           const TrackerQueueOptions& options)
    : state_(std::make_shared<State>()) {
  state_->name = std::move(name);
  state_->report = std::move(report);
  state_->options = options;
  state_->tracker = std::move(tracker);
  if (options.threaded) state_->thread = std::thread([state = state_] { state->work(); });
  if (options.flush_on_exit) flush_on_exit(this);
}

TrackerQueue::~TrackerQueue() { finish(absl::Seconds(60)); }

GeneralTracker& TrackerQueue::tracker() { return *state_->tracker; }

void TrackerQueue::push(Call call, size_t bytes) {
  State& state = *state_;
  if (!state.is_here()) return;
  if (!state.options.threaded) {
    if (!state.finished) state.make(call);
    return;
  }
  bytes += kCallBytes;
  {
    const std::lock_guard lock(state.mutex);
    if (state.ending) return;
    if (state.bytes == 0 || state.bytes + bytes <= state.options.capacity) {
      state.waiting.push_back({std::move(call), bytes});
      state.bytes += bytes;
      if (!state.resting || state.is_urgent()) state.wake.notify_one();
      return;
    }
    if (state.lost++ > 0) return;
  }
  state.report(absl::StrCat("tracker ", state.name, " falls behind: its queue of ",
                            state.options.capacity >> 20, " MiB is full, and new values are lost"));
}

uint64_t TrackerQueue::request_flush() {
  State& state = *state_;
  if (!state.is_here()) return 0;
  if (!state.options.threaded) {
    if (!state.finished) state.make(flush);
    return 0;
  }
  const std::lock_guard lock(state.mutex);
  state.wake.notify_one();
  return ++state.flushes_wanted;
}

bool TrackerQueue::wait_flushed(uint64_t request, absl::Duration limit) {
  State& state = *state_;
  if (!state.is_here()) return false;
  if (!state.options.threaded) return true;
  std::unique_lock lock(state.mutex);
  return state.progress.wait_for(lock, bounded(limit),
                                 [&] { return state.flushes >= request || state.finished; });
}

void TrackerQueue::begin_end(RunEnd end) {
  State& state = *state_;
  if (!state.is_here() || !state.options.threaded) return;
  const std::lock_guard lock(state.mutex);
  if (!state.ending) state.ending = end;
  state.wake.notify_one();
}

void TrackerQueue::finish(absl::Duration limit, RunEnd end) {
  State& state = *state_;
  // Up to its end a signal waits for this.
  const absl::Cleanup ended = [this] {
    if (state_->options.flush_on_exit) forget_on_exit(this);
  };
  if (!state.is_here()) {
    if (state.thread.joinable()) state.thread.detach();
    return;
  }
  if (!state.options.threaded) {
    if (std::exchange(state.finished, true)) return;
    state.make([end](GeneralTracker& tracker) { end_run(tracker, end); });
  } else {
    if (!state.thread.joinable()) return;
    begin_end(end);
    std::unique_lock lock(state.mutex);
    const auto is_over = [&] { return state.finished; };
    if (!state.progress.wait_for(lock, bounded(limit), is_over)) {
      state.given_up = true;
      // Trackers that end one after the other share this limit: a limit below zero means that so
      // much of it has passed already.
      const absl::Duration last_call =
          end == RunEnd::kFailed
              ? std::min(state.options.last_call,
                         kLastCallOfFailed + std::min(limit, absl::ZeroDuration()))
              : state.options.last_call;
      state.progress.wait_for(lock, bounded(last_call), is_over);
    }
    if (!state.finished) {
      state.thread.detach();
      lock.unlock();
      state.report(
          absl::StrCat("tracker ", state.name,
                       " does not return from a call; it is abandoned with all waiting calls"));
      return;
    }
    lock.unlock();
    state.thread.join();
  }
  if (state.failures > state.told_failures || state.lost > 0) {
    state.report(absl::StrCat("tracker ", state.name, ": ", state.failures, " calls failed, ",
                              state.lost, " were never made"));
  }
}

bool TrackerQueue::has_given_up() const {
  const std::lock_guard lock(state_->mutex);
  return state_->given_up;
}

void TrackerQueue::State::work() {
  const auto interval = bounded(options.flush_interval);
  const auto idle_interval =
      bounded(std::max(options.flush_interval * kIdleIntervals, kShortestIdle));
  bool dirty = false;       // calls were made since the last flush
  bool made_calls = false;  // since the last rest
  Clock::time_point next_flush = Clock::now() + bounded(absl::InfiniteDuration());  // after `start`
  std::unique_lock lock(mutex);
  while (true) {
    if (waiting.empty() && std::exchange(made_calls, false)) {
      resting = true;
      wake.wait_until(lock, std::min(next_flush, Clock::now() + kRest),
                      [&] { return is_urgent(); });
      resting = false;
    }
    wake.wait_until(lock, next_flush, [&] { return !waiting.empty() || is_urgent(); });
    if (given_up) {
      lost += waiting.size();
      waiting.clear();
    }
    const bool due = Clock::now() >= next_flush;
    if (!waiting.empty() && !due) {
      Waiting next = std::move(waiting.front());
      waiting.pop_front();
      made_calls = true;
      lock.unlock();
      if (!std::exchange(dirty, true)) next_flush = Clock::now() + interval;
      make(next.call);
      next.call = nullptr;  // frees its values without the lock
      lock.lock();
      bytes -= next.bytes;
      continue;
    }
    if (ending && waiting.empty()) break;
    if (!due && flushes_wanted == flushes) continue;
    // A due flush comes between calls; a requested flush comes after all calls before it.
    const uint64_t wanted = waiting.empty() ? flushes_wanted : flushes;
    lock.unlock();
    dirty = !make(flush);
    next_flush = Clock::now() + (dirty ? interval : idle_interval);
    lock.lock();
    flushes = std::max(flushes, wanted);
    progress.notify_all();
  }
  const RunEnd how = *ending;
  lock.unlock();
  make([how](GeneralTracker& tracker) { end_run(tracker, how); });
  lock.lock();
  flushes = flushes_wanted;
  finished = true;
  progress.notify_all();
}

bool TrackerQueue::State::make(const Call& call) {
  std::string text;
  bool failed = true;
  try {
    call(*tracker);
    return true;
  } catch (const NotKept& remark) {
    failed = false;
    text = absl::StrCat("tracker ", name, ": ", remark.what());
  } catch (const std::exception& error) {
    text = absl::StrCat("tracker ", name, " failed: ", error.what(),
                        ". Training continues; this error is not logged again");
  } catch (...) {
    text =
        absl::StrCat("tracker ", name, " failed: it threw an object that is not a std::exception");
  }
  const bool is_new = reasons.size() < kMaxReasons && reasons.insert(text).second;
  if (failed) {
    ++failures;
    told_failures += is_new;
  }
  if (is_new) report(text);
  return !failed;
}

}  // namespace accelerate
