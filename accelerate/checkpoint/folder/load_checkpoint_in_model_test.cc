#include "accelerate/big_model/load_checkpoint_in_model.h"

#include <string>

#include <ATen/ATen.h>
#include <ATen/core/jit_type.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/serialization/pickle.h>
#include <torch/nn/module.h>
#include <torch/serialize.h>

#include "accelerate/big_model/empty_model.h"
#include "accelerate/big_model/offload.h"
#include "accelerate/checkpoint/folder/save_load.h"
#include "accelerate/comm/checkpoint_error.h"
#include "accelerate/files/formats/weight_files.h"
#include "accelerate/modules/module_tensors.h"
#include "accelerate/platform/host_files.h"
#include "accelerate/testing/fake_runtime.h"
#include "accelerate/testing/threaded_group.h"
#include "accelerate/testing/value_error.h"

namespace accelerate {
namespace {

using testing::AllOf;
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

TEST_F(LoadCheckpoint, ReadsModulesOfLibTorch) {
  torch::save(Net(5), path("weights.pt"));
  Net net;
  load_checkpoint_in_model(files_, *net, path("weights.pt"), {.strict = true});
  EXPECT_TRUE(is_all(net, 5));
}

// What a file has beside the tensors that are asked for does no harm.
TEST_F(LoadCheckpoint, ReadsTensorsBesideWhatCannotBeRead) {
  const auto file = [&](const std::string& name) {
    const std::string header = "{\"" + name +
                               R"(":{"dtype":"F8_E8M0","shape":[4],"data_offsets":[0,4]},)"
                               R"("a":{"dtype":"F32","shape":[2,3],"data_offsets":[4,28]}})";
    std::string bytes(8, '\0');
    bytes[0] = static_cast<char>(header.size());
    bytes += header + std::string(4, '\x7f');
    for (int i = 0; i < 6; ++i) bytes += std::string("\0\0\xe0\x40", 4);
    EXPECT_TRUE(write_file(files_, path("mx.safetensors"), bytes).ok());
    return path("mx.safetensors");
  };
  Net net;
  const IncompatibleKeys keys = load_checkpoint_in_model(files_, *net, file("scale"));
  EXPECT_THAT(keys.unexpected_keys, ElementsAre("scale"));
  EXPECT_TRUE(net->a.eq(7).all().item<bool>());
  EXPECT_THAT(error_of<CheckpointError>(file("b")),
              AllOf(HasSubstr("mx.safetensors"), HasSubstr("b (its dtype is F8_E8M0")));
  EXPECT_THAT(error_of<CheckpointError>(file("scale"), {.strict = true}), HasSubstr("scale"));
  try {
    load_state_dict(files_, file("scale"));
    ADD_FAILURE() << "was read";
  } catch (const CheckpointError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("'scale'"), HasSubstr("F8_E8M0")));
  }

  c10::impl::GenericDict dict(c10::StringType::get(), c10::AnyType::get());
  for (const auto& [name, tensor] : module_state_dict(*Net(5))) dict.insert(name, tensor);
  dict.insert("epoch", 3);
  const std::vector<char> bytes = torch::jit::pickle_save(dict);
  ASSERT_TRUE(
      write_file(files_, path("weights.bin"), std::string(bytes.begin(), bytes.end())).ok());
  EXPECT_THAT(load_checkpoint_in_model(files_, *net, path("weights.bin")).unexpected_keys,
              ElementsAre("epoch"));
  EXPECT_TRUE(is_all(net, 5));
  EXPECT_EQ(load_state_dict(files_, path("weights.bin")).size(), 4);
  dict.insert_or_assign("b", 3);
  const std::vector<char> other = torch::jit::pickle_save(dict);
  ASSERT_TRUE(
      write_file(files_, path("weights.bin"), std::string(other.begin(), other.end())).ok());
  EXPECT_THAT(error_of<CheckpointError>(path("weights.bin")), HasSubstr("b (it is a number)"));
}

