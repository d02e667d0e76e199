#include "simulator/disk/sim_disk.h"

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/testing/file_contract/file_system_contract.h"

namespace accelerate::simulator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

absl::Span<const std::byte> bytes_of(std::string_view text) {
  return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()), text.size());
}

std::string text_of(absl::Span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Writes a file; if requested durably, except for its name.
void put(SimDisk& disk, const std::string& path, std::string_view text, bool synced) {
  auto file = disk.create(path);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE((*file)->write_at(0, bytes_of(text)).ok());
  if (synced) {
    ASSERT_TRUE((*file)->sync().ok());
  }
  ASSERT_TRUE((*file)->close().ok());
}

// A file's contents, or the error.
std::string get(SimDisk& disk, const std::string& path) {
  const absl::StatusOr<std::string> contents = read_file(disk, path);
  return contents.ok() ? *contents : absl::StatusCodeToString(contents.status().code());
}

std::vector<std::string> names(SimDisk& disk, const std::string& folder) {
  return *disk.list(folder);
}

TEST(SimDisk, LosesAFileWhoseNameWasNotSynced) {
  SimDisk disk;
  put(disk, "/sim/file", "bytes", /*synced=*/true);
  disk.crash(Unsynced::kLost);
  EXPECT_THAT(*disk.list("/sim"), IsEmpty());
}

TEST(SimDisk, LosesBytesThatWereNotSynced) {
  SimDisk disk;
  put(disk, "/sim/file", "bytes", /*synced=*/false);
  ASSERT_TRUE(disk.sync_directory("/sim").ok());
  disk.crash(Unsynced::kLost);
  EXPECT_EQ(get(disk, "/sim/file"), "");
}

TEST(SimDisk, KeepsWhatWasSynced) {
  SimDisk disk;
  put(disk, "/sim/file", "bytes", /*synced=*/true);
  ASSERT_TRUE(disk.sync_directory("/sim").ok());
  auto file = disk.create("/sim/file");
  ASSERT_TRUE((*file)->write_at(0, bytes_of("later")).ok());
  EXPECT_EQ(get(disk, "/sim/file"), "later");
  disk.crash(Unsynced::kLost);
  EXPECT_EQ(get(disk, "/sim/file"), "bytes");
  disk.crash(Unsynced::kLost);
  EXPECT_EQ(get(disk, "/sim/file"), "bytes");
}

// The common mistake: the new name is durable, but the bytes are not.
TEST(SimDisk, LosesTheOldFileWhereTheNewOneWasRenamedUnsynced) {
  SimDisk disk;
  put(disk, "/sim/file", "old", /*synced=*/true);
  ASSERT_TRUE(disk.sync_directory("/sim").ok());
  put(disk, "/sim/new", "new", /*synced=*/false);
  ASSERT_TRUE(disk.rename("/sim/new", "/sim/file").ok());
  ASSERT_TRUE(disk.sync_directory("/sim").ok());
  disk.crash(Unsynced::kLost);
  EXPECT_EQ(get(disk, "/sim/file"), "");
}

TEST(SimDisk, UndoesARenameThatWasNotSynced) {
  SimDisk disk;
  put(disk, "/sim/file", "old", /*synced=*/true);
  put(disk, "/sim/new", "new", /*synced=*/true);
  ASSERT_TRUE(disk.sync_directory("/sim").ok());
  ASSERT_TRUE(disk.rename("/sim/new", "/sim/file").ok());
  disk.crash(Unsynced::kLost);
  EXPECT_EQ(get(disk, "/sim/file"), "old");
  EXPECT_EQ(get(disk, "/sim/new"), "new");
}

TEST(SimDisk, BringsBackWhatWasRemovedUnsynced) {
  SimDisk disk;
  ASSERT_TRUE(write_file(disk, "/sim/a/file", "text").ok());
  ASSERT_TRUE(remove_all(disk, "/sim/a").ok());
  disk.crash(Unsynced::kLost);
  EXPECT_EQ(get(disk, "/sim/a/file"), "text");
  ASSERT_TRUE(remove_all(disk, "/sim/a").ok());
  ASSERT_TRUE(disk.sync_directory("/sim").ok());
  disk.crash(Unsynced::kLost);
  EXPECT_THAT(*disk.list("/sim"), IsEmpty());
}

TEST(SimDisk, LosesAFolderWhoseParentWasNotSynced) {
  SimDisk disk;
  ASSERT_TRUE(disk.make_directories("/sim/a/b").ok());
  put(disk, "/sim/a/b/file", "text", /*synced=*/true);
  ASSERT_TRUE(disk.sync_directory("/sim/a/b").ok());
  ASSERT_TRUE(disk.sync_directory("/sim/a").ok());
  disk.crash(Unsynced::kLost);
  EXPECT_THAT(*disk.list("/sim"), IsEmpty());
}

TEST(SimDisk, KeepsAWholeFileWithTheFoldersMadeForIt) {
  SimDisk disk;
  ASSERT_TRUE(write_file(disk, "/sim/a/b/c/file", "text").ok());
  disk.crash(Unsynced::kLost);
  EXPECT_EQ(get(disk, "/sim/a/b/c/file"), "text");
}

TEST(SimDisk, UndoesAnExchangeAsAWhole) {
  SimDisk disk;
  put(disk, "/sim/a", "1", /*synced=*/true);
  put(disk, "/sim/b", "2", /*synced=*/true);
  ASSERT_TRUE(disk.sync_directory("/sim").ok());
  for (uint64_t seed = 0; seed < 20; ++seed) {
    ASSERT_TRUE(disk.exchange("/sim/a", "/sim/b").ok());
    disk.crash(Unsynced::kDrawn, DeterministicRandom(seed));
    EXPECT_THAT(get(disk, "/sim/a") + get(disk, "/sim/b"), ::testing::AnyOf("12", "21"));
  }
}

TEST(SimDisk, NeedsBothFoldersSyncedForARenameBetweenThem) {
  for (const char* synced : {"/sim/a", "/sim/b", "both"}) {
    SimDisk disk;
    ASSERT_TRUE(write_file(disk, "/sim/a/file", "text").ok());
    ASSERT_TRUE(make_directories_durably(disk, "/sim/b").ok());
    ASSERT_TRUE(disk.rename("/sim/a/file", "/sim/b/file").ok());
    for (const char* folder : {"/sim/a", "/sim/b"}) {
      if (synced == std::string("both") || synced == std::string(folder)) {
        ASSERT_TRUE(disk.sync_directory(folder).ok());
      }
    }
    disk.crash(Unsynced::kLost);
    const bool moved = synced == std::string("both");
    EXPECT_EQ(get(disk, "/sim/a/file"), moved ? "NOT_FOUND" : "text") << synced;
    EXPECT_EQ(get(disk, "/sim/b/file"), moved ? "text" : "NOT_FOUND") << synced;
  }
}

// Whatever is lost, a file that was durable once and has moved often has exactly one name.
TEST(SimDisk, NeverFindsAFileUnderTwoNamesOrNone) {
  const std::vector<std::string> folders = {"/sim/a", "/sim/b", "/sim/c"};
  std::set<std::string> ends;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SimDisk disk;
    DeterministicRandom random(seed);
    for (const std::string& folder : folders) {
      ASSERT_TRUE(make_directories_durably(disk, folder).ok());
    }
    ASSERT_TRUE(write_file(disk, "/sim/a/0", "text").ok());
    std::string name = "/sim/a/0";
    for (int i = 0; i < 6; ++i) {
      const std::string next = folders[random.below(3)] + "/" + std::to_string(random.below(3));
      ASSERT_TRUE(disk.rename(name, next).ok());
      name = next;
      if (random.below(3) == 0) {
        ASSERT_TRUE(disk.sync_directory(folders[random.below(3)]).ok());
      }
    }
    disk.crash(seed % 2 == 0 ? Unsynced::kDrawn : Unsynced::kLost, DeterministicRandom(seed));
    std::vector<std::string> found;
    for (const std::string& folder : folders) {
      for (const std::string& left : names(disk, folder)) found.push_back(folder + "/" + left);
    }
    ASSERT_THAT(found, ::testing::SizeIs(1)) << "seed " << seed;
    EXPECT_EQ(get(disk, found[0]), "text");
    ends.insert(found[0] == name ? "moved" : "not moved");
  }
  EXPECT_THAT(ends, ElementsAre("moved", "not moved"));
}

