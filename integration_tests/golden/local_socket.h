/// A port of this machine in a state that cases name: free, bound, listening, ...
///
/// Errors: CaseError for a state that is unknown or cannot be had on this machine.
/// Threads: one.
#pragma once

#include <string>

namespace accelerate::golden {

class LocalSocket {
 public:
  /// Port 0 is one that the system chooses. Where another program has the port already, that
  /// program stands in.
  explicit LocalSocket(const std::string& state, int port = 0);
  ~LocalSocket();
  LocalSocket(const LocalSocket&) = delete;
  LocalSocket& operator=(const LocalSocket&) = delete;

  int port() const { return port_; }

 private:
  int fd_ = -1;
  int port_ = 0;
};

}  // namespace accelerate::golden
