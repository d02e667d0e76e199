#include "trackers/common/append_file.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/platform/host_files.h"
#include "simulator/disk/sim_disk.h"

namespace accelerate::trackers {
namespace {

using simulator::SimDisk;
using simulator::Unsynced;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kPath[] = "/sim/logs/run/file.txt";

std::string contents(FileSystem& files, const std::string& path = kPath) {
  const auto read = read_file(files, path);
  return read.ok() ? *read : std::string(read.status().message());
}

template <typename Function>
std::string error_of(Function&& function) {
  try {
    function();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

TEST(WholeLinesTest, DropsATornEndAndPagesOfZeros) {
  EXPECT_EQ(whole_lines(""), "");
  EXPECT_EQ(whole_lines("torn"), "");
  EXPECT_EQ(whole_lines("a\nb\ntorn"), "a\nb\n");
  EXPECT_EQ(whole_lines(std::string("a\n\0\0\nb\n", 7)), "a\nb\n");
}

TEST(AppendFileTest, WritesWithFlushAndGoesOn) {
  SimDisk disk;
  AppendFile file(disk, kPath, {.header = "head\n"});
  file.open();
  EXPECT_EQ(contents(disk), "");
  file.append("a\n");
  EXPECT_EQ(contents(disk), "");
  file.flush();
  EXPECT_EQ(contents(disk), "head\na\n");
  file.flush();
  file.append("b\n");
  file.append("c\n");
  file.finish();
  EXPECT_EQ(contents(disk), "head\na\nb\nc\n");
  EXPECT_THAT(disk.list("/sim/logs/run").value(), ElementsAre("file.txt"));
}

TEST(AppendFileTest, FollowsAnEarlierFile) {
  SimDisk disk;
  ASSERT_TRUE(write_file(disk, kPath, "head\nold\nto").ok());
  AppendFile file(disk, kPath, {.header = "head\n"});
  file.open();
  EXPECT_EQ(contents(disk), "head\nold\n");
  file.append("new\n");
  file.finish();
  EXPECT_EQ(contents(disk), "head\nold\nnew\n");
}

TEST(AppendFileTest, AnEarlierFileWithoutAWholeLineIsNew) {
  SimDisk disk;
  ASSERT_TRUE(write_file(disk, kPath, "he").ok());
  AppendFile file(disk, kPath, {.header = "head\n"});
  file.append("a\n");
  file.finish();
  EXPECT_EQ(contents(disk), "head\na\n");
}

TEST(AppendFileTest, MuchIsWrittenWithoutAFlush) {
  SimDisk disk;
  AppendFile file(disk, kPath);
  const std::string record = std::string(100000, 'x') + "\n";
  for (int i = 0; i < 5; ++i) file.append(record);
  EXPECT_GE(contents(disk).size(), 3 * record.size());
}

TEST(AppendFileTest, AFullDiskHasWholeRecordsOnlyAndIsWrittenLater) {
  SimDisk disk({.capacity = 1000});
  const std::string other = "/sim/other";
  ASSERT_TRUE(write_file(disk, other, std::string(970, '-')).ok());
  AppendFile file(disk, kPath);
  file.append("0123456789\n");
  file.append("abcdefghij\n");
  file.append("ABCDEFGHIJ\n");
  EXPECT_THAT(error_of([&] { file.flush(); }), HasSubstr(kPath));
  // 30 bytes: two records, and filler for the part of the third that found room.
  EXPECT_EQ(contents(disk), "0123456789\nabcdefghij\n" + std::string(8, '\n'));
  file.append("more\n");
  EXPECT_NE(error_of([&] { file.flush(); }), "");
  EXPECT_EQ(contents(disk), "0123456789\nabcdefghij\n" + std::string(8, '\n'));
  ASSERT_TRUE(disk.remove(other).ok());
  file.flush();
  EXPECT_EQ(contents(disk), "0123456789\nabcdefghij\nABCDEFGHIJ\nmore\n");
  file.append("last\n");
  file.finish();
  EXPECT_EQ(contents(disk), "0123456789\nabcdefghij\nABCDEFGHIJ\nmore\nlast\n");
}

TEST(AppendFileTest, AShortRecordAfterALongTornOneLeavesNoRest) {
  // The torn record is written again before any other, so that it covers all of its filler.
  SimDisk disk({.capacity = 30});
  AppendFile file(disk, kPath, {.filler = [](size_t size) { return std::string(size, '#'); }});
  file.append(std::string(40, 'a') + "\n");
  EXPECT_NE(error_of([&] { file.flush(); }), "");
  EXPECT_EQ(contents(disk), std::string(30, '#'));
  file.append("b\n");
  EXPECT_THAT(error_of([&] { file.finish(); }), HasSubstr("2 records are lost"));
  EXPECT_EQ(contents(disk), std::string(30, '#'));
}

TEST(AppendFileTest, AFullDiskKeepsTheEarlierFile) {
  SimDisk disk({.capacity = 50});
  ASSERT_TRUE(write_file(disk, kPath, std::string(29, 'o') + "\n").ok());
  AppendFile file(disk, kPath);
  EXPECT_NE(error_of([&] { file.open(); }), "");
  file.append("a\n");
  EXPECT_NE(error_of([&] { file.flush(); }), "");
  EXPECT_EQ(contents(disk), std::string(29, 'o') + "\n");
  EXPECT_THAT(disk.list("/sim/logs/run").value(), ElementsAre("file.txt"));
}

TEST(AppendFileTest, WhatWaitsIsBounded) {
  SimDisk disk({.capacity = 0});
  AppendFile file(disk, kPath, {.capacity = 10});
  file.append("12345678\n");
  EXPECT_NE(error_of([&] { file.flush(); }), "");
  EXPECT_THAT(error_of([&] { file.append("9\n"); }), HasSubstr("are lost"));
  EXPECT_THAT(error_of([&] { file.finish(); }), HasSubstr("2 records are lost"));
}

TEST(AppendFileTest, WhatWaitsMayFillItsBound) {
  SimDisk disk;
  AppendFile file(disk, kPath, {.capacity = 10});
  file.append("12345678\n");
  file.append("9");
  EXPECT_THAT(error_of([&] { file.append("0"); }), HasSubstr("are lost"));
  EXPECT_THAT(error_of([&] { file.finish(); }), HasSubstr("1 records are lost"));
  EXPECT_EQ(contents(disk), "12345678\n9");
}

TEST(AppendFileTest, ADeadMachineHasTheEarlierFileOrMore) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    for (const Unsynced unsynced : {Unsynced::kLost, Unsynced::kKept, Unsynced::kDrawn}) {
      SimDisk disk;
      const std::string old = std::string(5000, 'o') + "\n";
      ASSERT_TRUE(write_file(disk, kPath, old).ok());
      {
        AppendFile file(disk, kPath);
        for (int i = 0; i < 20; ++i) file.append(std::string(999, 'n') + "\n");
        file.flush();
        disk.crash(unsynced, simulator::DeterministicRandom(seed));
      }
      AppendFile file(disk, kPath);
      file.append("next\n");
      file.finish();
      const std::string now = contents(disk);
      EXPECT_TRUE(now.starts_with(old)) << seed;
      EXPECT_TRUE(now.ends_with("next\n")) << seed;
      EXPECT_EQ(now.find('\0'), now.npos) << seed;
    }
  }
}

TEST(AppendFileTest, WhatIsFinishedOutlivesTheMachine) {
  SimDisk disk;
  AppendFile file(disk, kPath);
  file.append("a\n");
  file.finish();
  disk.crash(Unsynced::kLost);
  EXPECT_EQ(contents(disk), "a\n");
}

TEST(AppendFileTest, SaysWhenAnotherChangesTheFileAndGoesOn) {
  SimDisk disk;
  AppendFile file(disk, kPath);
  file.append("a\n");
  file.flush();
  ASSERT_TRUE(write_file(disk, kPath, "theirs\n").ok());
  file.append("b\n");
  EXPECT_THAT(error_of([&] { file.flush(); }), HasSubstr("another program"));
  file.flush();
  EXPECT_EQ(contents(disk), "theirs\nb\n");
  ASSERT_TRUE(disk.remove(kPath).ok());
  file.append("c\n");
  EXPECT_NE(error_of([&] { file.flush(); }), "");
  file.finish();
  EXPECT_EQ(contents(disk), "c\n");
}

TEST(AppendFileTest, RewritesAndReleases) {
  SimDisk disk;
  AppendFile file(disk, kPath);
  file.append("a\n");
  file.rewrite([](std::string_view old) { return "[" + std::string(old) + "]\n"; });
  EXPECT_EQ(contents(disk), "[a\n]\n");
  file.append("b\n");
  file.release();
  EXPECT_EQ(contents(disk), "[a\n]\nb\n");
  file.append("c\n");
  file.finish();
  EXPECT_EQ(contents(disk), "[a\n]\nb\nc\n");
}

TEST(AppendFileTest, WorksOnTheHostsDisk) {
  HostFiles files;
  const TemporaryFolder folder;
  // Its folder is made with it.
  const std::string path = folder.path("new/file.txt");
  for (const std::string name : {"first\n", "second\n"}) {
    AppendFile file(files, path);
    file.append(name);
    file.flush();
    file.append(name);
    file.finish();
  }
  EXPECT_EQ(contents(files, path), "first\nfirst\nsecond\nsecond\n");
}

}  // namespace
}  // namespace accelerate::trackers
