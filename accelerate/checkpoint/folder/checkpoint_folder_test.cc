#include "accelerate/checkpoint/folder/checkpoint_folder.h"

#include <cstddef>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/platform/file_system.h"
#include "accelerate/platform/host_files.h"

namespace accelerate {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Files of which some reads get a wrong bit.
class FlippingFiles final : public ForwardingFiles {
 public:
  // The first `times` times that a file of that name is read.
  FlippingFiles(FileSystem& files, std::string name, int times)
      : ForwardingFiles(files), name_(std::move(name)), times_(times) {}

  absl::StatusOr<std::unique_ptr<ReadableFile>> open(const std::string& path) override {
    absl::StatusOr<std::unique_ptr<ReadableFile>> file = ForwardingFiles::open(path);
    if (!file.ok() || !path.ends_with("/" + name_) || times_ == 0) return file;
    --times_;
    return std::make_unique<File>(*std::move(file));
  }
  int parallelism() const override { return 1; }

 private:
  class File final : public ReadableFile {
   public:
    explicit File(std::unique_ptr<ReadableFile> file) : file_(std::move(file)) {}
    int64_t size() const override { return file_->size(); }
    absl::Status read_at(int64_t offset, absl::Span<std::byte> out) const override {
      const absl::Status read = file_->read_at(offset, out);
      if (read.ok() && !out.empty()) out[out.size() / 2] ^= std::byte{4};
      return read;
    }
    absl::StatusOr<std::shared_ptr<const absl::Span<const std::byte>>> map() const override {
      return file_->map();
    }

   private:
    const std::unique_ptr<ReadableFile> file_;
  };

  const std::string name_;
  int times_;
};

class CheckpointFolder : public testing::Test {
 protected:
  CheckpointFolder() { remove_all(files_, folder_).IgnoreError(); }

  std::string path(const std::string& name) const { return join_path(folder_, name); }

  void write(const std::string& name, const std::string& text) {
    ASSERT_TRUE(write_file(files_, path(name), text).ok());
  }

  // A checkpoint of one file, which no manifest lists.
  void save(const std::string& name, const std::string& text = "weights",
            std::optional<double> metric = std::nullopt) {
    ASSERT_TRUE(begin_checkpoint(files_, path(name)).ok());
    write(name + ".tmp/model.bin", text);
    const absl::Status published =
        publish_checkpoint(files_, path(name), Manifest{.metric = metric});
    ASSERT_TRUE(published.ok()) << published;
    ASSERT_TRUE(tidy_checkpoint(files_, path(name)).ok());
  }

  std::vector<std::string> names() {
    return files_.list(folder_).value_or(std::vector<std::string>());
  }

  std::string why_not(const std::string& name) {
    const auto checked = verify_checkpoint(files_, path(name));
    return checked.ok() ? "complete" : std::string(checked.status().message());
  }

  std::string latest() {
    const auto found = latest_complete(files_, folder_, &skipped_);
    return found.ok() && *found ? (*found)->path.substr(folder_.size() + 1) : "none";
  }

  HostFiles files_;
  const std::string folder_ =
      testing::TempDir() + testing::UnitTest::GetInstance()->current_test_info()->name();
  std::vector<SkippedCheckpoint> skipped_;
};

TEST_F(CheckpointFolder, IsCompleteOnceItHasItsName) {
  ASSERT_TRUE(begin_checkpoint(files_, path("checkpoint_0")).ok());
  write("checkpoint_0.tmp/model.bin", "weights");
  write("checkpoint_0.tmp/below/more.bin", "");
  EXPECT_EQ(latest(), "none");
  ASSERT_TRUE(publish_checkpoint(files_, path("checkpoint_0"), {.iteration = 4}).ok());
  EXPECT_THAT(names(), ElementsAre("checkpoint_0"));
  const auto manifest = verify_checkpoint(files_, path("checkpoint_0"));
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->iteration, 4);
  EXPECT_EQ(manifest->files.at("model.bin").size, 7);
  EXPECT_TRUE(manifest->files.contains("below/more.bin"));
}

