// Weights in a folder, and checkpoints, while they are replaced, on a disk that keeps what was
// synced and nothing that it need not.

#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "accelerate/checkpoint/folder/checkpoint_folder.h"
#include "accelerate/files/formats/safetensors_header.h"
#include "accelerate/files/formats/weight_files.h"
#include "accelerate/testing/files/interrupted_files.h"
#include "simulator/disk/sim_disk.h"

namespace accelerate {
namespace {

using simulator::DeterministicRandom;
using simulator::SimDisk;
using simulator::Unsynced;

constexpr char kFolder[] = "/sim/models/one";

// Three tensors of a byte each, which is `value`.
absl::Status save(FileSystem& files, char value, int64_t max_shard_bytes) {
  const std::vector<std::string> names = {"a", "b", "c"};
  return internal::replace_weights(
      files, kFolder, plan_shards({1, 1, 1}, max_shard_bytes), names,
      [&](const std::string& path, const std::vector<size_t>& tensors) {
        SafetensorsHeader header;
        for (size_t tensor : tensors) {
          header.tensors.push_back({.name = names[tensor], .dtype = "U8", .shape = {1}});
        }
        const std::string text = *lay_out_safetensors(header) + std::string(tensors.size(), value);
        absl::StatusOr<std::unique_ptr<WritableFile>> file = files.create(path);
        if (!file.ok()) return file.status();
        absl::Status written = (*file)->write_at(
            0, absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()), text.size()));
        if (written.ok()) written = (*file)->sync();
        written.Update((*file)->close());
        return written;
      });
}

// The values of the tensors that a reader finds, by name; a word for what is wrong.
std::string load(FileSystem& files) {
  const absl::StatusOr<WeightFiles> found = find_weight_files(files, kFolder);
  if (!found.ok()) return std::string(found.status().message());
  std::map<std::string, char> values;
  for (const WeightFile& weights : found->files) {
    const absl::StatusOr<std::unique_ptr<ReadableFile>> file = files.open(weights.path);
    if (!file.ok()) return std::string(file.status().message());
    const auto header = read_safetensors_header(**file, weights.path);
    if (!header.ok()) return std::string(header.status().message());
    std::vector<std::string> names;
    for (const SafetensorsEntry& entry : header->tensors) {
      names.push_back(entry.name);
      char value = 0;
      const auto bytes = absl::MakeSpan(reinterpret_cast<std::byte*>(&value), 1);
      const absl::Status read = (*file)->read_at(header->data_offset + entry.begin, bytes);
      if (!read.ok()) return std::string(read.message());
      values[entry.name] = value;
    }
    if (found->has_index) {
      const absl::Status checked = check_weight_file(weights, names);
      if (!checked.ok()) return std::string(checked.message());
    }
  }
  std::string text;
  for (const auto& [name, value] : values) text += name + value;
  return text;
}

std::string all(char value) { return std::string("a") + value + "b" + value + "c" + value; }

struct Counts {
  int crashes = 0;
  int old = 0;
};

// Saves over weights of value 1 and lets the machine die at each operation.
Counts sweep(int64_t before, int64_t after, Unsynced unsynced, uint64_t seed) {
  Counts counts;
  for (int64_t operation = 1;; ++operation) {
    SimDisk disk;
    EXPECT_TRUE(save(disk, '1', before).ok());
    InterruptedFiles files(disk, operation);
    const bool is_done = save(files, '2', after).ok();
    disk.crash(unsynced, DeterministicRandom(seed + operation));
    const std::string loaded = load(disk);
    if (is_done) {
      EXPECT_EQ(loaded, all('2'));
      return counts;
    }
    ++counts.crashes;
    EXPECT_THAT(loaded, testing::AnyOf(all('1'), all('2')))
        << before << " to " << after << ", operation " << operation;
    if (loaded == all('1')) ++counts.old;

    // Another crash while what was left is cleared up, then a save that is let through.
    InterruptedFiles again(disk, 1 + (operation * 7 + seed) % 23);
    const bool is_saved = save(again, '3', after).ok();
    disk.crash(unsynced, DeterministicRandom(seed * 31 + operation));
    if (is_saved) {
      EXPECT_EQ(load(disk), all('3'));
    } else {
      EXPECT_THAT(load(disk), testing::AnyOf(loaded, all('3')));
    }
    EXPECT_TRUE(save(disk, '4', after).ok());
    disk.crash(Unsynced::kLost);
    EXPECT_EQ(load(disk), all('4'));
    EXPECT_EQ(disk.list(kFolder)->size(), after >= 3 ? 1 : after == 2 ? 3 : 4);
  }
}

