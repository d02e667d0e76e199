#include "accelerate/big_model/offload.h"

#include <cstddef>
#include <string>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include "accelerate/big_model/offloaded_file.h"
#include "accelerate/comm/checkpoint_error.h"
#include "accelerate/platform/host_files.h"
#include "accelerate/testing/fake_runtime.h"
#include "accelerate/testing/files/interrupted_files.h"
#include "accelerate/testing/value_error.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

bool same(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && at::equal(a, b);
}

class Offload : public ::testing::Test {
 protected:
  ~Offload() override { EXPECT_TRUE(remove_all(files_, folder_).ok()); }

  std::string path(const std::string& name) const { return join_path(folder_, name); }
  std::string bytes(const std::string& name) { return *read_file(files_, path(name)); }
  template <typename Function>
  std::string checkpoint_error_of(Function&& function) {
    try {
      function();
    } catch (const CheckpointError& error) {
      return error.what_without_backtrace();
    }
    return "no error";
  }

  HostFiles files_;
  const std::string folder_ = ::testing::TempDir() + "/offload";
};

TEST_F(Offload, WritesElementsRowByRow) {
  const at::Tensor weight = at::tensor({1.0f, -2.0f, 0.5f, 3.0f}).view({2, 2}).t();
  const OffloadedTensor entry = offload_weight(files_, weight, "a.w", folder_);
  EXPECT_EQ(entry, (OffloadedTensor{.dtype = "float32", .shape = {2, 2}}));
  // 1, 0.5, -2, 3 in little endian.
  EXPECT_EQ(bytes("a.w.dat"), std::string("\0\0\x80\x3f\0\0\0\x3f\0\0\0\xc0\0\0\x40\x40", 16));
  EXPECT_TRUE(same(load_offloaded_weight(files_, path("a.w.dat"), entry), weight));
  // As the bytes of int16, and one element for a number.
  const at::Tensor number = at::scalar_tensor(-0.625, at::kBFloat16);
  const OffloadedTensor of_number = offload_weight(files_, number, "n", folder_);
  EXPECT_EQ(of_number, (OffloadedTensor{.dtype = "bfloat16"}));
  EXPECT_EQ(bytes("n.dat"), std::string("\x20\xbf", 2));
  const at::Tensor loaded = load_offloaded_weight(files_, path("n.dat"), of_number);
  EXPECT_EQ(loaded.dim(), 0);
  EXPECT_TRUE(same(loaded, number));
  EXPECT_THAT(*files_.list(folder_), ElementsAre("a.w.dat", "n.dat"));
}

TEST_F(Offload, KeepsEveryDtypeOfTheFormat) {
  for (const at::ScalarType dtype :
       {at::kBool, at::kByte, at::kChar, at::kUInt16, at::kShort, at::kUInt32, at::kInt,
        at::kUInt64, at::kLong, at::kHalf, at::kBFloat16, at::kFloat, at::kDouble,
        at::kComplexFloat, at::kComplexDouble, at::kFloat8_e4m3fn, at::kFloat8_e5m2,
        at::kFloat8_e4m3fnuz, at::kFloat8_e5m2fnuz}) {
    for (const at::Tensor& values :
         {at::arange(6).view({3, 2}).to(at::kFloat), at::empty({0, 4})}) {
      const at::Tensor weight = values.to(dtype);
      const OffloadedTensor entry = offload_weight(files_, weight, "w", folder_);
      const at::Tensor loaded = load_offloaded_weight(files_, path("w.dat"), entry);
      EXPECT_EQ(loaded.scalar_type(), dtype);
      EXPECT_EQ(loaded.sizes(), weight.sizes());
      // NumPy cannot map an empty file.
      EXPECT_EQ(bytes("w.dat"), weight.numel() == 0
                                    ? std::string(1, '\0')
                                    : std::string(static_cast<const char*>(weight.const_data_ptr()),
                                                  weight.nbytes()));
    }
  }
}

