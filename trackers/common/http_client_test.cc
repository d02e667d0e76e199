#include "trackers/common/http_client.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "trackers/testing/http_server.h"

namespace accelerate::trackers {
namespace {

constexpr char kPassword[] = "s3cret-of-mine";

std::string error_of(HttpClient& http, const HttpRequest& request) {
  try {
    http.send(request);
  } catch (const HttpError& error) {
    return error.what();
  }
  return "";
}

TEST(HttpClient, SendsMethodHeadersAndBodyOverOneConnection) {
  HttpServer server([](const HttpServerRequest& request) {
    return HttpServerAnswer{.status = 201,
                            .body = request.method + " " + request.path + " " +
                                    request.query.at("a b") + " " + request.headers.at("x-kind") +
                                    " " + request.body};
  });
  HttpClient http;
  for (const char* method : {"POST", "PUT", "PATCH"}) {
    const HttpAnswer answer = http.send({.method = method,
                                         .url = server.url() + "/p?a%20b=" + url_escape("c&d/é"),
                                         .headers = {{"X-Kind", "test"}},
                                         .body = "text"});
    EXPECT_EQ(answer.status, 201);
    EXPECT_EQ(answer.body, std::string(method) + " /p c&d/é test text");
  }
  EXPECT_EQ(server.connections(), 1);
}

TEST(HttpClient, AnEmptyBodyAndAGetHaveNone) {
  HttpServer server([](const HttpServerRequest& request) {
    return HttpServerAnswer{.body = request.method + " " + std::to_string(request.body.size())};
  });
  HttpClient http;
  EXPECT_EQ(http.send({.method = "POST", .url = server.url()}).body, "POST 0");
  EXPECT_EQ(http.send({.url = server.url(), .body = "ignored"}).body, "GET 0");
}

TEST(HttpClient, SendsABodyOfMegabytes) {
  HttpServer server([](const HttpServerRequest& request) {
    return HttpServerAnswer{.body = std::to_string(request.body.size()) + request.body.back()};
  });
  HttpClient http;
  const std::string body = std::string(5000000, 'a') + 'z';
  EXPECT_EQ(http.send({.method = "PUT", .url = server.url(), .body = body}).body, "5000001z");
}

TEST(HttpClient, CarriesCredentialsOnlyWhereTheyBelong) {
  HttpServer server([](const HttpServerRequest& request) {
    const auto found = request.headers.find("authorization");
    return HttpServerAnswer{.body = found == request.headers.end() ? "none" : found->second};
  });
  HttpClient basic({.username = "me", .password = "pw"});
  EXPECT_EQ(basic.send({.url = server.url()}).body, "Basic bWU6cHc=");
  EXPECT_EQ(basic.send({.url = server.url(), .authenticate = false}).body, "none");
  HttpClient bearer({.token = "abc"});
  EXPECT_EQ(bearer.send({.url = server.url()}).body, "Bearer abc");
  HttpClient nobody;
  EXPECT_EQ(nobody.send({.url = server.url()}).body, "none");
}

TEST(HttpClient, DoesNotTakeCredentialsToWhereItIsRedirected) {
  HttpServer other([](const HttpServerRequest& request) {
    return HttpServerAnswer{.body = request.headers.contains("authorization") ? "told" : "not"};
  });
  HttpServer server([&](const HttpServerRequest& /*request*/) {
    return HttpServerAnswer{.status = 307, .headers = {{"Location", other.url() + "/x"}}};
  });
  HttpClient basic({.username = "me", .password = "pw"});
  EXPECT_EQ(basic.send({.url = server.url()}).body, "not");
  HttpClient bearer({.token = "abc"});
  EXPECT_EQ(bearer.send({.url = server.url()}).body, "not");
}

TEST(HttpClient, FollowsRedirectsAFewTimesWithTheBody) {
  int left = 3;
  HttpServer server([&](const HttpServerRequest& request) {
    if (left-- > 0) return HttpServerAnswer{.status = 302, .headers = {{"Location", "/again"}}};
    return HttpServerAnswer{.body = request.method + " " + request.body};
  });
  HttpClient http;
  EXPECT_EQ(http.send({.method = "POST", .url = server.url(), .body = "kept"}).body, "POST kept");
  left = 100;
  EXPECT_NE(error_of(http, {.url = server.url()}).find("redirects"), std::string::npos);
  EXPECT_EQ(left, 94);
}

TEST(HttpClient, DoesNotFollowToFiles) {
  HttpServer server([](const HttpServerRequest& /*request*/) {
    return HttpServerAnswer{.status = 302, .headers = {{"Location", "file:///etc/passwd"}}};
  });
  HttpClient http;
  EXPECT_NE(error_of(http, {.url = server.url()}), "");
  EXPECT_NE(error_of(http, {.url = "file:///etc/passwd"}), "");
}

TEST(HttpClient, NamesTheAddressWithoutCredentials) {
  int port = 0;
  {
    HttpServer gone([](const HttpServerRequest&) { return HttpServerAnswer{}; });
    port = gone.port();
  }
  HttpClient http({.username = "me", .password = kPassword, .token = kPassword});
  const std::string address = "127.0.0.1:" + std::to_string(port) + "/where";
  const std::string error = error_of(
      http, {.url = "http://user:" + std::string(kPassword) + "@" + address + "?key=" + kPassword});
  EXPECT_NE(error.find("GET http://" + address), std::string::npos) << error;
  EXPECT_EQ(error.find(kPassword), std::string::npos) << error;
  EXPECT_EQ(http.redact("it is " + std::string(kPassword) + "."), "it is ***.");
  EXPECT_EQ(HttpClient({.username = "me", .password = "pw"}).redact("Basic bWU6cHc="), "Basic ***");
}

TEST(HttpClient, GivesUpAServerThatDoesNotAnswer) {
  absl::Notification let_go;
  HttpServer server([&](const HttpServerRequest& /*request*/) {
    let_go.WaitForNotification();
    return HttpServerAnswer{};
  });
  HttpClient http;
  const std::string error =
      error_of(http, {.url = server.url(), .timeout = absl::Milliseconds(50)});
  EXPECT_NE(error.find("imed out"), std::string::npos) << error;
  let_go.Notify();
  // The client is of use afterwards.
  EXPECT_EQ(http.send({.url = server.url()}).status, 200);
}

TEST(HttpClient, ReportsAConnectionThatBreaksAndAnAnswerThatIsTooLong) {
  HttpServer server([](const HttpServerRequest& request) {
    return HttpServerAnswer{.body = std::string(2000, 'x'), .hang_up = request.path == "/hang"};
  });
  HttpClient http({.max_answer_bytes = 1000});
  EXPECT_NE(error_of(http, {.url = server.url() + "/hang"}), "");
  EXPECT_NE(error_of(http, {.url = server.url()}).find("longer than 1000 bytes"),
            std::string::npos);
}

TEST(HttpClient, TellsWhenToComeAgain) {
  HttpServer server([](const HttpServerRequest& /*request*/) {
    return HttpServerAnswer{.status = 429, .body = "busy", .headers = {{"Retry-After", "7"}}};
  });
  HttpClient http;
  const HttpAnswer answer = http.send({.url = server.url()});
  EXPECT_EQ(answer.status, 429);
  EXPECT_EQ(answer.body, "busy");
  EXPECT_EQ(answer.retry_after, absl::Seconds(7));
}

TEST(ParseHttpUrl, TakesItApart) {
  const HttpUrl url = parse_http_url("https://me:p%40ss@host:8080/base/?x=1");
  EXPECT_EQ(url.url, "https://host:8080/base");
  EXPECT_EQ(url.origin, "https://host:8080");
  EXPECT_EQ(url.username, "me");
  EXPECT_EQ(url.password, "p@ss");
  EXPECT_EQ(parse_http_url("http://host/").url, "http://host");
  for (const char* wrong : {"", "host", "ftp://host", "http://", "file:///x"}) {
    EXPECT_THROW(parse_http_url(wrong), std::invalid_argument) << wrong;
  }
}

TEST(UrlEscape, LeavesLettersDigitsAndAFewSigns) {
  EXPECT_EQ(url_escape("a-Z_0.~/ &é"), "a-Z_0.~%2f%20%26%c3%a9");
  EXPECT_EQ(url_escape_path("a b/c?"), "a%20b/c%3f");
}

TEST(PathOfFileUri, UnescapesIt) {
  EXPECT_EQ(path_of_file_uri("file:///my%20runs/%C3%a9"), "/my runs/\xc3\xa9");
  EXPECT_EQ(path_of_file_uri("file://localhost/a"), "/a");
  EXPECT_EQ(path_of_file_uri("file:/100%/%4"), "/100%/%4");
  EXPECT_EQ(path_of_file_uri("file:mlruns"), "mlruns");
  EXPECT_EQ(path_of_file_uri("file://elsewhere/a"), "elsewhere/a");
  EXPECT_EQ(path_of_file_uri("file://" + url_escape_path("/a b%20c/d")), "/a b%20c/d");
}

const absl::Time kNow = absl::FromUnixSeconds(1000);

TEST(RetryGate, IsOpenUntilSomethingFails) {
  RetryGate gate(1);
  EXPECT_TRUE(gate.is_open(kNow));
  gate.failed(kNow);
  EXPECT_FALSE(gate.is_open(kNow));
  EXPECT_TRUE(gate.is_open(kNow + absl::Seconds(1)));
}

TEST(RetryGate, ClosesForTwiceAsLongEachTimeUpToALimit) {
  for (const uint64_t seed : {1, 2, 3, 4, 5}) {
    RetryGate gate(seed, {.first = absl::Seconds(1), .longest = absl::Seconds(10)});
    for (const int64_t most : {1, 2, 4, 8, 10, 10, 10}) {
      gate.failed(kNow);
      EXPECT_LE(gate.next() - kNow, absl::Seconds(most)) << seed;
      EXPECT_GE(gate.next() - kNow, absl::Seconds(most) / 2) << seed;
    }
    for (int i = 0; i < 100; ++i) gate.failed(kNow);
    EXPECT_LE(gate.next() - kNow, absl::Seconds(10));
  }
}

TEST(RetryGate, DiffersFromOneSeedToAnother) {
  RetryGate one(1);
  RetryGate other(2);
  one.failed(kNow);
  other.failed(kNow);
  EXPECT_NE(one.next(), other.next());
}

TEST(RetryGate, BeginsAnewAfterASuccess) {
  RetryGate gate(1);
  for (int i = 0; i < 5; ++i) gate.failed(kNow);
  gate.succeeded();
  EXPECT_TRUE(gate.is_open(kNow));
  gate.failed(kNow);
  EXPECT_LE(gate.next() - kNow, absl::Seconds(1));
}

TEST(RetryGate, WaitsAsLongAsItIsAskedTo) {
  RetryGate gate(1);
  gate.failed(kNow, absl::Seconds(120));
  EXPECT_EQ(gate.next(), kNow + absl::Seconds(120));
  // Hurry does not overrule the service.
  gate.hurry();
  EXPECT_EQ(gate.next(), kNow + absl::Seconds(120));
  gate.succeeded();
  EXPECT_TRUE(gate.is_open(kNow));
}

TEST(RetryGate, IsNotClosedForDays) {
  RetryGate gate(1);
  gate.failed(kNow, absl::Hours(100));
  EXPECT_EQ(gate.next(), kNow + absl::Hours(1));
}

TEST(RetryGate, HurryOpensIt) {
  RetryGate gate(1);
  for (int i = 0; i < 9; ++i) gate.failed(kNow);
  gate.hurry();
  EXPECT_TRUE(gate.is_open(kNow));
}

}  // namespace
}  // namespace accelerate::trackers
