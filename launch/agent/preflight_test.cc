#include "launch/agent/agent_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/status/status.h"
#include "launch/supervise/rank_group.h"

namespace accelerate::launcher::agent {
namespace {

using ::testing::HasSubstr;

TEST(Devices, ThatAreMissingAreNamed) {
  EXPECT_TRUE(check_devices(2, 2).ok());
  EXPECT_TRUE(check_devices(0, 0).ok());
  const absl::Status missing = check_devices(4, 1);
  EXPECT_TRUE(absl::IsFailedPrecondition(missing));
  EXPECT_THAT(std::string(missing.message()),
              HasSubstr(supervise::host_name() + " has 1 device and its ranks need 4; "));
}

}  // namespace
}  // namespace accelerate::launcher::agent
