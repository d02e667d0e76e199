#include "accelerate/platform/host_files.h"
#include "launch/agent/agent.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"

namespace accelerate::launcher::agent {
namespace {

using ::testing::HasSubstr;

TEST(LogFolder, StaysBelowTheLogDir) {
  EXPECT_EQ(plain_log_folder("/logs", "night-7"), "/logs/night-7");
  EXPECT_EQ(plain_log_folder("/logs", "../up"), "/logs/_.._up");
  EXPECT_EQ(plain_log_folder("/logs", ""), "/logs/_");
}

TEST(LogFolder, IsThatOfTheRunForAllMachinesOfADisk) {
  const TemporaryFolder temporary;
  const std::string folder = temporary.path();
  for (const char* run : {"/a", "/a.2", "/a.3"}) {
    // Each machine asks, also one that joined a later round.
    for (int machine = 0; machine < 3; ++machine) {
      EXPECT_EQ(*claim_log_folder(folder, "a", run), folder + run);
      std::filesystem::create_directories(absl::StrCat(folder, run, "/attempt_0/", machine));
    }
  }
}

TEST(LogFolder, OfARunThatLeftNoWordIsNotTaken) {
  const TemporaryFolder temporary;
  const std::string folder = temporary.path();
  std::filesystem::create_directories(folder + "/a/attempt_0/0");
  EXPECT_EQ(*claim_log_folder(folder, "a", "1f"), folder + "/a.2");
}

TEST(LogFolder, ThatCannotBeMadeIsNamed) {
  const TemporaryFolder temporary;
  const std::string file = temporary.path("file");
  std::ofstream(file) << "text";
  const absl::StatusOr<std::string> folder = claim_log_folder(file, "a", "1f");
  ASSERT_FALSE(folder.ok());
  EXPECT_THAT(std::string(folder.status().message()), HasSubstr(file + "/a: Not a dir"));
}

}  // namespace
}  // namespace accelerate::launcher::agent
