#include "accelerate/checkpoint/folder/save_load.h"

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/comm/checkpoint_error.h"
#include "accelerate/files/formats/weight_files.h"
#include "accelerate/files/safetensors.h"
#include "accelerate/platform/host_files.h"
#include "accelerate/testing/files/interrupted_files.h"

namespace accelerate {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class SaveModel : public testing::Test {
 protected:
  SaveModel() : folder_(testing::TempDir() + "/save_model") { clear(); }
  ~SaveModel() override { clear(); }

  void clear() { EXPECT_TRUE(remove_all(files_, folder_).ok()); }
  std::vector<std::string> list() { return *files_.list(folder_); }
  std::string path(const std::string& name) const { return join_path(folder_, name); }

  HostFiles disk_{/*parallelism=*/1};
  InterruptedFiles files_{disk_, InterruptedFiles::kNever, /*syncs=*/false};
  const std::string folder_;
};

// Three tensors of 8 bytes, all of whose elements are `value`.
NamedTensors weights(int64_t value, int count = 3) {
  NamedTensors tensors;
  for (int i = 0; i < count; ++i)
    tensors.emplace_back(std::string(1, 'a' + i), at::full({1}, value, at::kLong));
  return tensors;
}

// The one value of all tensors that a reader finds; -1 if there is nothing to read.
int64_t value_in(FileSystem& files, const std::string& folder) {
  const absl::StatusOr<WeightFiles> found = find_weight_files(files, folder);
  if (absl::IsNotFound(found.status())) return -1;
  EXPECT_TRUE(found.ok()) << found.status();
  if (!found.ok()) return -2;
  std::vector<int64_t> values;
  for (const WeightFile& file : found->files) {
    const absl::StatusOr<SafetensorsFile> opened = SafetensorsFile::open(files, file.path);
    EXPECT_TRUE(opened.ok()) << opened.status();
    if (!opened.ok()) return -2;
    const absl::StatusOr<NamedTensors> read = opened->read_all();
    EXPECT_TRUE(read.ok()) << read.status();
    if (!read.ok()) return -2;
    std::vector<std::string> names;
    for (const auto& [name, tensor] : *read) {
      names.push_back(name);
      values.push_back(tensor.item<int64_t>());
    }
    if (found->has_index) EXPECT_TRUE(check_weight_file(file, names).ok());
  }
  EXPECT_THAT(values, testing::Each(values.at(0)));
  return values[0];
}

TEST_F(SaveModel, WritesOneFileOrShards) {
  save_model(files_, weights(1), folder_);
  EXPECT_THAT(list(), ElementsAre("model.safetensors"));
  clear();
  save_model(files_, weights(1), folder_, {.max_shard_size = 16});
  EXPECT_THAT(list(),
              ElementsAre("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                          "model.safetensors.index.json"));
  EXPECT_EQ(value_in(files_, folder_), 1);
}

TEST_F(SaveModel, SavesTiedTensorsOnceAndPartialViewsApart) {
  const at::Tensor whole = at::arange(4);
  save_model(files_,
             {{"whole", whole},
              {"tied", whole},
              {"part", whole.slice(0, 1, 3)},
              {"columns", whole.view({2, 2}).t()},
              {"empty", at::empty({0})},
              {"also_empty", at::empty({0, 2})}},
             folder_);
  const auto file = SafetensorsFile::open(files_, path("model.safetensors"));
  ASSERT_TRUE(file.ok());
  const auto read = file->read_all();
  ASSERT_TRUE(read.ok());
  std::vector<std::string> names;
  for (const auto& [name, tensor] : *read) {
    names.push_back(name);
    if (name == "part") EXPECT_TRUE(tensor.equal(at::arange(1, 3)));
    if (name == "columns") EXPECT_TRUE(tensor.equal(at::arange(4).view({2, 2}).t()));
  }
  EXPECT_THAT(names,
              testing::UnorderedElementsAre("whole", "part", "columns", "empty", "also_empty"));
}

TEST_F(SaveModel, HasAFileForAModelWithoutTensors) {
  save_model(files_, {}, folder_);
  EXPECT_THAT(list(), ElementsAre("model.safetensors"));
}

TEST_F(SaveModel, RemovesWhatEarlierSavesLeftAndNothingElse) {
  for (const char* name :
       {"model-00001-of-00009.safetensors", "model.safetensors.index.json", "model.safetensors",
        "model-00001-of-00009.new.safetensors", "model.new.safetensors", "notes.txt",
        "pytorch_model.bin", "model-1-of-2.safetensors", "model_1.safetensors"}) {
    ASSERT_TRUE(write_file(files_, path(name), "old").ok());
  }
  save_model(files_, weights(1), folder_, {.max_shard_size = 16});
  EXPECT_THAT(list(),
              ElementsAre("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                          "model-1-of-2.safetensors", "model.safetensors.index.json",
                          "model_1.safetensors", "notes.txt", "pytorch_model.bin"));
  save_model(files_, weights(2), folder_);
  EXPECT_THAT(list(), ElementsAre("model-1-of-2.safetensors", "model.safetensors",
                                  "model_1.safetensors", "notes.txt", "pytorch_model.bin"));
}

TEST_F(SaveModel, RefusesWhatCannotBeSaved) {
  ASSERT_TRUE(write_file(files_, path("file"), "x").ok());
  EXPECT_THROW(save_model(files_, weights(1), path("file")), c10::ValueError);
  EXPECT_THROW(save_model(files_, weights(1), folder_, {.max_shard_size = "400"}), c10::ValueError);
  try {
    save_model(files_, {{"x", at::empty({2}, at::kMeta)}, {"y", at::empty({2}, at::kMeta)}},
               folder_);
    ADD_FAILURE() << "meta tensors were saved";
  } catch (const c10::ValueError& error) {
    EXPECT_THAT(error.what(), HasSubstr("x, y"));
  }
  EXPECT_THROW(save_model(files_, {{"z", at::empty({2}, at::kComplexFloat)}}, folder_),
               CheckpointError);
  EXPECT_THAT(list(), ElementsAre("file"));
}

struct Change {
  int64_t before;  // max_shard_size
  int64_t after;
};

class InterruptedSave : public SaveModel, public testing::WithParamInterface<Change> {};

// Whatever operation is the last one, a reader finds the old weights or the new ones, a save after
// that works, and nothing is left of the others.
TEST_P(InterruptedSave, LeavesTheOldWeightsOrTheNew) {
  int interrupted = 0;
  int old = 0;
  for (int64_t operation = 1;; ++operation) {
    clear();
    save_model(files_, weights(1), folder_, {.max_shard_size = GetParam().before});
    InterruptedFiles files(files_, operation);
    bool is_done = true;
    try {
      save_model(files, weights(2), folder_, {.max_shard_size = GetParam().after});
    } catch (const CheckpointError&) {
      is_done = false;
    }
    const int64_t value = value_in(files_, folder_);
    if (is_done) {
      EXPECT_EQ(value, 2);
      break;
    }
    ++interrupted;
    EXPECT_THAT(value, testing::AnyOf(1, 2)) << "interrupted at operation " << operation;
    if (value == 1) ++old;

    // Also a second interruption loses nothing.
    InterruptedFiles again(files_, 1 + operation % 7);
    EXPECT_THROW(save_model(again, weights(3), folder_, {.max_shard_size = GetParam().after}),
                 CheckpointError);
    EXPECT_THAT(value_in(files_, folder_), testing::AnyOf(value, 3));

    save_model(files_, weights(4), folder_, {.max_shard_size = GetParam().after});
    EXPECT_EQ(value_in(files_, folder_), 4);
    EXPECT_EQ(list().size(), GetParam().after >= 24 ? 1 : GetParam().after >= 16 ? 3 : 4);
  }
  EXPECT_GT(old, 3);
  EXPECT_GT(interrupted, old);
}

INSTANTIATE_TEST_SUITE_P(FilesToFiles, InterruptedSave,
                         testing::Values(Change{24, 24}, Change{24, 16}, Change{16, 24},
                                         Change{16, 16}, Change{8, 16}, Change{16, 8},
                                         Change{8, 8}),
                         [](const auto& info) {
                           return std::to_string(info.param.before) + "_to_" +
                                  std::to_string(info.param.after);
                         });

}  // namespace
}  // namespace accelerate
