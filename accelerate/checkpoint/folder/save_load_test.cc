#include "accelerate/checkpoint/folder/save_load.h"

#include <cmath>
#include <limits>
#include <string>

#include <ATen/ATen.h>
#include <ATen/core/jit_type.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include "accelerate/checkpoint/tensor_files/safetensors.h"
#include "accelerate/comm/checkpoint_error.h"
#include "accelerate/platform/host_files.h"
#include "accelerate/testing/files/interrupted_files.h"

namespace accelerate {
namespace {

using nlohmann::ordered_json;
using testing::ElementsAre;
using testing::HasSubstr;

class SaveLoad : public testing::Test {
 protected:
  SaveLoad() : folder_(testing::TempDir() + "/save_load"), path_(folder_ + "/deep/object") {}
  ~SaveLoad() override { EXPECT_TRUE(remove_all(files_, folder_).ok()); }

  HostFiles disk_{/*parallelism=*/1};
  InterruptedFiles files_{disk_, InterruptedFiles::kNever, /*syncs=*/false};
  const std::string folder_;
  const std::string path_;
};

TEST_F(SaveLoad, TensorsAreAFileOthersRead) {
  save(files_, NamedTensors{{"x", at::arange(3)}, {"t", at::arange(4).view({2, 2}).t()}}, path_);
  const auto file = SafetensorsFile::open(files_, path_);
  ASSERT_TRUE(file.ok());
  EXPECT_THAT(*file->header().metadata, ElementsAre(testing::Pair("format", "pt")));
  const StateDict state = load(files_, path_);
  ASSERT_EQ(state.tensors.size(), 2);
  EXPECT_EQ(state.tensors[0].first, "t");
  EXPECT_TRUE(state.tensors[0].second.equal(at::arange(4).view({2, 2}).t()));
  EXPECT_TRUE(state.values.empty());
}

TEST_F(SaveLoad, ValuesGoWithTensorsOrAlone) {
  StateDict state{.values = {{"step", 3}, {"name", "adam"}, {"lr", 0.1}}};
  save(files_, state, path_);
  EXPECT_EQ((*read_file(files_, path_))[0], '{');
  EXPECT_EQ(load(files_, path_).values, state.values);
  state.tensors = {{"x", at::ones({2})}};
  save(files_, state, path_);
  const StateDict again = load(files_, path_);
  EXPECT_EQ(again.values, state.values);
  EXPECT_TRUE(again.tensors.at(0).second.equal(at::ones({2})));
}

TEST_F(SaveLoad, NestedValuesAreFlattened) {
  c10::impl::GenericDict inner(c10::StringType::get(), c10::AnyType::get());
  inner.insert("w", at::ones({1}));
  inner.insert("n", 4);
  c10::impl::GenericList list(c10::AnyType::get());
  list.push_back(at::zeros({1}));
  list.push_back("two");
  c10::impl::GenericDict dict(c10::StringType::get(), c10::AnyType::get());
  dict.insert("inner", inner);
  dict.insert("list", list);
  dict.insert("none", c10::IValue());
  save(files_, c10::IValue(dict), path_);
  const StateDict state = load(files_, path_);
  ASSERT_EQ(state.tensors.size(), 2);
  EXPECT_EQ(state.tensors[0].first, "inner.w");
  EXPECT_EQ(state.tensors[1].first, "list.0");
  EXPECT_EQ(state.values,
            ordered_json::parse(R"({"inner": {"n": 4}, "list": [null, "two"], "none": null})"));
}

TEST_F(SaveLoad, ReadsTorchFiles) {
  c10::impl::GenericDict dict(c10::StringType::get(), c10::AnyType::get());
  dict.insert("x", at::arange(2));
  dict.insert("step", 5);
  const std::vector<char> bytes = torch::jit::pickle_save(dict);
  ASSERT_TRUE(write_file(files_, path_, std::string(bytes.begin(), bytes.end())).ok());
  const StateDict state = load(files_, path_);
  EXPECT_TRUE(state.tensors.at(0).second.equal(at::arange(2)));
  EXPECT_EQ(state.values["step"], 5);
}

TEST_F(SaveLoad, RefusesWhatAFileCannotHold) {
  c10::impl::GenericDict clash(c10::StringType::get(), c10::AnyType::get());
  c10::impl::GenericDict inner(c10::StringType::get(), c10::AnyType::get());
  inner.insert("b", at::ones({1}));
  clash.insert("a", inner);
  clash.insert("a.b", at::ones({1}));
  EXPECT_THROW(save(files_, c10::IValue(clash), path_), c10::ValueError);
  EXPECT_THROW(save(files_, c10::IValue(3), path_), c10::ValueError);
  EXPECT_THROW(save(files_, NamedTensors{{"x", at::Tensor()}}, path_), c10::ValueError);
  for (double number : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    try {
      save(files_, StateDict{.values = {{"a", {{"loss", number}}}}}, path_);
      ADD_FAILURE() << "saved " << number;
    } catch (const c10::ValueError& error) {
      EXPECT_THAT(error.what(), HasSubstr("\"a.loss\""));
    }
  }
  EXPECT_FALSE(*exists(files_, path_));
}

TEST_F(SaveLoad, SaysWhatIsWrongWithAFile) {
  EXPECT_THROW(load(files_, path_), CheckpointError);
  for (const char* text : {"", "x", "{\"a\":", "PK\x03\x04 and no more"}) {
    ASSERT_TRUE(write_file(files_, path_, text).ok());
    try {
      load(files_, path_);
      ADD_FAILURE() << "loaded " << text;
    } catch (const CheckpointError& error) {
      EXPECT_THAT(error.what(), HasSubstr(path_));
    }
  }
}

TEST_F(SaveLoad, KeepsTheOldFileUntilTheNewOneIsComplete) {
  for (int64_t operation = 1;; ++operation) {
    save(files_, NamedTensors{{"x", at::zeros({4})}}, path_);
    InterruptedFiles files(files_, operation);
    bool is_done = true;
    try {
      save(files, NamedTensors{{"x", at::ones({4})}}, path_);
    } catch (const CheckpointError&) {
      is_done = false;
    }
    const at::Tensor loaded = load(files_, path_).tensors.at(0).second;
    EXPECT_TRUE(loaded.equal(at::ones({4})) || (!is_done && loaded.equal(at::zeros({4}))));
    if (is_done) break;
  }
}

}  // namespace
}  // namespace accelerate
