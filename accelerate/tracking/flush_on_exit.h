/// Flushes trackers before the process ends, so that nothing that was logged is lost.
///
/// From the first FlushOnExit on, SIGINT, SIGTERM and SIGHUP flush the trackers before they end the
/// process as usual, unless the program handles these signals itself; so does std::exit. The same
/// signal again ends the process at once. All trackers together have 5 s. A forked process starts
/// without any tracker.
/// Errors:  none. Where signals cannot be caught, they end the process as usual.
/// Threads: any. Process-wide: for ranks that own their process.
#pragma once

namespace accelerate {

class TrackerQueue;

class FlushOnExit {
 public:
  /// `queue` outlives it.
  explicit FlushOnExit(TrackerQueue& queue);
  ~FlushOnExit();
  FlushOnExit(const FlushOnExit&) = delete;
  FlushOnExit& operator=(const FlushOnExit&) = delete;

 private:
  TrackerQueue& queue_;
};

/// True from a signal or std::exit on: a tracker that is flushed then is not flushed again, and
/// writes all that it holds back.
bool process_is_ending();

/// For FlushOnExit, and for tests.
void set_process_is_ending(bool ending);

}  // namespace accelerate
