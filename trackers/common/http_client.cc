#include "trackers/common/http_client.h"

#include <curl/curl.h>

#include <algorithm>
#include <mutex>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "trackers/common/numbers.h"

namespace accelerate::trackers {
namespace {

constexpr long kMaxRedirects = 5;
constexpr long kConnectMilliseconds = 5000;
// The longest time without a byte in either direction.
constexpr long kStallSeconds = 10;

struct Free {
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
  void operator()(CURLU* url) const { curl_url_cleanup(url); }
};
using Headers = std::unique_ptr<curl_slist, Free>;
using ParsedUrl = std::unique_ptr<CURLU, Free>;

ParsedUrl parse(const std::string& text) {
  ParsedUrl url(curl_url());
  return url && curl_url_set(url.get(), CURLUPART_URL, text.c_str(), 0) == CURLUE_OK
             ? std::move(url)
             : nullptr;
}

std::string part(const ParsedUrl& url, CURLUPart which, unsigned flags = 0) {
  char* text = nullptr;
  if (curl_url_get(url.get(), which, &text, flags) != CURLUE_OK) return {};
  std::string result(text);
  curl_free(text);
  return result;
}

void remove_parts(const ParsedUrl& url, std::initializer_list<CURLUPart> parts) {
  for (const CURLUPart which : parts) curl_url_set(url.get(), which, nullptr, 0);
}

std::string without_slashes_behind(std::string url) {
  url.erase(url.find_last_not_of('/') + 1);
  return url;
}

// The URL as errors show it.
std::string shown(const std::string& text) {
  const ParsedUrl url = parse(text);
  if (!url) return "(no URL)";
  remove_parts(url, {CURLUPART_USER, CURLUPART_PASSWORD, CURLUPART_QUERY});
  return part(url, CURLUPART_URL);
}

bool is_loopback(const ParsedUrl& url) {
  const std::string host = part(url, CURLUPART_HOST);
  return host == "localhost" || host == "[::1]" || absl::StartsWith(host, "127.");
}

struct Received {
  std::string body;
  size_t limit = 0;
};

size_t receive(char* data, size_t size, size_t count, void* to) {
  auto& received = *static_cast<Received*>(to);
  if (received.body.size() + size * count > received.limit) return 0;
  received.body.append(data, size * count);
  return size * count;
}

}  // namespace

struct HttpClient::Handle {
  CURL* curl = nullptr;
  char error[CURL_ERROR_SIZE] = {};

