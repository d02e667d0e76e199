/// A web server on this machine's loopback, for tests of what speaks HTTP/1.1.
///
///   HttpServer server([](const HttpServerRequest& request) {
///     return HttpServerAnswer{.status = 200, .body = "hello"};
///   });
///   http.send({.url = server.url() + "/path"});
///
/// The handler is called on a thread per connection, several at once. A body needs a
/// Content-Length. The destructor closes connections and returns when all threads are done: a
/// handler that waits must have been let go.
/// Errors:  std::runtime_error for a socket that cannot be had.
/// Threads: the owner's.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace accelerate::trackers {

struct HttpServerRequest {
  std::string method;
  /// Unescaped, without the query.
  std::string path;
  /// Unescaped, by name.
  std::map<std::string, std::string> query;
  /// By name in lower case.
  std::map<std::string, std::string> headers;
  std::string body;
};

struct HttpServerAnswer {
  int status = 200;
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;
  /// Closes the connection instead.
  bool hang_up = false;
};

struct HttpServerOptions {
  /// Else connections are refused until `listen`; the port is known already.
  bool listening = true;
};

class HttpServer {
 public:
  using Handler = std::function<HttpServerAnswer(const HttpServerRequest&)>;

  explicit HttpServer(Handler handler, const HttpServerOptions& options = {});
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  void listen();
  int port() const { return port_; }
  /// Without a slash at the end.
  std::string url() const;
  /// How many were accepted so far.
  int connections();

 private:
  void accept_all();
  void serve(int fd);

  const Handler handler_;
  int fd_ = -1;
  int port_ = 0;
  std::mutex mutex_;  // of all below but the acceptor
  bool stopping_ = false;
  int accepted_ = 0;
  std::vector<int> open_;
  std::vector<std::thread> threads_;
  std::thread acceptor_;
};

}  // namespace accelerate::trackers
