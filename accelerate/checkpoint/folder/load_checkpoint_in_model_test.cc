#include "accelerate/checkpoint/folder/save_load.h"

#include <string>

#include <ATen/ATen.h>
#include <ATen/core/jit_type.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/serialization/pickle.h>
#include <torch/nn/module.h>

#include "accelerate/checkpoint/formats/weight_files.h"
#include "accelerate/comm/checkpoint_error.h"
#include "accelerate/platform/host_files.h"
#include "accelerate/testing/threaded_group.h"

namespace accelerate {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

struct NetImpl : torch::nn::Module {
  explicit NetImpl(double value = 0) {
    a = register_parameter("a", at::full({2, 3}, value));
    b = register_parameter("b", at::full({4}, value));
    tied = register_parameter("tied", a);
    steps = register_buffer("steps", at::full({}, value, at::kLong));
  }
  at::Tensor a, b, tied, steps;
};
TORCH_MODULE(Net);

bool is_all(const Net& net, double value) {
  return net->a.eq(value).all().item<bool>() && net->b.eq(value).all().item<bool>() &&
         net->steps.item<int64_t>() == static_cast<int64_t>(value);
}

class LoadCheckpoint : public testing::Test {
 protected:
  LoadCheckpoint() : folder_(testing::TempDir() + "/load_checkpoint") {
    save_model(files_, module_state_dict(*Net(7)), folder_, {.max_shard_size = 24});
  }
  ~LoadCheckpoint() override { EXPECT_TRUE(remove_all(files_, folder_).ok()); }

  std::string path(const std::string& name) const { return join_path(folder_, name); }
  template <typename Error>
  std::string error_of(const std::string& checkpoint,
                       const LoadCheckpointInModelOptions& options = {}) {
    Net net;
    try {
      load_checkpoint_in_model(files_, *net, checkpoint, options);
      ADD_FAILURE() << "was loaded";
    } catch (const Error& error) {
      EXPECT_TRUE(is_all(net, 0));
      return error.what_without_backtrace();
    }
    return "";
  }