TEST_F(Offload, RefusesWhatHasNoBytesInTheFormat) {
  const auto error_of = [&](const at::Tensor& weight, const std::string& name) {
    return value_error_of([&] { offload_weight(files_, weight, name, folder_); });
  };
  EXPECT_THAT(error_of(at::empty({2}, at::kComplexHalf), "w"), HasSubstr("ComplexHalf"));
  EXPECT_THAT(error_of(at::Tensor(), "w"), HasSubstr("undefined"));
  EXPECT_THAT(error_of(at::empty({2}, at::kMeta), "w"), HasSubstr("meta device"));
  EXPECT_THAT(error_of(at::eye(2).to_sparse(), "w"), HasSubstr("dense"));
  EXPECT_THAT(error_of(at::ones({2}), "../w"), HasSubstr("../w"));
  EXPECT_FALSE(*exists(files_, folder_));
}

TEST_F(Offload, SaysThatAFileWasCut) {
  const OffloadedTensor entry = offload_weight(files_, at::ones({2, 3}), "w", folder_);
  for (const size_t size : {0, 23, 25}) {
    ASSERT_TRUE(write_file(files_, path("w.dat"), std::string(size, '\0')).ok());
    EXPECT_EQ(checkpoint_error_of([&] { load_offloaded_weight(files_, path("w.dat"), entry); }),
              path("w.dat") + ": it has " + std::to_string(size) +
                  " bytes, and 24 according to the index");
  }
  EXPECT_THAT(checkpoint_error_of([&] { load_offloaded_weight(files_, path("x.dat"), entry); }),
              HasSubstr("x.dat"));
}

TEST_F(Offload, ReadsFilesOfTensorsWithoutElements) {
  const OffloadedTensor entry = offload_weight(files_, at::empty({0, 5}), "w", folder_);
  for (const size_t size : {0, 1}) {
    ASSERT_TRUE(write_file(files_, path("w.dat"), std::string(size, '\0')).ok());
    EXPECT_TRUE(same(load_offloaded_weight(files_, path("w.dat"), entry), at::empty({0, 5})));
  }
  ASSERT_TRUE(write_file(files_, path("w.dat"), std::string(2, '\0')).ok());
  EXPECT_THAT(checkpoint_error_of([&] { load_offloaded_weight(files_, path("w.dat"), entry); }),
              HasSubstr("it has 2 bytes, and 0 according to the index"));
}

TEST_F(Offload, NamesTheFolderThatAnEntryNeeds) {
  const OffloadIndex index = {{"head.bias", {.dtype = "float32", .shape = {2}}}};
  const OffloadedWeightsLoader weights(files_, {.index = index});
  const auto needs_folder = AllOf(HasSubstr("head.bias"), HasSubstr("save_folder"));
  EXPECT_THAT(value_error_of([&] { weights.get("head.bias"); }), needs_folder);
  torch::nn::Module head;
  head.register_parameter("bias", at::zeros({2}));
  EXPECT_THAT(value_error_of(
                  [&] { load_offloaded_weights(files_, head, {{"bias", index[0].second}}, ""); }),
              AllOf(HasSubstr("bias"), HasSubstr("save_folder")));
}

// What is written into the folder of weights that are in use is not seen by who uses them.
TEST_F(Offload, KeepsTheFilesThatARankReads) {
  FakeRuntime runtime;
  const RuntimeScope scope(runtime);
  const at::Tensor before = at::arange(6).to(at::kFloat), after = at::zeros({4}, at::kHalf);
  offload_state_dict(files_, folder_, {{"w", before}});
  const OffloadedWeightsLoader first(files_, {.save_folder = folder_});
  offload_state_dict(files_, folder_ + "/", {{"w", after}});
  const OffloadedWeightsLoader second(files_, {.save_folder = folder_});
  EXPECT_TRUE(same(first.get("w"), before));
  EXPECT_TRUE(same(second.get("w"), after));
  offload_weight(files_, before, "w", folder_);
  EXPECT_TRUE(same(first.get("w"), before));
  EXPECT_TRUE(same(second.get("w"), after));
}

// Another process, whose files look alike, is found out.
TEST_F(Offload, IsNotAnotherProcesssValues) {
  const OffloadIndex index = internal::offload_tensors(files_, folder_, {{"w", at::ones({3})}});
  internal::OffloadedFile file(files_, path("w.dat"), index[0].second);
  EXPECT_TRUE(same(file.map(), at::ones({3})));
  ASSERT_TRUE(write_file(files_, path("w.dat"), std::string(12, '\0')).ok());
  EXPECT_THAT(checkpoint_error_of([&] { file.map(); }),
              AllOf(HasSubstr("w.dat"), HasSubstr("a folder of its own")));
  at::Tensor into = at::empty({3});
  EXPECT_FALSE(
      file.read(absl::MakeSpan(static_cast<std::byte*>(into.data_ptr()), into.nbytes())).ok());
}

