/// Nothing that was logged is lost because the process ends early.
///
/// From the first such object on SIGINT, SIGTERM and SIGHUP flush the trackers that there are
/// before they end the process as they would have, unless the program handles them itself; so does
/// std::exit. The same signal again ends it at once; all together have 5 s. Processes forked from
/// this one begin anew.
/// Errors:  none; where signals cannot be caught, they end the process as ever.
/// Threads: any. Process-wide: for ranks that own their process.
#pragma once

#include "accelerate/tracking/tracker_queue.h"

namespace accelerate {

class FlushOnExit {
 public:
  /// The queue outlives it.
  explicit FlushOnExit(TrackerQueue& queue);
  ~FlushOnExit();
  FlushOnExit(const FlushOnExit&) = delete;
  FlushOnExit& operator=(const FlushOnExit&) = delete;

 private:
  TrackerQueue& queue_;
};

}  // namespace accelerate
