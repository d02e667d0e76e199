/// Machines for tests: network namespaces with names and addresses of their own, on one switch.
///
/// Needs the rights to make namespaces and the program `ip`; a test that has neither fails.
/// Threads: one user, on a thread whose namespace it may leave for a moment.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "accelerate/platform/unique_fd.h"

namespace accelerate::launch::testing {

class Network {
 public:
  /// Machines 0 to count - 1, all connected.
  explicit Network(int count);
  /// Whatever still runs on them loses its network.
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  /// As in "10.77.0.1" and "fd77::1", for machine 0.
  std::string address(int machine) const;
  std::string address6(int machine) const;
  /// As in "node0".
  std::string name(int machine) const;

  /// Moves the calling process onto the machine. Async-signal-safe, for use after fork.
  void enter(int machine) const;

  /// Pulls the machine's cable: nothing arrives any more, without notice.
  void cut(int machine);

 private:
  struct Namespace {
    pid_t holder = 0;
    UniqueFd net;
    UniqueFd uts;
  };

  static Namespace make(const std::string& name);
  static void run_in(const Namespace& place, std::vector<std::string> command);

  Namespace hub_;
  std::vector<Namespace> machines_;
};

}  // namespace accelerate::launch::testing
