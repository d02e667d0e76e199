/// Work of a rank that goes on behind its training loop.
///
/// A step is called again and again until it returns true. Where nothing is to be done yet, as
/// while another rank's part is missing, it returns false at once instead of waiting. In production
/// steps run on a thread of their own, of a lower priority (nice 10) than training; in a simulation
/// on the rank's thread, at moments drawn from the seed: whenever it asks its Runtime for
/// something. So a step may use the Runtime's files(), store() and now(), and nothing else of the
/// rank's: no process group, no random numbers.
#pragma once

#include <functional>

namespace accelerate {

class BackgroundTask {
 public:
  /// Waits for the end; an exception that was not asked for is lost.
  virtual ~BackgroundTask() = default;

  /// Whether the last step was done, or threw. Does not wait.
  virtual bool is_done() = 0;

  /// Returns when it is done. Throws what a step threw, once.
  virtual void wait() = 0;
};

/// Returns whether it was the last one.
using BackgroundStep = std::function<bool()>;

}  // namespace accelerate
