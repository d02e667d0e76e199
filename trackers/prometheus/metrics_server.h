/// A minimal HTTP server for Prometheus, which answers only GET /metrics.
///
/// One thread serves all clients without waiting for any. A client is disconnected after 5 s, after
/// 8 KiB of request, or when 32 others have connected after it.
/// Errors:  std::runtime_error naming address and port if it cannot listen there.
/// Threads: `page` is called on the server's own.
#pragma once

#include <functional>
#include <memory>
#include <string>

namespace accelerate::trackers {

class MetricsServer {
 public:
  /// `address`: the numeric IPv4 or IPv6 address of an interface. `port`: 0 for any free port.
  MetricsServer(const std::string& address, int port, std::function<std::string()> page);
  /// Disconnects clients that are not served yet.
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

  int port() const;

  /// Whether the text is a numeric address.
  static bool is_address(const std::string& address);

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

}  // namespace accelerate::trackers