TEST(ModelFolder, SurvivesAMachineThatDiesAtAnyOperation) {
  Counts total;
  for (int64_t before = 1; before <= 3; ++before) {
    for (int64_t after = 1; after <= 3; ++after) {
      for (Unsynced unsynced : {Unsynced::kLost, Unsynced::kKept}) {
        const Counts counts = sweep(before, after, unsynced, 0);
        EXPECT_GT(counts.old, 0);
        total.crashes += counts.crashes;
        total.old += counts.old;
      }
      for (uint64_t seed = 1; seed <= 20; ++seed) {
        const Counts counts = sweep(before, after, Unsynced::kDrawn, seed);
        total.crashes += counts.crashes;
        total.old += counts.old;
      }
    }
  }
  EXPECT_LT(total.old, total.crashes);
  std::printf("%d crashes: %d old weights, %d new, 0 lost\n", total.crashes, total.old,
              total.crashes - total.old);
}

// Before the first save is complete there is nothing, and it is not taken for something.
TEST(ModelFolder, IsEmptyUntilTheFirstSaveIsComplete) {
  for (int64_t after = 1; after <= 3; ++after) {
    for (int64_t operation = 1;; ++operation) {
      SimDisk disk;
      InterruptedFiles files(disk, operation);
      const bool is_done = save(files, '1', after).ok();
      disk.crash(Unsynced::kLost);
      const std::string loaded = load(disk);
      if (is_done) {
        EXPECT_EQ(loaded, all('1'));
        break;
      }
      EXPECT_TRUE(loaded == all('1') ||
                  testing::Matches(testing::HasSubstr("nothing to load"))(loaded) ||
                  testing::Matches(testing::HasSubstr("does not exist"))(loaded))
          << loaded;
    }
  }
}

TEST(ModelFolder, KeepsTheOldWeightsOnAFullDisk) {
  for (int64_t room = 0;; room += 16) {
    SimDisk small({.capacity = room});
    const absl::Status first = save(small, '1', 1);
    if (!first.ok()) {
      EXPECT_TRUE(absl::IsResourceExhausted(first)) << first;
      continue;
    }
    const absl::Status second = save(small, '2', 1);
    EXPECT_EQ(load(small), second.ok() ? all('2') : all('1'));
    if (second.ok()) break;
    EXPECT_TRUE(absl::IsResourceExhausted(second)) << second;
  }
}

// A checkpoint that replaces another, likewise.

constexpr char kBest[] = "/sim/run/best";

absl::Status publish(FileSystem& files, const std::string& id) {
  absl::Status status = begin_checkpoint(files, kBest);
  const std::string weights = join_path(staging_path(kBest), "model_" + id);
  if (status.ok()) status = write_file(files, weights, id);
  return status.ok() ? publish_checkpoint(files, kBest, {.id = id}) : status;
}

std::string id_of_best(FileSystem& files) {
  const absl::StatusOr<Manifest> manifest = verify_checkpoint(files, kBest);
  return manifest.ok() ? manifest->id : std::string(manifest.status().message());
}

constexpr uint64_t kSeeds = 20;

// Lets the machine die at each operation of `change` on what `prepare` made, in all ways, and has
// `check` look at what is left. Returns how often it died.
int crash_at_each_operation(bool can_exchange, const std::function<void(FileSystem&)>& prepare,
                            const std::function<absl::Status(FileSystem&)>& change,
                            const std::function<void(FileSystem&)>& check) {
  int crashes = 0;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    for (int64_t operation = 1;; ++operation) {
      SCOPED_TRACE(absl::StrCat(can_exchange ? "with" : "without", " exchange, seed ", seed,
                                ", operation ", operation));
      SimDisk disk({.can_exchange = can_exchange});
      prepare(disk);
      InterruptedFiles files(disk, operation);
      const absl::Status changed = change(files);
      if (files.operations() < operation) {
        EXPECT_TRUE(changed.ok()) << changed;
        break;
      }
      ++crashes;
      // An input/output error that the machine survives is one of the ways.
      if (seed > 0) disk.crash(Unsynced::kDrawn, DeterministicRandom(seed * 1000 + operation));
      check(disk);
    }
  }
  return crashes;
}