TEST_F(LoadCheckpoint, GivesMemoryOfTheHostToAnEmptyModel) {
  for (const bool broadcast : {false, true}) {
    const auto load = [&](const c10::intrusive_ptr<c10d::ProcessGroup>& group, bool has_memory) {
      Net net = [&] {
        if (has_memory) return Net(3);
        const EmptyInit empty = init_empty_weights();
        return Net(3);
      }();
      const at::Tensor a = net->a;
      load_checkpoint_in_model(
          files_, *net, folder_,
          {.strict = true, .broadcast_from_rank0 = broadcast, .process_group = group});
      EXPECT_TRUE(net->a.is_cpu() && net->a.is_same(a) && net->tied.is_same(a));
      EXPECT_TRUE(is_all(net, 7));
    };
    if (!broadcast) {
      load({}, false);
    } else {
      run_ranks(3, [&](const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
        load(group, group->getRank() == 0);
      });
    }
  }
  // What the checkpoint lacks stays empty.
  Net net = [] {
    const EmptyInit empty = init_empty_weights();
    return Net(3);
  }();
  load_checkpoint_in_model(files_, *net, path("model-00001-of-00002.safetensors"));
  EXPECT_TRUE(net->a.is_cpu());
  EXPECT_TRUE(net->b.is_meta());
}

TEST_F(LoadCheckpoint, WaitsUntilTensorsGetMemory) {
  const auto empty = [] {
    const EmptyInit scope = init_empty_weights();
    return Net(3);
  };
  for (const bool pickled : {false, true}) {
    std::string checkpoint = folder_;
    if (pickled) {
      c10::impl::GenericDict dict(c10::StringType::get(), c10::TensorType::get());
      for (const auto& [name, tensor] : module_state_dict(*Net(7))) dict.insert(name, tensor);
      const std::vector<char> bytes = torch::jit::pickle_save(dict);
      checkpoint = path("weights.bin");
      ASSERT_TRUE(write_file(files_, checkpoint, std::string(bytes.begin(), bytes.end())).ok());
    }
    Net net = empty();
    load_checkpoint_in_model(files_, *net, checkpoint,
                             {.dtype = at::kDouble, .strict = true, .lazy = true});
    EXPECT_TRUE(net->a.is_meta());
    EXPECT_EQ(net->a.scalar_type(), at::kDouble);
    EXPECT_TRUE(net->tied.is_same(net->a));
    EXPECT_EQ(net->steps.item<int64_t>(), 7) << "it had memory";
    materialize(*net, {.filter = [](const std::string& name) { return name == "tied"; }});
    EXPECT_TRUE(net->b.is_meta());
    materialize(*net);
    EXPECT_TRUE(is_all(net, 7));
    EXPECT_TRUE(net->a.requires_grad());
    EXPECT_TRUE(net->tied.is_same(net->a));
  }
  // What the checkpoint does not have keeps its construction.
  Net net = empty();
  const IncompatibleKeys keys = load_checkpoint_in_model(
      files_, *net, path("model-00001-of-00002.safetensors"), {.lazy = true});
  EXPECT_THAT(keys.missing_keys, ElementsAre("b", "steps"));
  materialize(*net);
  EXPECT_TRUE(net->a.eq(7).all().item<bool>());
  EXPECT_TRUE(net->b.eq(3).all().item<bool>());
  // The last load counts, and a file that is gone leaves the model as it is.
  net = empty();
  load_checkpoint_in_model(files_, *net, folder_, {.lazy = true});
  ASSERT_TRUE(remove_all(files_, folder_).ok());
  ASSERT_TRUE(files_.make_directories(folder_).ok());
  save_model(files_, module_state_dict(*Net(9)), folder_);
  load_checkpoint_in_model(files_, *net, folder_, {.lazy = true});
  materialize(*net);
  EXPECT_TRUE(is_all(net, 9));
}