// Two folders that move into each other never end up as a ring outside the tree.
TEST(SimDisk, KeepsTheOrderInWhichFoldersMoved) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    SimDisk disk;
    ASSERT_TRUE(write_file(disk, "/sim/a/file", "a").ok());
    ASSERT_TRUE(write_file(disk, "/sim/b/file", "b").ok());
    ASSERT_TRUE(disk.rename("/sim/a", "/sim/b/a").ok());
    ASSERT_TRUE(disk.rename("/sim/b/a", "/sim/c").ok());
    ASSERT_TRUE(disk.rename("/sim/b", "/sim/c/b").ok());
    disk.crash(Unsynced::kDrawn, DeterministicRandom(seed));
    int found = 0;
    for (const char* path :
         {"/sim/a/file", "/sim/b/a/file", "/sim/c/file", "/sim/b/file", "/sim/c/b/file"}) {
      if (*exists(disk, path)) ++found;
    }
    EXPECT_EQ(found, 2) << "seed " << seed;
  }
}

TEST(SimDisk, LosesPagesAndLengthsEachItsOwnWay) {
  const std::string old(3 * 4096 + 10, 'o');
  const std::string longer(5 * 4096, 'n');
  std::set<std::string> seen;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SimDisk disk;
    put(disk, "/sim/file", old, /*synced=*/true);
    ASSERT_TRUE(disk.sync_directory("/sim").ok());
    put(disk, "/sim/file", longer, /*synced=*/false);
    disk.crash(Unsynced::kDrawn, DeterministicRandom(seed));
    const std::string left = get(disk, "/sim/file");
    ASSERT_TRUE(left.size() == old.size() || left.size() == longer.size());
    for (size_t begin = 0; begin < left.size(); begin += 4096) {
      const std::string page = left.substr(begin, 4096);
      const bool is_new = page == longer.substr(begin, page.size());
      std::string lost = begin < old.size() ? old.substr(begin, page.size()) : "";
      lost.resize(page.size(), '\0');
      EXPECT_TRUE(is_new || page == lost) << "page at " << begin;
      seen.insert(is_new ? "new" : begin < old.size() ? "old" : "zeros");
    }
    seen.insert(left.size() == old.size() ? "short" : "long");
    disk.crash(Unsynced::kDrawn, DeterministicRandom(seed + 1));
    EXPECT_EQ(get(disk, "/sim/file"), left) << "what was left is durable";
  }
  EXPECT_THAT(seen, ElementsAre("long", "new", "old", "short", "zeros"));
}