TEST_F(CheckpointFolder, SaysWhyItIsNotComplete) {
  save("checkpoint_1");
  EXPECT_EQ(why_not("checkpoint_1"), "complete");
  write("checkpoint_1/model.bin", "weighty");
  EXPECT_TRUE(check_checkpoint(files_, path("checkpoint_1")).ok());
  EXPECT_THAT(why_not("checkpoint_1"), HasSubstr("checkpoint_1/model.bin is damaged"));
  write("checkpoint_1/model.bin", "weig");
  EXPECT_THAT(why_not("checkpoint_1"), HasSubstr("model.bin has 4 bytes instead of 7"));
  ASSERT_TRUE(files_.remove(path("checkpoint_1/model.bin")).ok());
  EXPECT_THAT(why_not("checkpoint_1"), HasSubstr("model.bin is missing"));
  ASSERT_TRUE(files_.remove(path("checkpoint_1/manifest.json")).ok());
  EXPECT_THAT(why_not("checkpoint_1"), HasSubstr("it has no manifest.json"));
  EXPECT_THAT(why_not("checkpoint_2"), HasSubstr("checkpoint_2"));
}

TEST_F(CheckpointFolder, TheLatestCompleteOneIsFound) {
  EXPECT_EQ(latest(), "none");
  save("checkpoint_9");
  save("checkpoint_10");
  save("checkpoint_11");
  ASSERT_TRUE(files_.remove(path("checkpoint_11/manifest.json")).ok());
  ASSERT_TRUE(begin_checkpoint(files_, path("checkpoint_12")).ok());
  ASSERT_TRUE(files_.make_directories(path("notes")).ok());
  write("checkpoint_99", "a file");
  ASSERT_TRUE(files_.make_directories(path("checkpoint_5")).ok());
  EXPECT_EQ(latest(), "checkpoint_10");
  // Older ones that are not complete are not reported.
  ASSERT_EQ(skipped_.size(), 2u);
  EXPECT_EQ(skipped_[0].path, path("checkpoint_11"));
  EXPECT_THAT(std::string(skipped_[0].why.message()), HasSubstr("no manifest.json"));
  EXPECT_THAT(std::string(skipped_[1].why.message()),
              HasSubstr("checkpoint_12.tmp was left by a save that crashed"));
}

TEST_F(CheckpointFolder, TheOldestGoWhenThereAreTooMany) {
  for (const char* name : {"checkpoint_8", "checkpoint_9", "checkpoint_10"}) save(name);
  ASSERT_TRUE(files_.make_directories(path("run_3")).ok());
  write("checkpoint_1", "a file");
  save("checkpoint_7.removed");
  ASSERT_TRUE(files_.remove(path("checkpoint_7.removed/model.bin")).ok());
  ASSERT_TRUE(rotate_checkpoints(files_, folder_, 2, path("checkpoint_10")).ok());
  EXPECT_THAT(names(), ElementsAre("checkpoint_1", "checkpoint_10", "checkpoint_9", "run_3"));
  ASSERT_TRUE(rotate_checkpoints(files_, folder_, 0, path("checkpoint_10")).ok());
  EXPECT_THAT(names(), ElementsAre("checkpoint_1", "checkpoint_10", "run_3"));
}

// As texts, "checkpoint_10" and "checkpoint_11" come before "checkpoint_9".
TEST_F(CheckpointFolder, TheOldestIsThatOfTheLowestNumber) {
  for (const char* name : {"checkpoint_9", "checkpoint_10", "checkpoint_11"}) save(name);
  ASSERT_TRUE(rotate_checkpoints(files_, folder_, 2, path("checkpoint_11")).ok());
  EXPECT_THAT(names(), ElementsAre("checkpoint_10", "checkpoint_11"));
  save("checkpoint_100");
  ASSERT_TRUE(rotate_checkpoints(files_, folder_, 2, path("checkpoint_100")).ok());
  EXPECT_THAT(names(), ElementsAre("checkpoint_100", "checkpoint_11"));
}

TEST_F(CheckpointFolder, TheNewestStaysWhateverItsNumber) {
  for (const char* name : {"checkpoint_8", "checkpoint_9", "checkpoint_2"}) save(name);
  ASSERT_TRUE(rotate_checkpoints(files_, folder_, 1, path("checkpoint_2")).ok());
  EXPECT_THAT(names(), ElementsAre("checkpoint_2"));
}