TEST_F(LoadCheckpoint, IsLazyWithoutAMapAndOnEachRankAlone) {
  DeviceMap map;
  map.set("", DevicePlacement::cpu());
  EXPECT_THAT(error_of<c10::ValueError>(folder_, {.device_map = map, .lazy = true}),
              HasSubstr("leave device_map and broadcast_from_rank0 out"));
  EXPECT_THAT(error_of<c10::ValueError>(folder_, {.broadcast_from_rank0 = true, .lazy = true}),
              HasSubstr("leave device_map and broadcast_from_rank0 out"));
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

// ---- By a device map.

DeviceMap map_of(const std::string& json) { return *DeviceMap::parse(json); }

// A block with values of its own, and tensors on `device` as if it had been built there.
struct BlockImpl : torch::nn::Module {
  BlockImpl(double value, c10::Device device) {
    const auto make = [&](at::IntArrayRef sizes) {
      return at::full(sizes, value, at::TensorOptions(at::kFloat).device(device));
    };
    weight = register_parameter("weight", make({3, 2}));
    bias = register_parameter("bias", make({3}));
    table = register_buffer("table", make({5}));
  }
  at::Tensor weight, bias, table;
};
TORCH_MODULE(Block);

struct BlocksImpl : torch::nn::Module {
  explicit BlocksImpl(double value = 0, c10::Device device = c10::kCPU)
      : a(register_module("a", Block(value, device))),
        b(register_module("b", Block(value + 1, device))) {
    head = register_parameter("head", b->weight);
  }
  Block a, b;
  at::Tensor head;  // tied to b.weight
};
TORCH_MODULE(Blocks);

class LoadByMap : public testing::Test {
 protected:
  LoadByMap() : folder_(testing::TempDir() + "/load_by_map"), offload_(folder_ + "/offload") {
    save_model(files_, module_state_dict(*Blocks(7)), path("model"), {.max_shard_size = 40});
  }
  ~LoadByMap() override { EXPECT_TRUE(remove_all(files_, folder_).ok()); }

  std::string path(const std::string& name) const { return join_path(folder_, name); }
  IncompatibleKeys load(Blocks net, LoadCheckpointInModelOptions options) {
    options.offload_folder = offload_;
    return load_checkpoint_in_model(files_, *net, path("model"), options);
  }
  std::string value_error(LoadCheckpointInModelOptions options) {
    Blocks net(0, c10::kMeta);
    const std::string error =
        value_error_of([&] { load_checkpoint_in_model(files_, *net, path("model"), options); });
    for (const auto& [name, tensor] : module_state_dict(*net)) EXPECT_TRUE(tensor.is_meta());
    EXPECT_FALSE(*exists(files_, offload_));
    return error;
  }

  HostFiles files_;
  const std::string folder_;
  const std::string offload_;
};

TEST_F(LoadByMap, GivesMemoryToAnEmptyModel) {
  Blocks net(0, c10::kMeta);
  net->a->bias.set_requires_grad(false);
  const at::Tensor weight = net->b->weight;
  const IncompatibleKeys keys = load(net, {.device_map = map_of(R"({"": "cpu"})"), .strict = true});
  EXPECT_THAT(keys.missing_keys, IsEmpty());
  const Blocks expected(7);
  const NamedTensors values = module_state_dict(*expected);
  const NamedTensors loaded = module_state_dict(*net);
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_TRUE(loaded[i].second.is_cpu());
    EXPECT_TRUE(at::equal(loaded[i].second, values[i].second)) << values[i].first;
  }
  // The objects are those from before, so handles and ties see the values.
  EXPECT_TRUE(net->head.is_same(net->b->weight) && net->b->weight.is_same(weight));
  EXPECT_TRUE(weight.requires_grad() && !net->a->bias.requires_grad());
  (net->a->weight * net->head).sum().backward();
  EXPECT_TRUE(at::equal(net->b->weight.grad(), at::full({3, 2}, 7.0)));
  EXPECT_FALSE(*exists(files_, offload_));
}

TEST_F(LoadByMap, PutsTensorsOnTheDisk) {
  const DeviceMap map = map_of(R"({"a": "disk", "b": "cpu", "head": "cpu"})");
  for (const bool with_buffers : {false, true}) {
    Blocks net(0, c10::kMeta);
    load(net, {.device_map = map, .offload_buffers = with_buffers, .strict = true});
    EXPECT_TRUE(net->a->weight.is_meta() && net->a->bias.is_meta());
    EXPECT_EQ(net->a->table.is_meta(), with_buffers);
    EXPECT_TRUE(at::equal(net->b->weight, at::full({3, 2}, 8.0)));
    const OffloadedWeightsLoader weights(files_, {.save_folder = offload_});
    EXPECT_EQ(weights.size(), with_buffers ? 3 : 2);
    EXPECT_TRUE(at::equal(weights.get("a.weight"), at::full({3, 2}, 7.0)));
    if (with_buffers) {
      EXPECT_TRUE(at::equal(weights.get("a.table"), at::full({5}, 7.0)));
    } else {
      EXPECT_TRUE(at::equal(net->a->table, at::full({5}, 7.0)));
    }
    // Nothing but the weights and the index.
    EXPECT_EQ(files_.list(offload_)->size(), with_buffers ? 4 : 3);
  }
  // A model with memory gives it back.
  Blocks full(1);
  load(full, {.device_map = map});
  EXPECT_TRUE(full->a->weight.is_meta());
  EXPECT_TRUE(at::equal(full->a->table, at::full({5}, 7.0)));
}