  HostFiles files_;
  const std::string folder_;
};

TEST_F(LoadCheckpoint, TakesFoldersIndicesAndFiles) {
  for (const std::string& checkpoint : {folder_, path("model.safetensors.index.json")}) {
    Net net;
    const void* memory = net->a.data_ptr();
    const IncompatibleKeys keys =
        load_checkpoint_in_model(files_, *net, checkpoint, {.strict = true});
    EXPECT_THAT(keys.missing_keys, IsEmpty());
    EXPECT_TRUE(is_all(net, 7));
    EXPECT_EQ(net->a.data_ptr(), memory);
    EXPECT_TRUE(net->a.requires_grad());
  }
  Net net;
  const IncompatibleKeys keys =
      load_checkpoint_in_model(files_, *net, path("model-00001-of-00002.safetensors"));
  EXPECT_THAT(keys.missing_keys, ElementsAre("b", "steps"));
  EXPECT_TRUE(net->tied.eq(7).all().item<bool>());
}

TEST_F(LoadCheckpoint, ReadsPickledWeights) {
  c10::impl::GenericDict dict(c10::StringType::get(), c10::TensorType::get());
  for (const auto& [name, tensor] : module_state_dict(*Net(5))) {
    dict.insert("module." + name, tensor.to(at::kDouble));
  }
  const std::vector<char> bytes = torch::jit::pickle_save(dict);
  ASSERT_TRUE(
      write_file(files_, path("weights.bin"), std::string(bytes.begin(), bytes.end())).ok());
  Net net;
  load_checkpoint_in_model(files_, *net, path("weights.bin"), {.strict = true});
  EXPECT_TRUE(is_all(net, 5));
  EXPECT_EQ(load_state_dict(files_, path("weights.bin")).size(), 4);
  EXPECT_EQ(load_state_dict(files_, path("model-00001-of-00002.safetensors")).size(), 1);
}

TEST_F(LoadCheckpoint, SaysHowToReadTheOldFormat) {
  const std::string old = "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.";
  ASSERT_TRUE(write_file(files_, path("weights.bin"), old).ok());
  EXPECT_THAT(error_of<CheckpointError>(path("weights.bin")),
              HasSubstr("weights.bin: it is in the old format of torch.save"));
  EXPECT_THROW(load_state_dict(files_, path("weights.bin")), CheckpointError);
}

TEST_F(LoadCheckpoint, ConvertsFloatingTensorsOnly) {
  Net net;
  load_checkpoint_in_model(files_, *net, folder_, {.dtype = at::kBFloat16});
  EXPECT_TRUE(is_all(net, 7));
  EXPECT_EQ(net->a.scalar_type(), at::kBFloat16);
  EXPECT_EQ(net->steps.scalar_type(), at::kLong);
  EXPECT_TRUE(net->tied.is_same(net->a));
  EXPECT_THAT(error_of<c10::ValueError>(folder_, {.dtype = at::kInt}), HasSubstr("dtype"));
}

TEST_F(LoadCheckpoint, ComparesFilesWithTheirIndexFirst) {
  const std::string index = path("model.safetensors.index.json");
  ShardIndex good = *read_shard_index(files_, index);
  const auto error_with = [&](const auto& change) {
    ShardIndex bad = good;
    change(bad);
    EXPECT_TRUE(write_file(files_, index, shard_index_text(bad)).ok());
    return error_of<CheckpointError>(folder_);
  };
  EXPECT_THAT(error_with([](auto& i) { i.weight_map["c"] = "lost.safetensors"; }),
              HasSubstr("lost.safetensors"));
  EXPECT_THAT(error_with([](auto& i) { i.weight_map["c"] = i.weight_map["b"]; }), HasSubstr("c"));
  EXPECT_THAT(error_with([](auto& i) { i.weight_map.erase("steps"); }), HasSubstr("\"steps\""));
  EXPECT_THAT(error_with([](auto& i) { i.weight_map["b"] = "../x"; }), HasSubstr("../x"));
}

TEST_F(LoadCheckpoint, SaysWhatDoesNotFit) {
  struct Other : torch::nn::Module {
    Other() { register_parameter("a", at::ones({5})); }
  } other;
  try {
    load_checkpoint_in_model(files_, other, folder_, {.strict = true});
    ADD_FAILURE();
  } catch (const CheckpointError& error) {
    EXPECT_THAT(error.what(), HasSubstr("unexpected: steps, b"));
    EXPECT_THAT(error.what(), HasSubstr("a ([2, 3] there, [5] in the model)"));
  }
  EXPECT_THAT(error_of<c10::ValueError>(path("nothing")), HasSubstr("nothing"));
}

TEST_F(LoadCheckpoint, ReadsOnRank0ForAll) {
  run_ranks(3, [&](const auto& group) {
    Net net;
    const bool reads = group->getRank() == 0;
    const IncompatibleKeys keys = load_checkpoint_in_model(
        files_, *net, reads ? folder_ : "nowhere",
        {.strict = true, .broadcast_from_rank0 = true, .process_group = group});
    EXPECT_THAT(keys.missing_keys, IsEmpty());
    EXPECT_TRUE(is_all(net, 7));
  });
}

TEST_F(LoadCheckpoint, FailsOnAllRanks) {
  const std::string shard = path("model-00002-of-00002.safetensors");
  const std::string good = *read_file(files_, shard);
  ASSERT_TRUE(write_file(files_, shard, good.substr(0, good.size() - 1)).ok());
  run_ranks(2, [&](const auto& group) {
    Net net;
    EXPECT_THROW(load_checkpoint_in_model(files_, *net, folder_,
                                          {.broadcast_from_rank0 = true, .process_group = group}),
                 CheckpointError);
  });
  ASSERT_TRUE(write_file(files_, shard, good).ok());
  // A model that differs on one rank is an error on the others too.
  run_ranks(2, [&](const auto& group) {
    Net net;
    if (group->getRank() == 1) net->register_parameter("more", at::ones({1}));
    EXPECT_THROW(load_checkpoint_in_model(
                     files_, *net, folder_,
                     {.strict = true, .broadcast_from_rank0 = true, .process_group = group}),
                 CheckpointError);
  });
}

}  // namespace
}  // namespace accelerate