TEST_F(CheckpointFolder, AnotherOfThatNameIsReplacedAndForeignFilesAreKept) {
  save("here", "old");
  write("here/notes.txt", "mine");
  write("here/logs/a.txt", "mine too");
  save("here", "newer");
  EXPECT_EQ(why_not("here"), "complete");
  EXPECT_EQ(read_file(files_, path("here/model.bin")).value(), "newer");
  EXPECT_EQ(read_file(files_, path("here/notes.txt")).value(), "mine");
  EXPECT_EQ(read_file(files_, path("here/logs/a.txt")).value(), "mine too");
  EXPECT_THAT(names(), ElementsAre("here"));
}

TEST_F(CheckpointFolder, ASaveThatDiedAfterTheExchangeLosesNoForeignFiles) {
  save("here", "new");
  // As it is right after the exchange: the old folder has the staging name.
  write("here.tmp/notes.txt", "mine");
  write("here.tmp/model.bin", "old");
  write("here.tmp/.outdated", "");
  ASSERT_TRUE(begin_checkpoint(files_, path("here")).ok());
  EXPECT_EQ(read_file(files_, path("here/notes.txt")).value(), "mine");
  EXPECT_THAT(files_.list(path("here.tmp")).value(), ElementsAre(".unfinished"));
}

// On a disk that cannot exchange names, the old folder has a name of its own for a while.
TEST_F(CheckpointFolder, ASaveThatDiedBetweenTwoNamesLosesNoForeignFiles) {
  save("here", "new");
  write("here.replaced/notes.txt", "mine");
  write("here.replaced/model.bin", "old");
  write("here.replaced/.outdated", "");
  ASSERT_TRUE(begin_checkpoint(files_, path("here")).ok());
  EXPECT_THAT(names(), ElementsAre("here", "here.tmp"));
  EXPECT_EQ(read_file(files_, path("here/notes.txt")).value(), "mine");
  EXPECT_EQ(read_file(files_, path("here/model.bin")).value(), "new");
  // An entry that only has such a name stays.
  write("here.replaced", "a file");
  EXPECT_TRUE(tidy_checkpoint(files_, path("here")).ok());
  ASSERT_TRUE(files_.remove(path("here.replaced")).ok());
  write("here.replaced/thesis.txt", "mine");
  EXPECT_TRUE(tidy_checkpoint(files_, path("here")).ok());
  EXPECT_EQ(read_file(files_, path("here.replaced/thesis.txt")).value(), "mine");
}

// "model.safetensors" sorts between "model" and "model/adapter.bin".
TEST_F(CheckpointFolder, AFolderOfTheOldOneIsNotTakenForAForeignOne) {
  ASSERT_TRUE(begin_checkpoint(files_, path("here")).ok());
  write("here.tmp/model.safetensors", "weights");
  write("here.tmp/model/adapter.bin", "of the old one");
  ASSERT_TRUE(publish_checkpoint(files_, path("here"), Manifest()).ok());
  save("here", "new");
  EXPECT_THAT(files_.list(path("here")).value(), ElementsAre("manifest.json", "model.bin"));
}

TEST_F(CheckpointFolder, AManifestIsReadAgainBeforeItCountsAsDamaged) {
  save("checkpoint_1");
  FlippingFiles once(files_, "manifest.json", 1);
  const auto checked = check_checkpoint(once, path("checkpoint_1"));
  EXPECT_TRUE(checked.ok()) << checked.status();
  FlippingFiles always(files_, "manifest.json", 2);
  EXPECT_THAT(check_checkpoint(always, path("checkpoint_1")).status().message(),
              HasSubstr("checkpoint_1/manifest.json: not a manifest"));
  FlippingFiles data(files_, "model.bin", 1);
  EXPECT_TRUE(verify_checkpoint(data, path("checkpoint_1")).ok());
}