TEST(SimDisk, DrawsTheSameForTheSameSeed) {
  auto left = [](uint64_t seed) {
    SimDisk disk;
    std::string text;
    for (int i = 0; i < 20; ++i) {
      put(disk, "/sim/" + std::to_string(i), std::string(9000, 'x'), i % 2 == 0);
    }
    disk.crash(Unsynced::kDrawn, DeterministicRandom(seed));
    for (const std::string& name : names(disk, "/sim")) text += name + get(disk, "/sim/" + name);
    return text;
  };
  EXPECT_EQ(left(1), left(1));
  EXPECT_NE(left(1), left(2));
}

TEST(SimDisk, KeepsEverythingIfTold) {
  SimDisk disk;
  ASSERT_TRUE(disk.make_directories("/sim/a").ok());
  put(disk, "/sim/a/file", "text", /*synced=*/false);
  disk.crash(Unsynced::kKept);
  disk.crash(Unsynced::kLost);
  EXPECT_EQ(get(disk, "/sim/a/file"), "text");
}

TEST(SimDisk, IsOutOfReachOfWhatWasOpenBeforeTheCrash) {
  SimDisk disk;
  ASSERT_TRUE(write_file(disk, "/sim/file", "text").ok());
  auto writer = disk.create("/sim/file");
  disk.crash(Unsynced::kLost);
  EXPECT_TRUE((*writer)->write_at(0, bytes_of("from the grave")).ok());
  EXPECT_TRUE((*writer)->sync().ok());
  EXPECT_EQ(get(disk, "/sim/file"), "text");
}

TEST(SimDisk, FillsUp) {
  SimDisk disk({.capacity = 10});
  put(disk, "/sim/a", "1234", /*synced=*/false);
  auto file = disk.create("/sim/b");
  const absl::Status full = (*file)->write_at(0, bytes_of("12345678"));
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  EXPECT_THAT(full.message(), HasSubstr("/sim/b"));
  EXPECT_EQ(get(disk, "/sim/b"), "123456");
  EXPECT_EQ(disk.used(), 10);
  EXPECT_TRUE((*file)->write_at(2, bytes_of("over")).ok());
  EXPECT_TRUE(absl::IsResourceExhausted((*file)->write_at(100, bytes_of("far"))));
  EXPECT_EQ(disk.info("/sim/b")->size, 6);
  ASSERT_TRUE(disk.remove("/sim/a").ok());
  EXPECT_TRUE((*file)->write_at(6, bytes_of("1234")).ok());
  EXPECT_EQ(disk.used(), 10);
}

TEST(SimDisk, MapsWithoutACopyUntilSomebodyWrites) {
  SimDisk disk;
  put(disk, "/sim/file", "first", /*synced=*/true);
  auto first = (*disk.open("/sim/file"))->map();
  auto again = (*disk.open("/sim/file"))->map();
  EXPECT_EQ((*first)->data(), (*again)->data());
  put(disk, "/sim/file", "other", /*synced=*/false);
  EXPECT_EQ(text_of(**first), "first");
  EXPECT_EQ(text_of(**(*disk.open("/sim/file"))->map()), "other");
}

