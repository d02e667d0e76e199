/// Sends HTTP requests to one service, one after the other, over persistent connections, and says
/// when to try again.
///
///   HttpClient http({.username = name, .password = password});
///   const HttpAnswer answer = http.send({.method = "POST", .url = url, .body = text});
///   if (answer.status >= 400) ...
///
/// Certificates are verified. Redirects are followed a few times, to HTTP and HTTPS only, and the
/// credentials are sent to the request's own host only. The proxies of the process's environment
/// are used, except for this machine's own addresses.
/// Errors: HttpError if there is no answer, naming the URL and the reason. Errors never contain
///         credentials; `redact` removes them from other texts.
/// Threads: one at a time. A request blocks until its time-out at the latest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/time/time.h"

namespace accelerate::trackers {

class HttpError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct HttpOptions {
  /// Basic authentication, if one of the two is not empty.
  std::string username;
  std::string password;
  /// Bearer authentication, if it is not empty; it takes precedence.
  std::string token;
  bool verify_certificates = true;
  /// A file of trusted certificates; empty: the system's.
  std::string certificates;
  size_t max_answer_bytes = size_t{16} << 20;
};

struct HttpRequest {
  std::string method = "GET";
  std::string url;
  std::vector<std::pair<std::string, std::string>> headers;
  /// Not copied: it must live until `send` returns.
  std::string_view body;
  /// For the whole request.
  absl::Duration timeout = absl::Seconds(10);
  /// Whether the credentials are sent.
  bool authenticate = true;
};

struct HttpAnswer {
  int status = 0;
  std::string body;
  /// How long to wait before the next try, if the service asks for it.
  std::optional<absl::Duration> retry_after;
};

class HttpClient {
 public:
  explicit HttpClient(HttpOptions options = {});
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  HttpAnswer send(const HttpRequest& request);

  /// The text, such as an answer of the service, with stars in place of credentials.
  std::string redact(std::string text) const;

 private:
  struct Handle;
  const HttpOptions options_;
  const std::unique_ptr<Handle> handle_;
};

/// The parts of a URL. Errors: std::invalid_argument if it is not an http or https URL; the message
/// does not show it.
struct HttpUrl {
  /// Without name, password, query and fragment, and without a slash at the end.
  std::string url;
  /// Scheme, host and port.
  std::string origin;
  std::string username;
  std::string password;
};
HttpUrl parse_http_url(const std::string& text);

/// Escapes all characters but letters, digits and -._~, for a URL's path or query.
std::string url_escape(std::string_view text);
/// The same, but keeps slashes.
std::string url_escape_path(std::string_view path);

/// The path on this machine of "file:///a%20b", "file://localhost/a%20b" or "file:/a%20b": "/a b".
/// A "%" without two hexadecimal digits behind it stands for itself.
std::string path_of_file_uri(std::string_view uri);

struct RetryGateOptions {
  absl::Duration first = absl::Seconds(1);
  absl::Duration longest = absl::Minutes(1);
  /// The longest delay that a service may ask for.
  absl::Duration longest_asked_for = absl::Hours(1);
};

/// Decides when to call a service again after failures: exponential back-off with jitter.
///
///   if (!gate.is_open(now)) return;  // retry later
///   try { send(); gate.succeeded(); } catch (const Away&) { gate.failed(now); throw; }
///
/// It never sleeps. The n-th failure in a row closes it for `first` times 2^(n-1), at most
/// `longest`, minus a random part of up to a half. Threads: one.
class RetryGate {
 public:
  explicit RetryGate(uint64_t random_bits, const RetryGateOptions& options = {});

  bool is_open(absl::Time now) const { return now >= next_; }
  /// When it opens; InfinitePast if it was never closed.
  absl::Time next() const { return next_; }

  /// `retry_after`: the delay that the service asked for, which counts if it is longer.
  void failed(absl::Time now, std::optional<absl::Duration> retry_after = std::nullopt);
  void succeeded();
  /// Opens it and forgets earlier failures, unless the service asked for a longer delay.
  void hurry();

 private:
  const RetryGateOptions options_;
  uint64_t random_state_;
  int failures_ = 0;  // in a row
  absl::Time asked_for_ = absl::InfinitePast();
  absl::Time next_ = absl::InfinitePast();
};

}  // namespace accelerate::trackers
