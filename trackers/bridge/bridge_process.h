/// Calls a Python package in a process of its own, which runs bridge.py.
///
/// Calls are asynchronous: the next call or `flush` throws the first failure, and a call never its
/// own; a call that throws an earlier one's failure is made all the same. The package's output goes
/// to `services.info`, line by line. Keys and passwords of the environment and of `kwargs` are
/// masked in all messages. A process that ended is not started again. Without `finish`, it runs the
/// packages' exit handlers and ends with exit status 1.
/// Errors:  std::runtime_error naming package, call and exception; if the process ended, with its
///          exit status and its last output.
/// Threads: one.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "accelerate/tracking/tracker.h"
#include "trackers/bridge/python_package.h"

namespace accelerate::trackers {

struct BridgeLimits {
  /// For one call or `flush`. If the package makes no progress in that time, later calls do not
  /// wait until it does.
  absl::Duration call = absl::Seconds(10);
  /// For `finish`; then the process is killed.
  absl::Duration finish = absl::Seconds(30);
  /// Bytes that may wait for the process; further calls are dropped with an error.
  size_t unsent = size_t{16} << 20;
};

/// `name`: the package, for messages. `kwargs`: may contain secrets. The services outlive it.
std::unique_ptr<PythonPackage> make_bridge_process(std::string name,
                                                   const TrackerServices& services,
                                                   const TrackerDict& kwargs,
                                                   const BridgeLimits& limits = {});

/// Empty if Python has the module, else what is missing and how to install it. Each answer of the
/// interpreter is kept for the process.
std::string why_unavailable(const TrackerServices& services, const std::string& module);

}  // namespace accelerate::trackers