TEST_F(CheckpointFolder, AManifestIsReadAgainBeforeItsFilesCountAsForeign) {
  ASSERT_TRUE(begin_checkpoint(files_, path("here")).ok());
  write("here.tmp/optimizer.bin", "of the old one");
  ASSERT_TRUE(publish_checkpoint(files_, path("here"), Manifest()).ok());
  ASSERT_TRUE(begin_checkpoint(files_, path("here")).ok());
  write("here.tmp/model.bin", "new");
  ASSERT_TRUE(publish_checkpoint(files_, path("here"), Manifest()).ok());
  FlippingFiles once(files_, "manifest.json", 1);
  ASSERT_TRUE(tidy_checkpoint(once, path("here")).ok());
  EXPECT_THAT(files_.list(path("here")).value(), ElementsAre("manifest.json", "model.bin"));
}

TEST_F(CheckpointFolder, TheReplacedOneIsPutBack) {
  const auto id = [&] {
    const auto manifest = verify_checkpoint(files_, path("here"));
    return manifest.ok() ? manifest->id : std::string(manifest.status().message());
  };
  const auto publish = [&](const std::string& text) {
    ASSERT_TRUE(begin_checkpoint(files_, path("here")).ok());
    write("here.tmp/model.bin", text);
    ASSERT_TRUE(publish_checkpoint(files_, path("here"), {.id = text}).ok());
  };
  for (const char* where : {"here.tmp", "here.replaced"}) {
    ASSERT_TRUE(remove_all(files_, folder_).ok());
    publish("old");
    EXPECT_EQ(replaced_checkpoint(files_, path("here")).value(), std::nullopt);
    EXPECT_THAT(restore_replaced(files_, path("here")).message(), HasSubstr("beside"));
    write("here/notes.txt", "mine");
    publish("new");
    write("here/more.txt", "mine too");
    if (where != std::string("here.tmp")) {
      ASSERT_TRUE(files_.rename(path("here.tmp"), path(where)).ok());
    }
    EXPECT_EQ(id(), "new");
    const auto replaced = replaced_checkpoint(files_, path("here"));
    ASSERT_TRUE(replaced.ok() && *replaced) << replaced.status();
    EXPECT_EQ((*replaced)->id, "old");
    const absl::Status restored = restore_replaced(files_, path("here"));
    ASSERT_TRUE(restored.ok()) << restored;
    EXPECT_EQ(id(), "old");
    // The newer is nothing to go back to.
    EXPECT_EQ(replaced_checkpoint(files_, path("here")).value(), std::nullopt);
    ASSERT_TRUE(tidy_checkpoint(files_, path("here")).ok());
    EXPECT_THAT(names(), ElementsAre("here"));
    EXPECT_THAT(files_.list(path("here")).value(),
                ElementsAre("manifest.json", "model.bin", "more.txt", "notes.txt"));
  }
}

TEST_F(CheckpointFolder, AReplacedOneThatIsBeingRemovedIsNotPutBack) {
  save("here", "old");
  ASSERT_TRUE(begin_checkpoint(files_, path("here")).ok());
  ASSERT_TRUE(publish_checkpoint(files_, path("here"), Manifest()).ok());
  ASSERT_TRUE(files_.remove(path("here.tmp/model.bin")).ok());
  EXPECT_EQ(replaced_checkpoint(files_, path("here")).value(), std::nullopt);
  EXPECT_TRUE(absl::IsNotFound(restore_replaced(files_, path("here"))));
}

TEST_F(CheckpointFolder, ASaveThatDiedBeforeLeavesNothing) {
  save("here", "old");
  ASSERT_TRUE(begin_checkpoint(files_, path("here")).ok());
  write("here.tmp/gradients.bin", "half");
  ASSERT_TRUE(begin_checkpoint(files_, path("here")).ok());
  EXPECT_THAT(files_.list(path("here")).value(), ElementsAre("manifest.json", "model.bin"));
}

