#include "launch/settings/endpoint.h"

#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "launch/settings/settings.h"

// settings_test.cc has the entrances.

namespace accelerate::launcher::settings {
namespace {

using ::testing::HasSubstr;

TEST(Endpoint, IsReadOrRefusedWithTheTextThatWasGiven) {
  const std::tuple<const char*, const char*, int> good[] = {
      {"h:1", "h", 1},
      {"node-7.example.", "node-7.example.", -1},
      {"10.0.0.1:29500", "10.0.0.1", 29500},
      {"::1", "::1", -1},
      {"[::1]:2", "::1", 2},
      {"[fe80::1%eth0]:65535", "fe80::1%eth0", 65535},
      {"fe80::1%eth0", "fe80::1%eth0", -1},
      {"[2001:db8::7]", "2001:db8::7", -1},
      {"2001:db8:0:0:0:0:0:1234", "2001:db8:0:0:0:0:0:1234", -1}};
  for (const auto& [text, host, port] : good) {
    const absl::StatusOr<Endpoint> endpoint = parse_endpoint(text);
    ASSERT_TRUE(endpoint.ok()) << endpoint.status();
    EXPECT_EQ(endpoint->host, host);
    EXPECT_EQ(endpoint->port ? *endpoint->port : -1, port) << text;
  }
  const std::pair<const char*, const char*> bad[] = {
      {"fe80::1:29500", "needs brackets: [fe80::1]:29500"},
      {"2001:db8:1:2:3:4:5:6:29500", "needs brackets: [2001:db8:1:2:3:4:5:6]:29500"},
      {"fe80::1%eth0:29500", "needs brackets: [fe80::1%eth0]:29500"},
      {"::1:2950", "write [::1:2950] or [::1]:2950"},
      {"h:70000", "no port from 0 to 65535"},
      {"h:", "no port from 0 to 65535"},
      {"h:-1", "no port from 0 to 65535"},
      {"h:+1", "no port from 0 to 65535"},
      {"h:1x", "no port from 0 to 65535"},
      {"[::1]:", "no port from 0 to 65535"},
      {"[::1]:65536", "no port from 0 to 65535"},
      {"[::1", "bracket that is not closed"},
      {"[::1]x", "is not [ADDRESS]:PORT"},
      {"[h]:1", "no IPv6 address in its brackets"},
      {"[10.0.0.1]:1", "no IPv6 address in its brackets"},
      {"[fe80::1%]:1", "no IPv6 address in its brackets"},
      {":29500", "names no machine"},
      {"29500", "is a number"},
      {"70000", "is a number"},
      {"a b:1", "has a blank"},
      {" h:1", "has a blank"},
      {"h:1\n", "has a blank"},
      {"10.0.0.256:1", "not an IPv4 address"},
      {"10.0.1:1", "not an IPv4 address"},
      {"tcp://h:1", "neither HOST:PORT nor an IPv6 address"},
      {"a:b:c", "neither HOST:PORT nor an IPv6 address"},
      {"a..b:1", "not the name of a machine"},
      {"-a:1", "not the name of a machine"},
      {"a,b:1", "not the name of a machine"},
      {"a/b", "not the name of a machine"}};
  for (const auto& [text, reason] : bad) {
    const std::string message(parse_endpoint(text).status().message());
    EXPECT_THAT(message, HasSubstr(reason)) << text;
    EXPECT_THAT(message, HasSubstr(absl::StrCat("\"", text, "\""))) << text;
  }
}

// The rendezvous counts before the main process, and a port of its own before the common one.
TEST(Endpoint, HasTheHostAndThePortThatCount) {
  struct Case {
    TypedFlags typed;
    const char* host;
    int port;  // -1: none
  };
  for (const Case& each :
       std::vector<Case>{{{}, "", -1},
                         {{{"main_process_ip", {"h"}}}, "h", -1},
                         {{{"main_process_port", {"2"}}}, "", 2},
                         {{{"main_process_ip", {"h:2"}}, {"main_process_port", {"2"}}}, "h", 2},
                         {{{"rdzv_endpoint", {"h"}}, {"main_process_port", {"2"}}}, "h", 2},
                         {{{"rdzv_endpoint", {"h:1"}}, {"main_process_port", {"2"}}}, "h", 1},
                         {{{"rdzv_endpoint", {"a:1"}}, {"main_process_ip", {"b:3"}}}, "a", 1}}) {
    const absl::StatusOr<Settings> settings = Settings::resolve(each.typed, nullptr, {});
    ASSERT_TRUE(settings.ok()) << settings.status();
    const absl::StatusOr<Endpoint> endpoint = endpoint_of(*settings);
    ASSERT_TRUE(endpoint.ok()) << endpoint.status();
    EXPECT_EQ(endpoint->host, each.host);
    EXPECT_EQ(endpoint->port ? *endpoint->port : -1, each.port) << each.host;
  }
}

}  // namespace
}  // namespace accelerate::launcher::settings
