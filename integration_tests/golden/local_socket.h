/// A port of this machine in a state that cases name: free, bound, listening, ...
///
/// Errors: CaseError for a state that is unknown or cannot be had on this machine.
/// Threads: one.
#pragma once

#include <string>

namespace accelerate::golden {

class LocalSocket {
 public:
  explicit LocalSocket(const std::string& state);
  ~LocalSocket();
  LocalSocket(const LocalSocket&) = delete;
  LocalSocket& operator=(const LocalSocket&) = delete;

  int port() const { return port_; }

 private:
  int fd_ = -1;
  int port_ = 0;
};

}  // namespace accelerate::golden
