/// Calls one tracker asynchronously.
///
/// A thread takes the calls from a queue and makes them. Without a thread, as in a simulation,
/// calls are made at once. The training loop never waits: if the queue is full, further calls are
/// dropped and counted. Each distinct error of a call is reported once.
/// Errors: none; failures are reported.
/// Threads: the rank's; `request_flush`, `wait_flushed` and `drain` any. In a forked process, which
///          does not have the thread, the calls do nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/time/time.h"
#include "accelerate/tracking/tracker.h"

namespace accelerate {

struct TrackerQueueOptions {
  /// Whether it has a thread of its own.
  bool threaded = true;
  /// The approximate bytes of values that may wait.
  size_t capacity = size_t{256} << 20;
  /// How long the tracker may buffer values.
  absl::Duration flush_interval = absl::Seconds(1);
  /// How long `finish` waits for a call in progress after its limit has passed.
  absl::Duration last_call = absl::Seconds(15);
  /// Flushes the tracker before the process ends, until `finish` has ended it, so that nothing that
  /// was logged is lost. From the first such queue on, SIGINT, SIGTERM and SIGHUP flush before they
  /// end the process as usual, unless the program handles these signals itself or they cannot be
  /// caught; so does std::exit. The same signal again ends the process at once. All queues together
  /// have 5 s. A forked process starts without any queue. For ranks that own their process.
  bool flush_on_exit = false;
  /// Lives as long as the tracker, which may use it.
  std::shared_ptr<const void> keep_alive = nullptr;
};

/// How a run ends.
enum class RunEnd {
  kDone,
  kFailed,  ///< by an exception
};

class TrackerQueue {
 public:
  using Call = std::function<void(GeneralTracker&)>;

  /// `report` gets messages for the user, on any thread.
  TrackerQueue(std::string name, std::unique_ptr<GeneralTracker> tracker,
               std::function<void(std::string_view)> report,
               const TrackerQueueOptions& options = {});
  /// Calls `finish` unless it was called.
  ~TrackerQueue();
  TrackerQueue(const TrackerQueue&) = delete;
  TrackerQueue& operator=(const TrackerQueue&) = delete;

  /// Local; does not wait. `bytes`: the approximate size of the call's values. Does nothing after
  /// the end.
  void push(Call call, size_t bytes);

  /// Requests a flush after all calls so far. Returns an argument for `wait_flushed`.
  uint64_t request_flush();
  /// Waits for that flush. False if `limit` passes before.
  bool wait_flushed(uint64_t request, absl::Duration limit);
  /// Both.
  bool drain(absl::Duration limit) { return wait_flushed(request_flush(), limit); }

  /// Accepts no further calls: the waiting ones, then the tracker's `finish` or `abandon`, are the
  /// last. Does not wait.
  void begin_end(RunEnd end);
  /// Waits for the last calls. After `limit`, waiting calls are dropped, and a call that does not
  /// return is left running; both are reported.
  void finish(absl::Duration limit, RunEnd end = RunEnd::kDone);

  /// Whether `finish` has dropped waiting calls.
  bool has_given_up() const;

  /// Use it only between calls: after a `drain` and before the next `push`.
  GeneralTracker& tracker();

 private:
  struct State;

  // Shared with the thread, which may have to be left running.
  const std::shared_ptr<State> state_;
};

/// True from a signal or std::exit on: a tracker that is flushed then is not flushed again, and
/// writes all that it holds back.
bool process_is_ending();

/// For queues that flush on exit, and for tests.
void set_process_is_ending(bool ending);

}  // namespace accelerate