TEST_F(LoadByMap, ConvertsWhatIsNotKept) {
  Blocks net(0, c10::kMeta);
  load(net, {.device_map = map_of(R"({"a": "disk", "": "cpu"})"),
             .dtype = at::kHalf,
             .keep_in_fp32_modules = {"b.bias", "a", "hea"}});
  EXPECT_EQ(net->b->weight.scalar_type(), at::kHalf);
  EXPECT_EQ(net->b->bias.scalar_type(), at::kFloat);
  EXPECT_EQ(net->a->weight.scalar_type(), at::kFloat);
  EXPECT_EQ(read_offload_index(files_, offload_)->front().second.dtype, "float32");
  // The list is for half alone.
  Blocks other(0, c10::kMeta);
  load(other, {.device_map = map_of(R"({"a": "disk", "": "cpu"})"),
               .dtype = at::kBFloat16,
               .keep_in_fp32_modules = {"a"}});
  EXPECT_EQ(other->a->weight.scalar_type(), at::kBFloat16);
  const OffloadedWeightsLoader weights(files_, {.save_folder = offload_});
  EXPECT_TRUE(at::equal(weights.get("a.weight"), at::full({3, 2}, 7.0, at::kBFloat16)));
}

TEST_F(LoadByMap, KeepsTiedTensorsTogether) {
  for (const char* map : {R"({"": "cpu", "b": "disk"})", R"({"": "cpu", "head": "disk"})"}) {
    Blocks net(0, c10::kMeta);
    load(net, {.device_map = map_of(map), .strict = true});
    EXPECT_TRUE(net->head.is_same(net->b->weight));
    EXPECT_TRUE(at::equal(net->head, at::full({3, 2}, 8.0)));
  }
}

// One of its names decides, whichever it is, and whichever the checkpoint has.
TEST_F(LoadByMap, KeepsATiedTensorInFloatByAnyName) {
  for (const char* stored : {"head", "b.weight"}) {
    save_model(files_, {{stored, at::full({3, 2}, 8.0)}}, path("one"));
    for (const char* kept : {"head", "b.weight", "b"}) {
      Blocks net(0, c10::kMeta);
      load_checkpoint_in_model(files_, *net, path("one"),
                               {.device_map = map_of(R"({"": "cpu"})"),
                                .dtype = at::kHalf,
                                .keep_in_fp32_modules = {kept}});
      EXPECT_EQ(net->head.scalar_type(), at::kFloat) << stored << ", " << kept;
      EXPECT_TRUE(at::equal(net->b->weight, at::full({3, 2}, 8.0)));
    }
  }
}

TEST_F(LoadByMap, TakesTheFirstOfSeveralValuesOfATiedTensor) {
  for (const bool on_disk : {false, true}) {
    for (const bool is_first_head : {false, true}) {
      // By dtype, the order in the file is not that of names.
      ASSERT_TRUE(
          write_safetensors(
              files_, path("two.safetensors"),
              {{"b.weight", at::full({3, 2}, 1.0, is_first_head ? at::kFloat : at::kDouble)},
               {"head", at::full({3, 2}, 2.0, is_first_head ? at::kDouble : at::kFloat)}},
              {})
              .ok());
      Blocks net(0, c10::kMeta);
      load_checkpoint_in_model(
          files_, *net, path("two.safetensors"),
          {.device_map = map_of(on_disk ? R"({"": "disk"})" : R"({"": "cpu"})"),
           .offload_folder = offload_});
      const at::Tensor value =
          on_disk ? OffloadedWeightsLoader(files_, {.save_folder = offload_}).get("b.weight")
                  : net->head;
      EXPECT_TRUE(value.eq(1).all().item<bool>()) << on_disk << is_first_head;
    }
  }
}

