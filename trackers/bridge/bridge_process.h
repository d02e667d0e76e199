/// A Python package in a process of its own: bridge.py makes the calls that are written to it.
///
/// Calls are written and not waited for; what became of them is known later, and the first failure
/// is thrown by the next call or by `flush`. What the package prints goes to `services.info`, line
/// by line. Keys and passwords of the environment and of `kwargs` are masked in all that is said.
/// A process that died is not started again; one that is not told to finish ends with exit status 1
/// after what packages do at the end of a program.
/// Errors:  std::runtime_error naming package, call and exception; for one that died, how it ended
///          and what it printed last.
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
  /// Of one call or `flush`. Where the package did nothing in that time, none waits any more until
  /// it does something.
  absl::Duration call = absl::Seconds(10);
  /// Of `finish`; then the process is killed.
  absl::Duration finish = absl::Seconds(30);
  /// Bytes that wait for the process; calls beyond that are dropped, with an error.
  size_t unsent = size_t{16} << 20;
};

class BridgeProcess : public PythonPackage {
 public:
  /// `name`: the package, for what is said. `kwargs`: what it may hold of secrets.
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
  // Moves what can be moved without waiting.
  void pump();
  void take(const std::string& answer);
  // Whether it came true. Gives up when the package does nothing for long.
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
  size_t sent_ = 0;  // bytes of that, all the same
  std::string partial_answer_;
  std::map<uint64_t, std::string> unanswered_;  // by id, what was asked
  uint64_t requests_ = 0;
  uint64_t answers_ = 0;
  bool stuck_ = false;   // it did nothing for as long as a call may take
  std::string failure_;  // the first that was not thrown yet
};

/// Empty if Python and the module are there, else what is missing and how to get it. Asked of the
/// interpreter once per process.
std::string why_unavailable(const TrackerServices& services, const std::string& module);

}  // namespace accelerate::trackers