TEST_F(CheckpointFolder, WhatIsNotOursIsNotRemoved) {
  write("here.tmp/thesis.txt", "mine");
  EXPECT_THAT(begin_checkpoint(files_, path("here")).message(),
              HasSubstr("here.tmp is in the way"));
  EXPECT_EQ(read_file(files_, path("here.tmp/thesis.txt")).value(), "mine");
  save("checkpoint_1");
  save("checkpoint_2");
  write("webapp1/manifest.json", "{}");
  write("notes1.removed/mine.txt", "mine");
  ASSERT_TRUE(rotate_checkpoints(files_, folder_, 1, path("checkpoint_2")).ok());
  EXPECT_THAT(names(), ElementsAre("checkpoint_2", "here.tmp", "notes1.removed", "webapp1"));
  // In the folder of another program's checkpoint, only what has a name of ours is replaced.
  write("peer/model.bin", "old");
  write("peer/notes.txt", "mine");
  save("peer", "new");
  EXPECT_EQ(read_file(files_, path("peer/model.bin")).value(), "new");
  EXPECT_EQ(read_file(files_, path("peer/notes.txt")).value(), "mine");
  EXPECT_THAT(names(), testing::Not(testing::Contains("peer.tmp")));
}

TEST_F(CheckpointFolder, TheLastDurableOneStays) {
  const auto save_as = [&](const std::string& name, bool durable) {
    ASSERT_TRUE(begin_checkpoint(files_, path(name)).ok());
    ASSERT_TRUE(publish_checkpoint(files_, path(name), {.durable = durable}).ok());
    ASSERT_TRUE(rotate_checkpoints(files_, folder_, 1, path(name)).ok());
  };
  save_as("checkpoint_1", true);
  save_as("checkpoint_2", false);
  save_as("checkpoint_3", false);
  EXPECT_THAT(names(), ElementsAre("checkpoint_1", "checkpoint_3"));
  save_as("checkpoint_4", true);
  EXPECT_THAT(names(), ElementsAre("checkpoint_4"));
}

TEST_F(CheckpointFolder, DamagedOnesGoFirst) {
  for (const char* name : {"checkpoint_4", "checkpoint_5", "checkpoint_6"}) save(name);
  const std::set<std::string> damaged = {path("checkpoint_5")};
  ASSERT_TRUE(rotate_checkpoints(files_, folder_, 3, path("checkpoint_6"), damaged).ok());
  EXPECT_THAT(names(), ElementsAre("checkpoint_4", "checkpoint_5", "checkpoint_6"));
  ASSERT_TRUE(rotate_checkpoints(files_, folder_, 2, path("checkpoint_6"), damaged).ok());
  EXPECT_THAT(names(), ElementsAre("checkpoint_4", "checkpoint_6"));
}

TEST_F(CheckpointFolder, ADamagedOneIsNotTheLastDurableOne) {
  save("checkpoint_4");
  save("checkpoint_5");
  ASSERT_TRUE(begin_checkpoint(files_, path("checkpoint_6")).ok());
  ASSERT_TRUE(publish_checkpoint(files_, path("checkpoint_6"), {.durable = false}).ok());
  ASSERT_TRUE(
      rotate_checkpoints(files_, folder_, 1, path("checkpoint_6"), {path("checkpoint_5")}).ok());
  EXPECT_THAT(names(), ElementsAre("checkpoint_4", "checkpoint_6"));
}

TEST_F(CheckpointFolder, TwoWritersSeeEachOther) {
  ASSERT_TRUE(begin_checkpoint(files_, path("a"), "node 0").ok());
  EXPECT_TRUE(check_writer(files_, path("a"), "node 0").ok());
  ASSERT_TRUE(begin_checkpoint(files_, path("a"), "node 1").ok());
  EXPECT_THAT(check_writer(files_, path("a"), "node 0").message(), HasSubstr("save_on_each_node"));
}

TEST_F(CheckpointFolder, AReplacedOneGetsItsNameBack) {
  save("here", "old");
  ASSERT_TRUE(files_.rename(path("here"), path("here.replaced")).ok());
  ASSERT_TRUE(recover_checkpoint(files_, path("here")).ok());
  EXPECT_EQ(why_not("here"), "complete");
  ASSERT_TRUE(recover_checkpoint(files_, path("here")).ok());
}