TEST_F(LoadByMap, LoadsTheNamesOfAFilter) {
  Blocks net(1);
  const IncompatibleKeys keys =
      load(net, {.device_map = map_of(R"({"": "cpu"})"),
                 .strict = true,
                 .name_filter = [](const std::string& name) { return name.starts_with("a."); }});
  EXPECT_THAT(keys.missing_keys, IsEmpty());
  EXPECT_TRUE(at::equal(net->a->weight, at::full({3, 2}, 7.0)));
  EXPECT_TRUE(at::equal(net->b->weight, at::full({3, 2}, 2.0)));
}

TEST_F(LoadByMap, NeitherWantsNorTakesBuffersWithoutState) {
  FakeRuntime runtime;
  const RuntimeScope scope(runtime);
  Blocks net(1);
  net->b->table = non_persistent(net->b->table);
  const IncompatibleKeys keys =
      load(net, {.device_map = map_of(R"({"a": "cpu", "head": "cpu", "b.weight": "cpu",
                                          "b.bias": "disk"})"),
                 .strict = true});
  EXPECT_THAT(keys.unexpected_keys, IsEmpty());
  EXPECT_TRUE(at::equal(net->b->table, at::full({5}, 2.0)));
  EXPECT_TRUE(at::equal(net->a->table, at::full({5}, 7.0)));
}

TEST_F(LoadByMap, SaysWhatIsWrongWithTheMap) {
  EXPECT_EQ(value_error({.device_map = map_of(R"({"a": "cpu", "b.bias": "cpu"})")}),
            "the device map has no device for head, b.weight, b.table");
  EXPECT_EQ(value_error({.device_map = map_of(R"({"": "disk"})")}),
            "the device map puts modules on the disk: an offload_folder is needed");
  EXPECT_EQ(value_error({.device_map = map_of(R"({"": 0})")}),
            "the device map names accelerator 0, and this rank computes on the CPU");
  EXPECT_EQ(value_error({.device_map = map_of(R"({"": "gpu7"})")}),
            "the device map names \"gpu7\", which is not a device");
  EXPECT_EQ(value_error({.device_map = map_of(R"({"": "xpu:3"})")}),
            "the device map names xpu:3, and there are 0 devices of this kind");
  EXPECT_THAT(value_error({.full_state_dict = false, .broadcast_from_rank0 = true}),
              HasSubstr("needs full_state_dict"));
}

TEST_F(LoadByMap, LeavesTheModelAndTheFolderAfterAnError) {
  const auto error_of = [&](const DeviceMap& map, bool strict) -> std::string {
    Blocks net(0, c10::kMeta);
    try {
      load(net, {.device_map = map, .strict = strict});
    } catch (const CheckpointError& error) {
      for (const auto& [name, tensor] : module_state_dict(*net)) {
        EXPECT_TRUE(tensor.is_meta()) << name;
      }
      const auto left = files_.list(offload_);
      if (left.ok()) EXPECT_THAT(*left, IsEmpty());
      return error.what_without_backtrace();
    }
    return "no error";
  };
  const DeviceMap map = map_of(R"({"a": "cpu", "": "disk"})");
  // A file cut short.
  const WeightFiles weights = *find_weight_files(files_, path("model"));
  const std::string last = weights.files.back().path;
  const std::string good = *read_file(files_, last);
  ASSERT_TRUE(write_file(files_, last, good.substr(0, good.size() - 1)).ok());
  EXPECT_THAT(error_of(map, false), HasSubstr(last));
  ASSERT_TRUE(write_file(files_, last, good).ok());
  EXPECT_EQ(error_of(map, true), "no error");
  ASSERT_TRUE(remove_all(files_, offload_).ok());
  // Another model's checkpoint.
  ASSERT_TRUE(remove_all(files_, path("model")).ok());
  save_model(files_, {{"a.weight", at::ones({2, 3})}, {"c", at::ones({1})}}, path("model"));
  EXPECT_THAT(error_of(map, true), HasSubstr("unexpected: c"));
  EXPECT_THAT(error_of(map, false), HasSubstr("a.weight ([2, 3] there, [3, 2] in the model)"));
}

