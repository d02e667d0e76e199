#include "launch/process/socket_address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/status/status.h"

namespace accelerate::launcher::process {
namespace {

using ::testing::HasSubstr;

TEST(SocketAddress, IsReadFromDigitsOnly) {
  const std::optional<SocketAddress> v4 = SocketAddress::from_text("10.1.2.3");
  ASSERT_TRUE(v4.has_value());
  EXPECT_EQ(v4->host(), "10.1.2.3");
  EXPECT_FALSE(v4->is_loopback());
  const std::optional<SocketAddress> v6 = SocketAddress::from_text("fd77::1");
  ASSERT_TRUE(v6.has_value());
  EXPECT_EQ(v6->host(), "fd77::1");
  EXPECT_FALSE(SocketAddress::from_text("localhost").has_value());
  EXPECT_FALSE(SocketAddress::from_text("").has_value());
}

TEST(SocketAddress, KnowsLoopbackInEveryForm) {
  for (const char* text : {"127.0.0.1", "127.0.1.1", "::1", "::ffff:127.0.0.1"}) {
    EXPECT_TRUE(SocketAddress::from_text(text)->is_loopback()) << text;
  }
}

TEST(SocketAddress, KnowsItsOwn) {
  EXPECT_TRUE(is_own_address(*SocketAddress::from_text("127.0.0.1")));
  EXPECT_FALSE(is_own_address(*SocketAddress::from_text("192.0.2.1")));
}

TEST(SocketAddress, CarriesAPort) {
  for (const char* text : {"10.1.2.3", "fd77::1"}) {
    SocketAddress address = *SocketAddress::from_text(text);
    address.set_port(4000);
    EXPECT_EQ(address.port(), 4000);
    EXPECT_EQ(address.host(), text);
  }
  EXPECT_EQ(endpoint_text("10.1.2.3", 80), "10.1.2.3:80");
  EXPECT_EQ(endpoint_text("fd77::1", 80), "[fd77::1]:80");
}

TEST(Resolve, NamesAHostThatIsNotKnown) {
  const absl::Status unknown = resolve("no-such-host.invalid", absl::Seconds(4)).status();
  EXPECT_TRUE(absl::IsUnavailable(unknown));
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("'no-such-host.invalid'"));
}

TEST(Resolve, TakesDigitsAsTheyAre) {
  const auto addresses = resolve("fd77::1", absl::ZeroDuration());
  ASSERT_TRUE(addresses.ok()) << addresses.status();
  ASSERT_EQ(addresses->size(), 1u);
  EXPECT_EQ((*addresses)[0].host(), "fd77::1");
}

}  // namespace
}  // namespace accelerate::launcher::process