TEST(CheckpointFolder, KeepsForeignFilesWhereverASaveDies) {
  for (const bool can_exchange : {true, false}) {
    const int crashes = crash_at_each_operation(
        can_exchange,
        [](FileSystem& files) {
          ASSERT_TRUE(publish(files, "1").ok());
          ASSERT_TRUE(write_file(files, join_path(kBest, "notes.txt"), "mine").ok());
        },
        [](FileSystem& files) {
          const absl::Status status = publish(files, "2");
          return status.ok() ? tidy_checkpoint(files, kBest) : status;
        },
        [](FileSystem& files) {
          EXPECT_TRUE(recover_checkpoint(files, kBest).ok());
          EXPECT_THAT(id_of_best(files), testing::AnyOf("1", "2"));
          const absl::Status saved = publish(files, "3");
          EXPECT_TRUE(saved.ok()) << saved;
          const absl::Status tidied = tidy_checkpoint(files, kBest);
          EXPECT_TRUE(tidied.ok()) << tidied;
          EXPECT_EQ(id_of_best(files), "3");
          EXPECT_THAT(files.list(parent_path(kBest)).value(), testing::ElementsAre("best"));
          EXPECT_EQ(read_file(files, join_path(kBest, "notes.txt")).value_or("lost"), "mine");
        });
    EXPECT_GT(crashes, 100);
  }
}

// If only some of several nodes have replaced their folder, those nodes put the old one back.
TEST(CheckpointFolder, TheReplacedOneIsPutBackWhateverDies) {
  for (const bool can_exchange : {true, false}) {
    for (const bool has_own_name : {false, true}) {
      const auto prepare = [&](FileSystem& files) {
        ASSERT_TRUE(publish(files, "older").ok());
        ASSERT_TRUE(write_file(files, join_path(kBest, "notes.txt"), "mine").ok());
        ASSERT_TRUE(publish(files, "newer").ok());
        ASSERT_TRUE(write_file(files, join_path(kBest, "more.txt"), "mine too").ok());
        if (!has_own_name) return;
        ASSERT_TRUE(files.rename(staging_path(kBest), std::string(kBest) + ".replaced").ok());
        // Another save began, and died.
        ASSERT_TRUE(write_file(files, join_path(staging_path(kBest), ".unfinished"), "").ok());
      };
      SimDisk disk({.can_exchange = can_exchange});
      prepare(disk);
      ASSERT_TRUE(restore_replaced(disk, kBest).ok());
      disk.crash(Unsynced::kLost);
      EXPECT_EQ(id_of_best(disk), "older");

      const int crashes = crash_at_each_operation(
          can_exchange, prepare, [](FileSystem& files) { return restore_replaced(files, kBest); },
          [](FileSystem& files) {
            EXPECT_TRUE(recover_checkpoint(files, kBest).ok());
            if (id_of_best(files) == "newer") {
              const absl::StatusOr<std::optional<Manifest>> older =
                  replaced_checkpoint(files, kBest);
              ASSERT_TRUE(older.ok() && *older) << older.status();
              EXPECT_EQ((*older)->id, "older");
              const absl::Status restored = restore_replaced(files, kBest);
              EXPECT_TRUE(restored.ok()) << restored;
            }
            EXPECT_EQ(id_of_best(files), "older");
            const absl::Status saved = publish(files, "newest");
            EXPECT_TRUE(saved.ok()) << saved;
            EXPECT_TRUE(tidy_checkpoint(files, kBest).ok());
            EXPECT_THAT(files.list(parent_path(kBest)).value(), testing::ElementsAre("best"));
            EXPECT_THAT(
                files.list(kBest).value(),
                testing::ElementsAre("manifest.json", "model_newest", "more.txt", "notes.txt"));
          });
      EXPECT_GT(crashes, 20);
    }
  }
}

}  // namespace
}  // namespace accelerate
