/// Calls a Python package in a process of its own, which runs bridge.py.
///
/// Calls are asynchronous: the next call or `flush` throws the first failure. The package's output
/// goes to `services.info`, line by line. Keys and passwords of the environment and of `kwargs` are
/// masked in all messages. A process that ended is not started again. Without `finish`, it runs the
/// packages' exit handlers and ends with exit status 1.
/// Errors:  std::runtime_error naming package, call and exception; if the process ended, with its
///          exit status and its last output.
/// Threads: one.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/time/time.h"
#include "accelerate/tracking/tracker.h"
#include "trackers/bridge/python_package.h"
#include "trackers/bridge/python_process.h"
#include "trackers/common/secrets.h"

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

class BridgeProcess : public PythonPackage {
 public:
  /// `name`: the package, for messages. `kwargs`: may contain secrets.
  BridgeProcess(std::string name, const TrackerServices& services, const TrackerDict& kwargs,
                const BridgeLimits& limits = {});

  void start() override;
  void call(const PythonCall& call) override;
  void set(const std::string& path, const TrackerValue& value) override;
  void set_item(const std::string& path, const std::string& key,
                const TrackerValue& value) override;
  void load(const std::string& file) override;
  void flush() override;
  void finish() override;

 private:
  void request(nlohmann::json line, const std::string& what);
  // Writes and reads as much as is possible without waiting.
  void pump();
  void take(const std::string& answer);
  // Whether the condition becomes true within `limit`. Gives up early if the package is stuck.
  template <typename Condition>
  bool wait_until(absl::Duration limit, const Condition& condition);
  void throw_failure();
  [[noreturn]] void fail(std::string_view text) const;
  std::string that_it_died();

  const std::string name_;
  const TrackerServices& services_;
  const Secrets secrets_;
  const BridgeLimits limits_;
  std::unique_ptr<PythonProcess> process_;
  bool finished_ = false;
  std::string unsent_;
  size_t sent_ = 0;  // the first bytes of `unsent_`, which were sent
  std::string partial_answer_;
  std::map<uint64_t, std::string> unanswered_;  // the calls' names by id
  uint64_t requests_ = 0;
  uint64_t answers_ = 0;
  bool stuck_ = false;   // no progress for the limit of a call
  std::string failure_;  // the first one that was not thrown yet
};

}  // namespace accelerate::trackers