TEST_F(Offload, WritesAStateDictAndItsIndex) {
  offload_state_dict(files_, folder_, {{"a", at::ones({2})}, {"b", at::arange(3)}});
  offload_state_dict(files_, folder_, {{"a", at::zeros({1, 2}, at::kHalf)}});
  EXPECT_EQ(bytes("index.json"),
            "{\n  \"a\": {\n    \"dtype\": \"float16\",\n    \"shape\": [\n      1,\n      2\n"
            "    ]\n  },\n  \"b\": {\n    \"dtype\": \"int64\",\n    \"shape\": [\n      3\n    ]\n"
            "  }\n}");
  EXPECT_THAT(*files_.list(folder_), ElementsAre("a.dat", "b.dat", "index.json"));
  EXPECT_THAT(value_error_of([&] {
                offload_state_dict(files_, folder_, {{"a", at::ones({1})}, {"a", at::ones({2})}});
              }),
              HasSubstr("comes twice"));
}

// Whatever operation of the disk fails, each weight is the old one or the new one. One of another
// size than the index says is an error, and never used.
TEST_F(Offload, LeavesOldOrNewWeightsWhenTheDiskFails) {
  const NamedTensors before = {{"a", at::ones({2})}, {"b", at::arange(3)}, {"d", at::ones({4})}};
  const NamedTensors after = {{"a", at::zeros({2})}, {"c", at::zeros({5})}, {"d", at::zeros({6})}};
  int64_t replaced = 0;
  int64_t refused = 0;
  for (int64_t fails_at = 1;; ++fails_at) {
    ASSERT_TRUE(remove_all(files_, folder_).ok());
    offload_state_dict(files_, folder_, before);
    InterruptedFiles failing(files_, fails_at);
    const std::string error =
        checkpoint_error_of([&] { offload_state_dict(failing, folder_, after); });
    const OffloadedWeightsLoader weights(files_, {.save_folder = folder_});
    const at::Tensor a = weights.get("a");
    const bool is_new = same(a, after[0].second);
    EXPECT_TRUE(is_new || same(a, before[0].second));
    EXPECT_TRUE(same(weights.get("b"), before[1].second));
    if (weights.contains("c")) EXPECT_TRUE(same(weights.get("c"), after[1].second));
    // The index comes last.
    const bool has_new_index = weights.contains("c");
    at::Tensor d;
    const std::string damage = checkpoint_error_of([&] { d = weights.get("d"); });
    if (damage == "no error") {
      EXPECT_TRUE(same(d, (has_new_index ? after : before)[2].second));
    } else {
      EXPECT_FALSE(has_new_index);
      EXPECT_THAT(damage, HasSubstr("according to the index"));
      ++refused;
    }
    if (error == "no error") {
      EXPECT_TRUE(is_new && has_new_index);
      break;
    }
    EXPECT_THAT(error, HasSubstr("interrupted"));
    replaced += is_new ? 1 : 0;
  }
  EXPECT_GT(replaced, 0);
  EXPECT_GT(refused, 0);
}

// An index that cannot be written is found before a file is replaced.
TEST_F(Offload, ReplacesNothingBesideADamagedIndex) {
  offload_state_dict(files_, folder_, {{"a", at::ones({2})}});
  ASSERT_TRUE(write_file(files_, path("index.json"), "{").ok());
  EXPECT_THAT(
      checkpoint_error_of([&] { offload_state_dict(files_, folder_, {{"a", at::zeros({2})}}); }),
      HasSubstr("it is not JSON"));
  EXPECT_EQ(bytes("a.dat"), std::string("\0\0\x80\x3f\0\0\x80\x3f", 8));
  EXPECT_THAT(*files_.list(folder_), ElementsAre("a.dat", "index.json"));
}

