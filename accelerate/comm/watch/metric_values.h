/// Marks collectives that gather the values of metrics.
///
/// Predictions, labels and counts differ between ranks that otherwise do the same, and decide
/// nothing that a rank does next. A simulation that counts one rank for others (folding) takes them
/// as they are; other whole numbers that ranks gather it compares, because lengths, sizes and names
/// decide what ranks do.
///
/// Threads: a scope acts on its own thread.
#pragma once

#include "accelerate/base/thread_scope.h"

namespace accelerate {

/// While it lives, collectives that this thread calls gather the values of metrics.
struct MetricValues : internal::ThreadScope<MetricValues, bool> {
  MetricValues() : ThreadScope(true) {}
};

}  // namespace accelerate
