/// One tracker, called behind the training loop.
///
/// Calls are put into a queue, which a thread of its own takes them from; without a thread, as in a
/// simulation, they are made at once. The loop never waits: where the tracker falls behind by more
/// than the queue may hold, what comes is dropped and counted. What a call throws is reported, each
/// reason once.
/// Errors:  none; what goes wrong is reported.
/// Threads: the rank's; `request_flush`, `wait_flushed` and `drain` any. A process forked from this
///          one has the object without its thread: there nothing happens.
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
  /// Bytes, about, of values that wait.
  size_t capacity = size_t{256} << 20;
  /// How long the tracker may hold back what it was told.
  absl::Duration flush_interval = absl::Seconds(1);
  /// How long `finish` waits for the call that is being made when its limit has passed.
  absl::Duration last_call = absl::Seconds(15);
  /// What the tracker uses; lives as long as it does.
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

  /// `report` is told what is to be said; on any thread.
  TrackerQueue(std::string name, std::unique_ptr<GeneralTracker> tracker,
               std::function<void(std::string_view)> report,
               const TrackerQueueOptions& options = {});
  /// Finishes it, if nobody did.
  ~TrackerQueue();
  TrackerQueue(const TrackerQueue&) = delete;
  TrackerQueue& operator=(const TrackerQueue&) = delete;

  const std::string& name() const;

  /// Local; does not wait. `bytes` is about what the call holds. Nothing happens after the end.
  void push(Call call, size_t bytes);

  /// Asks for a flush after all calls so far; what it returns is for `wait_flushed`.
  uint64_t request_flush();
  /// Whether that flush came before `limit` had passed.
  bool wait_flushed(uint64_t request, absl::Duration limit);
  /// Both.
  bool drain(absl::Duration limit) { return wait_flushed(request_flush(), limit); }

  /// Makes what waits, and `finish` or `abandon` of the tracker, the last calls. Does not wait.
  void begin_end(RunEnd end);
  /// Waits for them. After `limit` what still waits is given up, and a call that does not return
  /// is left behind; both are reported.
  void finish(absl::Duration limit, RunEnd end = RunEnd::kDone);

  /// Whether `finish` gave up what waits.
  bool has_given_up() const;

  /// Between calls: after a `drain` and before the next `push`.
  GeneralTracker& tracker();

 private:
  struct State;

  // Shared with the thread, which may have to be left behind.
  const std::shared_ptr<State> state_;
};

}  // namespace accelerate