TEST_F(LoadByMap, HandsTensorsFromRank0ToOtherPlaces) {
  run_ranks(3, [&](const auto& group) {
    const int rank = group->getRank();
    const char* const maps[] = {R"({"": "cpu"})", R"({"": "disk"})", R"({"a": "disk", "": "cpu"})"};
    const std::string own = offload_ + std::to_string(rank);
    Blocks net(0, c10::kMeta);
    load_checkpoint_in_model(files_, *net, rank == 0 ? path("model") : "nowhere",
                             {.device_map = map_of(maps[rank]),
                              .offload_folder = own,
                              .dtype = rank == 2 ? std::optional(at::kDouble) : std::nullopt,
                              .offload_buffers = true,
                              .strict = true,
                              .broadcast_from_rank0 = true,
                              .process_group = group});
    for (const auto& [name, value] : module_state_dict(*Blocks(7))) {
      at::Tensor loaded;
      for (const auto& [own_name, tensor] : module_state_dict(*net)) {
        if (own_name == name) loaded = tensor;
      }
      EXPECT_EQ(loaded.is_meta(), rank == 1 || (rank == 2 && name.starts_with("a.")));
      if (loaded.is_meta()) {
        // A tied tensor is stored under its first name.
        loaded = OffloadedWeightsLoader(files_, {.save_folder = own})
                     .get(name == "b.weight" ? "head" : name);
      }
      EXPECT_TRUE(at::equal(loaded, value.to(loaded.scalar_type()))) << rank << name;
    }
  });
  // A map that is wrong on one rank is an error on all.
  run_ranks(2, [&](const auto& group) {
    Blocks net(0, c10::kMeta);
    const std::string error = value_error_of([&] {
      load_checkpoint_in_model(files_, *net, path("model"),
                               {.device_map = group->getRank() == 1 ? map_of(R"({"a": "cpu"})")
                                                                    : map_of(R"({"": "cpu"})"),
                                .broadcast_from_rank0 = true,
                                .process_group = group});
    });
    EXPECT_THAT(error, HasSubstr("rank 1: the device map has no device for head"));
    EXPECT_TRUE(net->a->weight.is_meta());
  });
}

TEST_F(LoadByMap, ReadsFilesByAMap) {
  const std::string file = path("w.safetensors");
  const NamedTensors values = {
      {"a.w", at::ones({2})}, {"ab", at::arange(3)}, {"c", at::zeros({1})}};
  ASSERT_TRUE(write_safetensors(files_, file, values, {{{"format", "pt"}}}).ok());
  for (const char* map : {"{}", R"({"a": "cpu", "b": "disk"})", R"({"a": "disk"})"}) {
    const NamedTensors loaded = load_state_dict(files_, file, map_of(map));
    ASSERT_EQ(loaded.size(), 3);
    for (const auto& [name, tensor] : loaded) {
      for (const auto& [stored, value] : values) {
        if (stored == name) EXPECT_TRUE(tensor.is_cpu() && at::equal(tensor, value));
      }
    }
  }
  EXPECT_EQ(
      value_error_of([&] { load_state_dict(files_, file, map_of(R"({"a": 0, "": "cpu"})")); }),
      "the device map names accelerator 0, and this rank computes on the CPU");
  ASSERT_TRUE(write_safetensors(files_, file, values, {{{"format", "tf"}}}).ok());
  EXPECT_THAT(value_error_of([&] { load_state_dict(files_, file); }),
              HasSubstr("it was saved by tf"));
}

TEST_F(LoadByMap, ShowsBytesOnATerminal) {
  struct Terminal : FakeRuntime {
    void write_console(ConsoleStream, std::string_view text) override { written += text; }
    bool is_terminal(ConsoleStream) const override { return true; }
    std::string written;
  } runtime;
  const RuntimeScope scope(runtime);
  Blocks net(0, c10::kMeta);
  load(net, {.device_map = map_of(R"({"a": "disk", "": "cpu"})")});
  // a has 6 + 3 + 5 floats, and b as many.
  EXPECT_THAT(runtime.written, HasSubstr("Loading model: 100%"));
  EXPECT_THAT(runtime.written, HasSubstr("112 B/112 B ["));
}

}  // namespace
}  // namespace accelerate