  Handle() {
    static std::once_flag once;
    std::call_once(once, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });
    curl = curl_easy_init();
    if (curl == nullptr) throw HttpError("libcurl cannot make a handle");
  }
  ~Handle() { curl_easy_cleanup(curl); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  template <typename Value>
  void set(CURLoption option, Value value) {
    if (const CURLcode code = curl_easy_setopt(curl, option, value); code != CURLE_OK) {
      throw HttpError(absl::StrCat("libcurl refuses option ", static_cast<int>(option), ": ",
                                   curl_easy_strerror(code)));
    }
  }
};

HttpClient::HttpClient(HttpOptions options)
    : options_(std::move(options)), handle_(std::make_unique<Handle>()) {}

HttpClient::~HttpClient() = default;

HttpAnswer HttpClient::send(const HttpRequest& request) {
  Handle& handle = *handle_;
  const ParsedUrl url = parse(request.url);
  if (!url) throw HttpError(absl::StrCat(request.method, ": no URL"));
  // A reset keeps the connections.
  curl_easy_reset(handle.curl);
  handle.error[0] = '\0';
  handle.set(CURLOPT_ERRORBUFFER, handle.error);
  // Without this option libcurl ends slow name lookups by SIGALRM, which is the program's.
  handle.set(CURLOPT_NOSIGNAL, 1L);
  handle.set(CURLOPT_URL, request.url.c_str());
  handle.set(CURLOPT_CUSTOMREQUEST, request.method.c_str());
  // A server must not redirect to file:// or to other protocols.
  handle.set(CURLOPT_PROTOCOLS_STR, "http,https");
  handle.set(CURLOPT_REDIR_PROTOCOLS_STR, "http,https");
  handle.set(CURLOPT_FOLLOWLOCATION, 1L);
  handle.set(CURLOPT_MAXREDIRS, kMaxRedirects);
  // By default a redirected POST becomes a GET.
  handle.set(CURLOPT_POSTREDIR, static_cast<long>(CURL_REDIR_POST_ALL));
  // A proxy on another machine cannot reach the addresses of this one.
  if (is_loopback(url)) handle.set(CURLOPT_NOPROXY, "*");
  const long milliseconds = static_cast<long>(absl::ToInt64Milliseconds(request.timeout));
  // 0 would mean no limit.
  handle.set(CURLOPT_TIMEOUT_MS, std::max(milliseconds, 1L));
  handle.set(CURLOPT_CONNECTTIMEOUT_MS, kConnectMilliseconds);
  handle.set(CURLOPT_LOW_SPEED_LIMIT, 1L);
  handle.set(CURLOPT_LOW_SPEED_TIME, kStallSeconds);
  if (!options_.verify_certificates) {
    handle.set(CURLOPT_SSL_VERIFYPEER, 0L);
    handle.set(CURLOPT_SSL_VERIFYHOST, 0L);
  }
  if (!options_.certificates.empty()) {
    handle.set(CURLOPT_CAINFO, options_.certificates.c_str());
  }
  if (request.authenticate && !options_.token.empty()) {
    handle.set(CURLOPT_HTTPAUTH, static_cast<long>(CURLAUTH_BEARER));
    handle.set(CURLOPT_XOAUTH2_BEARER, options_.token.c_str());
  } else if (request.authenticate && !(options_.username.empty() && options_.password.empty())) {
    handle.set(CURLOPT_HTTPAUTH, static_cast<long>(CURLAUTH_BASIC));
    handle.set(CURLOPT_USERNAME, options_.username.c_str());
    handle.set(CURLOPT_PASSWORD, options_.password.c_str());
  }

  // Without this header, libcurl waits for "100 Continue" before it sends a long body.
  Headers headers(curl_slist_append(nullptr, "Expect:"));
  for (const auto& [name, value] : request.headers) {
    curl_slist_append(headers.get(), absl::StrCat(name, ": ", value).c_str());
  }
  handle.set(CURLOPT_HTTPHEADER, headers.get());
  if (request.method != "GET") {
    // For a null pointer libcurl would read the body from standard input.
    handle.set(CURLOPT_POSTFIELDS, request.body.data() == nullptr ? "" : request.body.data());
    handle.set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
  }
  Received received{.limit = options_.max_answer_bytes};
  handle.set(CURLOPT_WRITEFUNCTION, &receive);
  handle.set(CURLOPT_WRITEDATA, &received);

  if (const CURLcode code = curl_easy_perform(handle.curl); code != CURLE_OK) {
    std::string reason = handle.error[0] != '\0' ? handle.error : curl_easy_strerror(code);
    if (code == CURLE_WRITE_ERROR) {
      reason = absl::StrCat("the answer is longer than ", options_.max_answer_bytes, " bytes");
    }
    throw HttpError(redact(absl::StrCat(request.method, " ", shown(request.url), ": ", reason)));
  }
  HttpAnswer answer{.body = std::move(received.body)};
  long status = 0;
  curl_easy_getinfo(handle.curl, CURLINFO_RESPONSE_CODE, &status);
  answer.status = static_cast<int>(status);
  curl_off_t seconds = 0;
  if (curl_easy_getinfo(handle.curl, CURLINFO_RETRY_AFTER, &seconds) == CURLE_OK && seconds > 0) {
    answer.retry_after = absl::Seconds(seconds);
  }
  return answer;
}

std::string HttpClient::redact(std::string text) const {
  const std::string basic =
      absl::Base64Escape(absl::StrCat(options_.username, ":", options_.password));
  std::vector<std::string> secrets = {options_.token, options_.password};
  if (!options_.password.empty()) secrets.push_back(basic);
  for (const std::string& secret : secrets) {
    if (!secret.empty()) text = absl::StrReplaceAll(text, {{secret, "***"}});
  }
  return text;
}

HttpUrl parse_http_url(const std::string& text) {
  const ParsedUrl url = parse(text);
  const std::string scheme = url ? part(url, CURLUPART_SCHEME) : "";
  if (scheme != "http" && scheme != "https") {
    throw std::invalid_argument("it is not a URL that begins with http:// or https://");
  }
  HttpUrl result{.username = part(url, CURLUPART_USER, CURLU_URLDECODE),
                 .password = part(url, CURLUPART_PASSWORD, CURLU_URLDECODE)};
  remove_parts(url, {CURLUPART_USER, CURLUPART_PASSWORD, CURLUPART_FRAGMENT, CURLUPART_QUERY});
  result.url = without_slashes_behind(part(url, CURLUPART_URL));
  curl_url_set(url.get(), CURLUPART_PATH, "", 0);
  result.origin = without_slashes_behind(part(url, CURLUPART_URL));
  return result;
}

std::string url_escape(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (absl::ascii_isalnum(static_cast<unsigned char>(c)) || absl::StrContains("-._~", c)) {
      result += c;
    } else {
      absl::StrAppend(&result, "%", absl::Hex(static_cast<unsigned char>(c), absl::kZeroPad2));
    }
  }
  return result;
}

std::string url_escape_path(std::string_view path) {
  return absl::StrReplaceAll(url_escape(path), {{"%2f", "/"}});
}

std::string path_of_file_uri(std::string_view uri) {
  for (const std::string_view beginning : {"file:", "//"}) {
    if (uri.starts_with(beginning)) uri.remove_prefix(beginning.size());
  }
  if (uri.starts_with("localhost/")) uri.remove_prefix(uri.find('/'));
  if (uri.empty()) return {};  // libcurl takes a size of 0 for a text with a zero at its end
  int size = 0;
  char* const text = curl_easy_unescape(nullptr, uri.data(), static_cast<int>(uri.size()), &size);
  std::string path(text, static_cast<size_t>(size));
  curl_free(text);
  return path;
}

RetryGate::RetryGate(uint64_t random_bits, const RetryGateOptions& options)
    : options_(options), random_state_(random_bits) {}

void RetryGate::failed(absl::Time now, std::optional<absl::Duration> retry_after) {
  // The shift must not overflow; `longest` is reached long before.
  const absl::Duration delay =
      std::min(options_.longest, options_.first * (int64_t{1} << std::min(failures_, 30)));
  ++failures_;
  const double fraction = static_cast<double>(next_random(random_state_) >> 11) / (1LL << 53);
  if (retry_after) {
    asked_for_ = std::max(asked_for_, now + std::min(*retry_after, options_.longest_asked_for));
  }
  next_ = std::max(now + delay * (1 - fraction / 2), asked_for_);
}

void RetryGate::succeeded() {
  failures_ = 0;
  asked_for_ = next_ = absl::InfinitePast();
}

void RetryGate::hurry() {
  failures_ = 0;
  next_ = asked_for_;
}

}  // namespace accelerate::trackers