TEST(SimDisk, HasRoomForScratchFilesUntilTheyAreClosed) {
  SimDisk disk({.capacity = 10});
  put(disk, "/sim/file", "123", /*synced=*/false);
  auto scratch = disk.open_scratch("/sim/scratch");
  ASSERT_TRUE(scratch.ok());
  EXPECT_TRUE((*scratch)->write_at(0, bytes_of("456789")).ok());
  EXPECT_EQ(disk.used(), 9);
  const absl::Status full = (*scratch)->write_at(4, bytes_of("89abc"));
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  EXPECT_THAT(full.message(), HasSubstr("/sim/scratch"));
  EXPECT_TRUE((*scratch)->write_at(0, bytes_of("654321")).ok()) << "what it has needs no room";
  scratch->reset();
  EXPECT_EQ(disk.used(), 3);
}

TEST(SimDisk, LosesScratchFilesInACrash) {
  SimDisk disk({.capacity = 10});
  auto scratch = disk.open_scratch("/sim/scratch");
  EXPECT_TRUE((*scratch)->write_at(0, bytes_of("1234")).ok());
  disk.crash(Unsynced::kKept);
  EXPECT_EQ(disk.used(), 0);
  EXPECT_THAT(*disk.list("/sim"), IsEmpty());
}

TEST(SimDisk, DamagesTheMedium) {
  SimDisk disk;
  ASSERT_TRUE(write_file(disk, "/sim/file", "aaa").ok());
  auto map = (*disk.open("/sim/file"))->map();
  SimDisk::damage(**disk.open("/sim/file"), 8 + 1);
  EXPECT_EQ(get(disk, "/sim/file"), "aca");
  EXPECT_EQ(text_of(**map), "aaa");
  disk.crash(Unsynced::kLost);
  EXPECT_EQ(get(disk, "/sim/file"), "aca");
}

TEST(SimDisk, WritesThroughToTheMedium) {
  SimDisk disk;
  put(disk, "/sim/file", "old text", /*synced=*/true);
  ASSERT_TRUE(disk.sync_directory("/sim").ok());
  auto file = disk.create("/sim/file");
  ASSERT_TRUE((*file)->write_at(0, bytes_of("new")).ok());
  ASSERT_TRUE(SimDisk::write_through(**file, 4, bytes_of("TE")).ok());
  EXPECT_EQ(get(disk, "/sim/file"), std::string("new\0TE", 6));
  disk.crash(Unsynced::kLost);
  EXPECT_EQ(get(disk, "/sim/file"), "old TExt");
}

TEST(SimDisk, IsThereBelowItsMountPointOnly) {
  const SimDisk disk;
  EXPECT_TRUE(disk.contains("/sim"));
  EXPECT_TRUE(disk.contains("/sim/"));
  EXPECT_TRUE(disk.contains("/sim/a/../b"));
  EXPECT_TRUE(disk.contains("//sim//a"));
  EXPECT_FALSE(disk.contains("/simulator"));
  EXPECT_FALSE(disk.contains("/sim/../etc"));
  EXPECT_FALSE(disk.contains("sim"));
  EXPECT_FALSE(disk.contains(""));
  EXPECT_TRUE(SimDisk({.mount_point = "/"}).contains("/a"));
  EXPECT_TRUE(SimDisk({.mount_point = "/a/b/"}).contains("/a/b"));
}

TEST(SimDisk, NeedNotBeAbleToExchangeNames) {
  SimDisk disk({.can_exchange = false});
  ASSERT_TRUE(disk.make_directories("/sim/a/b").ok());
  ASSERT_TRUE(disk.make_directories("/sim/c").ok());
  EXPECT_TRUE(absl::IsUnimplemented(disk.exchange("/sim/a", "/sim/c")));
  EXPECT_THAT(*disk.list("/sim/a"), ElementsAre("b"));
}

TEST(SimDisk, KeepsItsRoot) {
  SimDisk disk;
  EXPECT_FALSE(disk.remove("/sim").ok());
  EXPECT_FALSE(disk.rename("/sim", "/sim/a").ok());
  ASSERT_TRUE(disk.make_directories("/sim/a").ok());
  EXPECT_FALSE(disk.rename("/sim/a", "/sim").ok());
  EXPECT_FALSE(disk.exchange("/sim/a", "/sim").ok());
  EXPECT_FALSE(disk.create("/sim").ok());
  EXPECT_THAT(*disk.list("/sim"), ElementsAre("a"));
  EXPECT_TRUE(absl::IsNotFound(disk.open("/elsewhere").status()));
}

}  // namespace
}  // namespace accelerate::simulator

namespace accelerate::testing {

INSTANTIATE_TEST_SUITE_P(Sim, FileSystemContract,
                         ::testing::Values(FileSystemUnderTest{
                             .name = "disk",
                             .make =
                                 [] {
                                   auto disk = std::make_shared<simulator::SimDisk>();
                                   return std::pair<std::shared_ptr<FileSystem>, std::string>(
                                       disk, "/sim");
                                 }}),
                         file_system_name);

}  // namespace accelerate::testing