TEST_F(CheckpointFolder, WhatAnotherRankWroteMustBeSeen) {
  ASSERT_TRUE(begin_checkpoint(files_, path("a")).ok());
  Manifest manifest;
  manifest.files["random_states_1.safetensors"] = {.size = 3};
  const absl::Status status = publish_checkpoint(files_, path("a"), manifest);
  EXPECT_THAT(status.message(), HasSubstr("save_on_each_node"));
  EXPECT_THAT(status.message(), HasSubstr("random_states_1"));
  ASSERT_TRUE(begin_checkpoint(files_, path("a")).ok());
  write("a.tmp/random_states_1.safetensors", "12");
  EXPECT_THAT(publish_checkpoint(files_, path("a"), manifest).message(),
              HasSubstr("has 2 bytes, but 3 were written"));
  ASSERT_TRUE(abandon_checkpoint(files_, path("a")).ok());
  EXPECT_THAT(names(), IsEmpty());
}

// A folder's files come where its name does, which is not where their paths would.
TEST_F(CheckpointFolder, FoldersMayHaveNamesThatFilesBeginWith) {
  ASSERT_TRUE(begin_checkpoint(files_, path("a")).ok());
  Manifest manifest;
  for (const char* name : {"hook/more.bin", "hook.bin"}) {
    write(std::string("a.tmp/") + name, "12");
    manifest.files[name] = {.size = 2};
  }
  EXPECT_TRUE(publish_checkpoint(files_, path("a"), manifest).ok());
}

TEST_F(CheckpointFolder, AFileIsNoPlaceForOne) {
  write("a", "text");
  EXPECT_THAT(begin_checkpoint(files_, path("a")).message(), HasSubstr("is a file"));
}

TEST(CheckpointNumber, IsTheFirstInTheName) {
  EXPECT_EQ(checkpoint_number("checkpoint_12"), 12);
  EXPECT_EQ(checkpoint_number("run2_checkpoint_12"), 2);
  EXPECT_EQ(checkpoint_number("checkpoint"), std::nullopt);
  EXPECT_EQ(checkpoint_number("checkpoint_99999999999999999999"), std::nullopt);
}

TEST_F(CheckpointFolder, TheBestOneStaysHoweverOldItIs) {
  save("checkpoint_1", "weights", -3.0);
  save("checkpoint_2", "weights", 0.5);
  save("checkpoint_3", "weights", 0.5);
  save("checkpoint_4");
  save("checkpoint_5", "weights", 0.25);
  ASSERT_TRUE(rotate_checkpoints(files_, folder_, 2, path("checkpoint_5")).ok());
  EXPECT_THAT(names(), ElementsAre("checkpoint_2", "checkpoint_5"));
  save("checkpoint_6");
  ASSERT_TRUE(rotate_checkpoints(files_, folder_, 1, path("checkpoint_6")).ok());
  EXPECT_THAT(names(), ElementsAre("checkpoint_2", "checkpoint_6"));
  save("checkpoint_7", "weights", 0.75);
  ASSERT_TRUE(rotate_checkpoints(files_, folder_, 1, path("checkpoint_7")).ok());
  EXPECT_THAT(names(), ElementsAre("checkpoint_7"));
}

TEST_F(CheckpointFolder, ADamagedOneIsNotTheBest) {
  save("checkpoint_1", "weights", 0.5);
  save("checkpoint_2", "weights", 0.75);
  save("checkpoint_3", "weights", 0.25);
  ASSERT_TRUE(
      rotate_checkpoints(files_, folder_, 1, path("checkpoint_3"), {path("checkpoint_2")}).ok());
  EXPECT_THAT(names(), ElementsAre("checkpoint_1", "checkpoint_3"));
}

TEST_F(CheckpointFolder, RatedOnesComeFromTheWorstToTheBest) {
  save("checkpoint_1", "weights", 0.5);
  save("checkpoint_2");
  save("checkpoint_3", "weights", 0.5);
  save("checkpoint_4", "weights", -1.0);
  const auto found = find_checkpoints(files_, folder_);
  ASSERT_TRUE(found.ok()) << found.status();
  std::vector<int64_t> numbers;
  for (const FoundCheckpoint& each : from_worst_to_best(found->complete)) {
    numbers.push_back(each.number);
  }
  EXPECT_THAT(numbers, ElementsAre(4, 3, 1));
}

}  // namespace
}  // namespace accelerate
