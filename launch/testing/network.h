/// Machines for tests: network namespaces with names and addresses of their own, on one switch.
///
/// Needs the program `ip` and the right to make namespaces: of networks as root, and first one of
/// users as anybody else, who is root in it. A test that lacks one of these fails.
/// Threads: one user, on a thread whose namespace it may leave for a moment.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "accelerate/platform/unique_fd.h"

namespace accelerate::launcher::testing {

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

  Namespace make(const std::string& name);
  void run_in(const Namespace& place, std::vector<std::string> command) const;
  // Becomes root in the namespace of users, where there is one. Async-signal-safe.
  bool enter_users() const;

  UniqueFd users_;  // closed: the test is root
  Namespace hub_;
  std::vector<Namespace> machines_;
};

}  // namespace accelerate::launcher::testing
