// Weights in a folder while they are replaced, on a disk that keeps what was synced and nothing
// that it need not.
#include "accelerate/checkpoint/model_folder.h"

#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/checkpoint/safetensors_header.h"
#include "accelerate/checkpoint/shard_plan.h"
#include "accelerate/checkpoint/weight_files.h"
#include "accelerate/testing/interrupted_files.h"
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

}  // namespace
}  // namespace accelerate
