#include "accelerate/checkpoint/folder/save_load.h"

#include <limits>
#include <string>

#include <ATen/ATen.h>
#include <ATen/core/jit_type.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/serialization/pickle.h>
#include <torch/optim/sgd.h>

#include "absl/strings/str_cat.h"
#include "accelerate/comm/checkpoint_error.h"
#include "accelerate/files/safetensors.h"
#include "accelerate/platform/host_files.h"
#include "accelerate/testing/fake_runtime.h"
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

TEST_F(SaveLoad, OneOfTheNamesOfTheSameElementsIsKept) {
  const at::Tensor whole = at::arange(6.0);
  const NamedTensors cleaned = clean_state_dict_for_safetensors({{"embedding", whole},
                                                                 {"head", whole.view({2, 3})},
                                                                 {"tied", whole},
                                                                 {"part", whole.slice(0, 0, 3)}});
  ASSERT_EQ(cleaned.size(), 3);
  EXPECT_EQ(cleaned[0].first, "embedding");
  EXPECT_EQ(cleaned[1].first, "head") << "another shape of the same memory is another tensor";
  EXPECT_EQ(cleaned[2].first, "part");
  EXPECT_TRUE(cleaned[2].second.equal(at::arange(3.0)));
}

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

// A rank of two nodes with two ranks each, with the test's files.
class RankRuntime final : public FakeRuntime {
 public:
  RankRuntime(int rank, FileSystem& files)
      : FakeRuntime(Topology::uniform(rank, 2, 2)), files_(files) {}
  FileSystem& files() override { return files_; }

 private:
  FileSystem& files_;
};

TEST_F(SaveLoad, OneRankOfTheJobOrOfEachNodeWrites) {
  const NamedTensors tensors = {{"x", at::ones({2})}};
  for (int rank = 0; rank < 4; ++rank) {
    RankRuntime runtime(rank, files_);
    const std::string folder = absl::StrCat(folder_, "/rank", rank);
    const std::string job = folder + "/job", node = folder + "/node", alone = folder + "/alone";
    {
      const RuntimeScope scope(runtime);
      save(tensors, job);
      save(StateDict{.values = {{"step", 3}}}, node, {.save_on_each_node = true});
    }
    c10::impl::GenericDict dict(c10::StringType::get(), c10::AnyType::get());
    dict.insert("step", 4);
    save(c10::IValue(dict), alone, {}, runtime);
    EXPECT_EQ(*exists(files_, job), rank == 0) << rank;
    EXPECT_EQ(*exists(files_, node), rank % 2 == 0) << rank;
    EXPECT_EQ(*exists(files_, alone), rank == 0) << rank;
    if (rank != 0) continue;
    EXPECT_TRUE(load(job, {}, runtime).tensors.at(0).second.equal(at::ones({2})));
    EXPECT_EQ(load(node, {}, runtime).values["step"], 3);
    EXPECT_EQ(load(alone, {}, runtime).values["step"], 4);
  }
}

TEST_F(SaveLoad, TensorsGoWhereTheyAreMappedTo) {
  save(files_, NamedTensors{{"x", at::ones({2})}, {"y", at::ones({3})}}, path_);
  for (const auto& [name, tensor] : load(files_, path_).tensors) EXPECT_TRUE(tensor.is_cpu());
  // The one other device that every machine has.
  const StateDict mapped = load(files_, path_, {.map_location = at::kMeta});
  ASSERT_EQ(mapped.tensors.size(), 2);
  for (const auto& [name, tensor] : mapped.tensors) EXPECT_TRUE(tensor.is_meta()) << name;
  EXPECT_EQ(mapped.tensors[1].second.size(0), 3);
}

// Has tensors, or not.
struct Counter {
  StateDict state_dict() const { return state; }
  void load_state_dict(const StateDict& loaded) { state = loaded; }
  StateDict state;
};

TEST_F(SaveLoad, CustomStatesComeBackByTheirNumbers) {
  RankRuntime runtime(0, files_), other(1, files_), node(2, files_);
  const std::string file = folder_ + "/custom_checkpoint_3";
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  Counter counter{{.values = {{"best", kInfinity}}}}, loaded;
  save_custom_state(counter, folder_, 3, /*save_on_each_node=*/false, other);
  save_custom_state(counter, folder_, 3, /*save_on_each_node=*/false, node);
  EXPECT_FALSE(*exists(files_, file + ".json"));
  save_custom_state(counter, folder_, 3, /*save_on_each_node=*/true, node);
  EXPECT_TRUE(*exists(files_, file + ".json"));
  load_custom_state(loaded, folder_, 3, runtime);
  EXPECT_EQ(loaded.state.values, counter.state.values);
  EXPECT_TRUE(loaded.state.tensors.empty());

  counter.state.tensors = {{"x", at::ones({2})}};
  const RuntimeScope scope(runtime);
  save_custom_state(counter, folder_, 3);
  EXPECT_FALSE(*exists(files_, file + ".json")) << "the state before";
  load_custom_state(loaded, folder_, 3);
  EXPECT_EQ(loaded.state.values, counter.state.values);
  EXPECT_TRUE(loaded.state.tensors.at(0).second.equal(at::ones({2})));

  torch::optim::SGD sgd({at::ones({1})}, 0.1), slower({at::ones({1})}, 0.01);
  save_custom_state(sgd, folder_);
  load_custom_state(slower, folder_);
  EXPECT_EQ(slower.param_groups()[0].options().get_lr(), 0.1);
  try {
    load_custom_state(loaded, folder_, 4);
    ADD_FAILURE() << "loaded";
  } catch (const CheckpointError& error) {
    EXPECT_THAT(error.what(), HasSubstr("custom_checkpoint_4.safetensors"));
  }
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
