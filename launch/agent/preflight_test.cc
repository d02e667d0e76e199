#include "launch/agent/preflight.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/status/status.h"
#include "launch/outcome.h"

namespace accelerate::launch {
namespace {

using ::testing::HasSubstr;

TEST(Devices, AreCountedByTheirFiles) {
  const std::string folder = ::testing::TempDir() + "dev";
  std::filesystem::remove_all(folder);
  EXPECT_EQ(count_devices(folder), 0);
  std::filesystem::create_directories(folder + "/dri");
  for (const char* name : {"/nvidia0", "/nvidia1", "/nvidia10", "/nvidiactl", "/nvidia-uvm",
                           "/dri/renderD128", "/dri/card0", "/davinci_manager"}) {
    std::ofstream(folder + name) << "";
  }
  EXPECT_EQ(count_devices(folder), 3);
}

TEST(Devices, ThatAreMissingAreNamed) {
  EXPECT_TRUE(check_devices(2, 2).ok());
  EXPECT_TRUE(check_devices(0, 0).ok());
  const absl::Status missing = check_devices(4, 1);
  EXPECT_TRUE(absl::IsFailedPrecondition(missing));
  EXPECT_THAT(std::string(missing.message()),
              HasSubstr(host_name() + " has 1 device and its ranks need 4; "));
}

}  // namespace
}  // namespace accelerate::launch
