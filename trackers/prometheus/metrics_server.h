/// Answers GET /metrics on a port of its own, and nothing else: the smallest HTTP server that
/// Prometheus scrapes.
///
/// One thread serves all clients without waiting for any. A client that is slow, says much or says
/// nothing is cut off: after 5 s, 8 KiB of request, or when 32 others came after it.
/// Errors:  std::runtime_error naming address and port where they cannot be had.
/// Threads: `page` is called on the server's own.
#pragma once

#include <functional>
#include <memory>
#include <string>

namespace accelerate::trackers {

class MetricsServer {
 public:
  /// `address`: of an interface, in numbers, of IPv4 or IPv6. `port`: 0 for one that is free.
  MetricsServer(const std::string& address, int port, std::function<std::string()> page);
  /// Clients that are not served yet are cut off.
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

  int port() const;

  /// Whether `address` can be one at all.
  static bool is_address(const std::string& address);

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

}  // namespace accelerate::trackers