TEST_F(Offload, FindsWeightsInMemoryFirst) {
  offload_state_dict(files_, folder_, {{"x.a", at::ones({2})}, {"y", at::arange(3)}});
  const auto weights = std::make_shared<OffloadedWeightsLoader>(
      files_,
      OffloadedWeightsLoaderOptions{.state_dict = {{"z", at::zeros({1})}, {"x.a", at::zeros({2})}},
                                    .save_folder = folder_});
  EXPECT_THAT(weights->keys(), ElementsAre("z", "x.a", "y"));
  EXPECT_TRUE(same(weights->get("x.a"), at::zeros({2})));
  EXPECT_TRUE(same(weights->get("y"), at::arange(3)));
  EXPECT_FALSE(weights->contains("a"));
  EXPECT_EQ(value_error_of([&] { weights->get("a"); }), "there is no offloaded weight \"a\"");
  const PrefixedDataset below(weights, "x.");
  EXPECT_THAT(below.keys(), ElementsAre("x.a"));
  EXPECT_TRUE(same(below.get("a"), at::zeros({2})));
  EXPECT_TRUE(below.contains("a"));
  EXPECT_EQ(value_error_of([&] { below.get("y"); }), "there is no offloaded weight \"x.y\"");
  EXPECT_THAT(value_error_of([&] { OffloadedWeightsLoader(files_, {}); }),
              HasSubstr("need a state_dict, a save_folder or an index"));
  EXPECT_THAT(OffloadedWeightsLoader(files_, {.index = OffloadIndex()}).keys(), IsEmpty());
}

TEST_F(Offload, ReadsTensorsOfSafetensorsFiles) {
  ASSERT_TRUE(files_.make_directories(folder_).ok());
  const std::string file = path("m.safetensors");
  ASSERT_TRUE(write_safetensors(files_, file, {{"p", at::arange(4).to(at::kFloat)}}, {}).ok());
  const OffloadedWeightsLoader weights(
      files_, {.index = OffloadIndex{
                   {"p", {.safetensors_file = file}},
                   {"q", {.dtype = "float16", .safetensors_file = file, .weight_name = "p"}},
                   {"z", {.safetensors_file = file}},
                   {"n", {.safetensors_file = path("none")}}}});
  EXPECT_TRUE(same(weights.get("p"), at::arange(4).to(at::kFloat)));
  EXPECT_TRUE(same(weights.get("q"), at::arange(4).to(at::kHalf)));
  EXPECT_THAT(checkpoint_error_of([&] { weights.get("z"); }), HasSubstr("no such tensor"));
  EXPECT_THAT(checkpoint_error_of([&] { weights.get("n"); }), HasSubstr("none"));
}

struct NetImpl : torch::nn::Module {
  explicit NetImpl(c10::Device device) {
    weight = register_parameter("weight", at::empty({2, 2}, device));
    tied = register_parameter("tied", weight);
    bias = register_parameter("bias", at::full({2}, 9.0));
  }
  at::Tensor weight, tied, bias;
};

TEST_F(Offload, LoadsIntoAModelWithoutMemory) {
  const at::Tensor values = at::arange(4).view({2, 2}).to(at::kFloat);
  offload_state_dict(files_, folder_, {{"weight", values}});
  const OffloadIndex index = *read_offload_index(files_, folder_);
  NetImpl net(c10::kMeta);
  load_offloaded_weights(files_, net, index, folder_);
  EXPECT_TRUE(same(net.weight, values));
  EXPECT_TRUE(same(net.named_parameters()["tied"], values));
  EXPECT_TRUE(net.weight.requires_grad());
  EXPECT_TRUE(at::equal(net.bias, at::full({2}, 9.0)));
  // The file is no longer needed, and a backward pass finds the new device.
  net.weight.mul(2).sum().backward();
  EXPECT_TRUE(at::equal(net.tied.grad(), at::full({2, 2}, 2.0)));

  NetImpl other(c10::kMeta);
  OffloadIndex wrong = index;
  wrong.emplace_back("lost", OffloadedTensor{.dtype = "bool"});
  EXPECT_THAT(value_error_of([&] { load_offloaded_weights(files_, other, wrong, folder_); }),
              HasSubstr("\"lost\": the model has no such tensor"));
  wrong.back() = {"bias", {.dtype = "float32", .shape = {4}}};
  offload_state_dict(files_, folder_, {{"bias", at::ones({4})}});
  EXPECT_THAT(value_error_of([&] { load_offloaded_weights(files_, other, wrong, folder_); }),
              HasSubstr("its shape is [4], and [2] in the model"));
  EXPECT_TRUE(other.weight.is_meta());
}

}  // namespace
}  // namespace accelerate
