#include "accelerate/platform/host_address.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace accelerate {
namespace {

using ::testing::HasSubstr;

TEST(Host, IsANameOrAnAddress) {
  for (const char* host : {"node-7", "node_7.example.", "7a", "10.0.0.1", "::1", "fe80::1%eth0",
                           "2001:db8:0:0:0:0:0:1234"}) {
    EXPECT_TRUE(check_host(host).ok()) << check_host(host);
  }
}

TEST(Host, IsRefusedWithTheTextThatWasGiven) {
  for (const char* text : {"", "[::1]", "[h]", "h:1", "fe80::1:29500", "fe80::1%", "10.0.0.256",
                           "10.0.1", "29500", "70000", "a b", "h\n", "a..b", "-a", "a,b"}) {
    EXPECT_THAT(std::string(check_host(text).message()), HasSubstr(absl::StrCat("\"", text, "\"")));
  }
}

}  // namespace
}  // namespace accelerate
