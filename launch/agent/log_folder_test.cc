#include "launch/agent/log_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace accelerate::launch {
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
    EXPECT_EQ(*claim_log_folder(folder, "a", {.first_rank = 0}), folder + run);
    EXPECT_EQ(*claim_log_folder(folder, "a", {.first_rank = 4}), folder + run);
    // A machine that joined a later round.
    EXPECT_EQ(*claim_log_folder(folder, "a", {.number = 1, .first_rank = 0}), folder + run);
  }
}

TEST(LogFolder, ThatCannotBeMadeIsNamed) {
  const std::string file = new_folder("log_folder_file");
  std::ofstream(file) << "text";
  const absl::StatusOr<std::string> folder = claim_log_folder(file, "a", {});
  ASSERT_FALSE(folder.ok());
  EXPECT_THAT(std::string(folder.status().message()), HasSubstr(file + "/a/attempt_0: Not a dir"));
}

}  // namespace
}  // namespace accelerate::launch
