/// HTTP requests to one service, one after the other, over connections that are kept.
///
///   HttpClient http({.username = name, .password = password});
///   const HttpAnswer answer = http.send({.method = "POST", .url = url, .body = text});
///   if (answer.status >= 400) ...
///
/// Certificates are verified, redirects are followed a few times to HTTP and HTTPS only, and the
/// credentials never go to another host than the request's own. Proxies are those of the process's
/// environment; this machine is reached without one.
/// Errors:  HttpError where nothing answered, naming the URL and the reason. No text of this class
///          holds credentials; `redact` takes them out of others.
/// Threads: one at a time. A request blocks until its time-out at the latest.
#pragma once

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
  /// Basic authentication, where one of the two is not empty.
  std::string username;
  std::string password;
  /// Bearer authentication, where it is not empty: goes before the other.
  std::string token;
  bool verify_certificates = true;
  /// A file of certificates to trust; empty: those of the system.
  std::string certificates;
  absl::Duration connect_timeout = absl::Seconds(5);
  /// Without a byte either way.
  absl::Duration stall_timeout = absl::Seconds(10);
  int max_redirects = 5;
  size_t max_answer_bytes = size_t{16} << 20;
};

struct HttpRequest {
  std::string method = "GET";
  std::string url;
  std::vector<std::pair<std::string, std::string>> headers;
  /// Not copied: it must stay until `send` returns.
  std::string_view body;
  /// For all of it.
  absl::Duration timeout = absl::Seconds(10);
  /// Whether it carries the credentials.
  bool authenticate = true;
};

struct HttpAnswer {
  int status = 0;
  std::string body;
  /// How long to wait before the next try, where the service says so.
  std::optional<absl::Duration> retry_after;
};

class HttpClient {
 public:
  explicit HttpClient(HttpOptions options = {});
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  HttpAnswer send(const HttpRequest& request);

  /// The text with stars in place of credentials, which a service may have sent back.
  std::string redact(std::string text) const;

 private:
  struct Handle;
  const HttpOptions options_;
  const std::unique_ptr<Handle> handle_;
};

/// A URL's parts. Errors: std::invalid_argument for what is no http or https URL, without showing
/// it.
struct HttpUrl {
  /// Without name, password, query and fragment, and without a slash at the end.
  std::string url;
  /// Scheme, host and port.
  std::string origin;
  std::string username;
  std::string password;
};
HttpUrl parse_http_url(const std::string& text);

/// As in a URL's path or query: all but letters, digits and -._~ is escaped.
std::string url_escape(std::string_view text);
/// The same, with slashes left as they are.
std::string url_escape_path(std::string_view path);

/// The path on this machine of "file:///a%20b", "file://localhost/a%20b" or "file:/a%20b": "/a b".
/// A "%" that two hexadecimal digits do not follow is one.
std::string path_of_file_uri(std::string_view uri);

}  // namespace accelerate::trackers
