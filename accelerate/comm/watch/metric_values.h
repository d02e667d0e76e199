/// Marks collectives that gather the values of metrics.
///
/// Predictions, labels and counts differ between ranks that otherwise do the same, and decide
/// nothing that a rank does next. A simulation that counts one rank for others (folding) takes them
/// as they are; other whole numbers that ranks gather it compares, because lengths, sizes and names
/// decide what ranks do.
///
/// Threads: a scope acts on its own thread.
#pragma once

#include <utility>

namespace accelerate {

/// While it lives, collectives that this thread calls gather the values of metrics.
class MetricValues {
 public:
  MetricValues() : outer_(std::exchange(current_, true)) {}
  ~MetricValues() { current_ = outer_; }
  MetricValues(const MetricValues&) = delete;
  MetricValues& operator=(const MetricValues&) = delete;

  /// Whether one lives on this thread.
  static bool current() { return current_; }

 private:
  static inline thread_local bool current_ = false;
  const bool outer_;
};

}  // namespace accelerate
