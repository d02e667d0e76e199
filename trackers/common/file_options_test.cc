#include "trackers/common/file_options.h"

#include <stdexcept>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/platform/environment.h"
#include "accelerate/tracking/tracker.h"
#include "simulator/disk/sim_disk.h"

namespace accelerate::trackers {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// For a run that begins at 03:04:05 on 2 January 2026.
FileOptions options_of(TrackerDict init_kwargs, int rank = 0) {
  simulator::SimDisk disk;
  Environment environment;
  const TrackerServices services{.files = disk, .environment = environment, .rank = rank};
  return file_options("csv", {.project_name = "a/../b",
                              .logging_dir = "/logs",
                              .init_kwargs = std::move(init_kwargs),
                              .random_bits = 0xabcd0012,
                              .time = absl::FromUnixSeconds(1'767'323'045),
                              .services = services});
}

TEST(FileOptionsTest, NameTheFolderAndTheRun) {
  EXPECT_EQ(options_of({}).folder, "/logs/a/%2E./b");
  EXPECT_EQ(options_of({}).run, "20260102-030405-0012");
  EXPECT_EQ(options_of({{"name", "mine"}}).run, "mine");
  EXPECT_EQ(options_of({{"dir", "/d"}}).folder, "/d");
}

// All ranks get the same `dir`, and must not write the same files.
TEST(FileOptionsTest, GiveEachRankAFolderOfItsOwn) {
  EXPECT_EQ(options_of({{"dir", "/d"}}, /*rank=*/3).folder, "/d/rank_3");
  EXPECT_EQ(folder_of_rank("/d", 0), "/d");
}

TEST(FileOptionsTest, RefuseWhatTheyDoNotKnow) {
  EXPECT_THAT([] { options_of({{"dir", ""}}); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("the name of a folder")));
  EXPECT_THAT([] { options_of({{"dri", "/d"}}); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("it knows dir, name")));
}

TEST(SafePathTest, LeavesOrdinaryNames) {
  EXPECT_EQ(safe_path("loss"), "loss");
  EXPECT_EQ(safe_path("train/loss"), "train/loss");
  EXPECT_EQ(safe_path("a b,\"c\" d\xc3\xa9"), "a b,\"c\" d\xc3\xa9");
  EXPECT_EQ(safe_path(".hidden..x"), ".hidden..x");
}

TEST(SafePathTest, StaysBelowItsFolder) {
  EXPECT_EQ(safe_path("../../etc/passwd"), "%2E./%2E./etc/passwd");
  EXPECT_EQ(safe_path("/abs//x/"), "abs/x");
  EXPECT_EQ(safe_path("./a/."), "%2E/a/%2E");
  EXPECT_EQ(safe_path(""), "_");
  EXPECT_EQ(safe_path("///"), "_");
  EXPECT_EQ(safe_path(std::string("a\nb\0c", 5)), "a%0Ab%00c");
  EXPECT_EQ(safe_path("a\x7f"), "a%7F");
}

TEST(SafePathTest, CutsLongNamesApart) {
  const std::string first = safe_path(std::string(300, 'x') + "1");
  const std::string second = safe_path(std::string(300, 'x') + "2");
  EXPECT_NE(first, second);
  EXPECT_LT(first.size(), 200u);
  const std::string fits(180, 'x');
  EXPECT_EQ(safe_path(fits), fits);
  EXPECT_EQ(safe_path(fits + "/" + fits), fits + "/" + fits) << "each part may be as long";
  EXPECT_NE(safe_path(fits + "x"), fits + "x");
  // No half of a letter: the cut is before the two bytes that it would divide.
  EXPECT_EQ(safe_path(std::string(179, 'x') + "\xc3\xa9yz").substr(0, 180),
            std::string(179, 'x') + "-");
}

}  // namespace
}  // namespace accelerate::trackers
