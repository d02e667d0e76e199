#include "launch/agent/round_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"

namespace accelerate::launch::agent {
namespace {

using ::testing::HasSubstr;

std::string new_folder(const std::string& name) {
  const std::string folder = ::testing::TempDir() + name;
  std::filesystem::remove_all(folder);
  return folder;
}

TEST(LogFolder, StaysBelowTheLogDir) {
  EXPECT_EQ(plain_log_folder("/logs", "night-7"), "/logs/night-7");
  EXPECT_EQ(plain_log_folder("/logs", "../up"), "/logs/_.._up");
  EXPECT_EQ(plain_log_folder("/logs", ""), "/logs/_");
}

TEST(LogFolder, IsThatOfTheRunForAllMachinesOfADisk) {
  const std::string folder = new_folder("log_folder_machines");
  for (const char* run : {"/a", "/a.2", "/a.3"}) {
    // Each machine asks, also one that joined a later round.
    for (int machine = 0; machine < 3; ++machine) {
      EXPECT_EQ(*claim_log_folder(folder, "a", run), folder + run);
      std::filesystem::create_directories(absl::StrCat(folder, run, "/attempt_0/", machine));
    }
  }
}

TEST(LogFolder, OfARunThatLeftNoWordIsNotTaken) {
  const std::string folder = new_folder("log_folder_unmarked");
  std::filesystem::create_directories(folder + "/a/attempt_0/0");
  EXPECT_EQ(*claim_log_folder(folder, "a", "1f"), folder + "/a.2");
}

TEST(LogFolder, ThatCannotBeMadeIsNamed) {
  const std::string file = new_folder("log_folder_file");
  std::ofstream(file) << "text";
  const absl::StatusOr<std::string> folder = claim_log_folder(file, "a", "1f");
  ASSERT_FALSE(folder.ok());
  EXPECT_THAT(std::string(folder.status().message()), HasSubstr(file + "/a: Not a dir"));
}

}  // namespace
}  // namespace accelerate::launch::agent
