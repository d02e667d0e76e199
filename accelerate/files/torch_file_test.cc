#include "accelerate/files/torch_file.h"

#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <caffe2/serialize/inline_container.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/pickle.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/serialize.h>

#include "absl/strings/str_cat.h"
#include "accelerate/comm/checkpoint_error.h"
#include "accelerate/platform/host_files.h"

namespace accelerate {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

// The instructions of pickles as Python writes them, protocol 2.

std::string little_endian(uint64_t number, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text.push_back(static_cast<char>(number >> (8 * i)));
  return text;
}
std::string text(const std::string& value) { return "X" + little_endian(value.size(), 4) + value; }
std::string integer(int64_t value) { return "J" + little_endian(static_cast<uint32_t>(value), 4); }
std::string global(const std::string& module, const std::string& name) {
  return absl::StrCat("c", module, "\n", name, "\n");
}
std::string tuple(const std::vector<std::string>& items) {
  std::string program = "(";
  for (const std::string& item : items) program += item;
  return program + "t";
}
std::string call(const std::string& function, const std::vector<std::string>& arguments) {
  return function + tuple(arguments) + "R";
}
std::string program(const std::string& value) { return "\x80\x02" + value + "."; }

std::string ordered_dict(const std::vector<std::pair<std::string, std::string>>& items) {
  std::string program = global("collections", "OrderedDict") + ")R(";
  for (const auto& [key, value] : items) program += text(key) + value;
  return program + "u";
}

// `rest`: what follows the hooks.
std::string tensor(const std::string& type, const std::string& key, int64_t offset,
                   const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides,
                   const std::vector<std::string>& rest = {},
                   const char* function = "_rebuild_tensor_v2") {
  const auto list = [](const std::vector<int64_t>& values) {
    std::vector<std::string> items;
    for (int64_t value : values) items.push_back(integer(value));
    return tuple(items);
  };
  const std::string storage =
      tuple({text("storage"), global("torch", type), text(key), text("cpu"), integer(100)}) + "Q";
  std::vector<std::string> arguments = {storage,       integer(offset), list(sizes),
                                        list(strides), "\x89",          ordered_dict({})};
  arguments.insert(arguments.end(), rest.begin(), rest.end());
  return call(global("torch._utils", function), arguments);
}

// As of the dtype that `name` is the name of.
std::string tensor_of_dtype(const std::string& name, const std::string& key, int64_t bytes) {
  return tensor("UntypedStorage", key, 0, {bytes}, {1}, {global("torch", name)},
                "_rebuild_tensor_v3");
}

template <typename T>
std::string bytes_of(const std::vector<T>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

std::string zip(const std::map<std::string, std::string>& records) {
  std::string bytes;
  caffe2::serialize::PyTorchStreamWriter writer([&bytes](const void* data, size_t size) {
    bytes.append(static_cast<const char*>(data), size);
    return size;
  });
  for (const auto& [name, contents] : records) {
    writer.writeRecord(name, contents.data(), contents.size());
  }
  writer.writeEndOfFile();
  return bytes;
}

class TorchFile : public testing::Test {
 protected:
  TorchFile() : path_(testing::TempDir() + "/torch_file.bin") {}
  ~TorchFile() override { EXPECT_TRUE(remove_all(files_, path_).ok()); }

  // Need not survive anything.
  void write(const std::string& bytes) {
    auto file = files_.create(path_);
    ASSERT_TRUE(file.ok());
    const auto* data = reinterpret_cast<const std::byte*>(bytes.data());
    ASSERT_TRUE((*file)->write_at(0, absl::MakeConstSpan(data, bytes.size())).ok());
  }
  c10::IValue read(const std::string& value, std::map<std::string, std::string> storages = {}) {
    std::map<std::string, std::string> records = {{"data.pkl", program(value)}};
    for (auto& [key, bytes] : storages) records["data/" + key] = bytes;
    write(zip(records));
    return read_torch_file(files_, path_);
  }
  std::string error_of(const std::function<void()>& make) {
    try {
      make();
    } catch (const CheckpointError& error) {
      EXPECT_THAT(error.what_without_backtrace(), HasSubstr(path_));
      return error.what_without_backtrace();
    }
    return "";
  }
  std::string error_of(const std::string& value,
                       const std::map<std::string, std::string>& storages = {}) {
    return error_of([&] { read(value, storages); });
  }

  HostFiles files_;
  const std::string path_;
};

TEST_F(TorchFile, HoldsAStateDict) {
  const std::string parameter =
      call(global("torch._utils", "_rebuild_parameter"),
           {tensor("BFloat16Storage", "1", 0, {2}, {1}), "\x88", ordered_dict({})});
  // State dicts have attributes, which are of no interest.
  const std::string attributes = "}" + text("_metadata") +
                                 ordered_dict({{"", "}" + text("version") + integer(1) + "s"}}) +
                                 "s";
  write(
      zip({{"data.pkl", program(ordered_dict({{"w", tensor("FloatStorage", "0", 1, {2, 2}, {1, 2})},
                                              {"b", parameter}}) +
                                attributes + "b")},
           {"data/0", bytes_of<float>({0, 1, 2, 3, 4})},
           {"data/1", std::string("\x80\x3f\x00\x40", 4)},
           {"byteorder", "little"}}));
  const NamedTensors state = read_torch_state_dict(files_, path_).tensors;
  ASSERT_EQ(state.size(), 2);
  EXPECT_EQ(state[0].first, "w");
  EXPECT_TRUE(state[0].second.equal(at::tensor({1.f, 3.f, 2.f, 4.f}).view({2, 2})));
  EXPECT_EQ(state[1].first, "b");
  EXPECT_TRUE(state[1].second.equal(at::tensor({1.f, 2.f}).to(at::kBFloat16)));
}

TEST_F(TorchFile, KeepsSharedMemoryShared) {
  const auto dict = read(ordered_dict({{"a", tensor("LongStorage", "0", 0, {2}, {1})},
                                       {"b", tensor("LongStorage", "0", 0, {1}, {1})}}),
                         {{"0", bytes_of<int64_t>({5, 6})}})
                        .toGenericDict();
  dict.at("b").toTensor().fill_(9);
  EXPECT_TRUE(dict.at("a").toTensor().equal(at::tensor({9, 6}, at::kLong)));
}

TEST_F(TorchFile, HoldsWhatPeersSaveOfTheirState) {
  const std::string array = call(global("numpy.core.multiarray", "_reconstruct"),
                                 {global("numpy", "ndarray"), tuple({integer(0)}),
                                  call(global("_codecs", "encode"), {text("b"), text("latin1")})});
  const std::string dtype =
      call(global("numpy", "dtype"), {text("u4"), "\x89", "\x88"}) +
      tuple({integer(3), text("<"), "N", "N", "N", integer(-1), integer(-1), integer(0)}) + "b";
  const std::string contents =
      call(global("_codecs", "encode"),
           {text(std::string("\x01\0\0\0\xc3\xbf\0\0\0", 9)), text("latin1")});
  const c10::IValue value = read(
      "}(" + text("step") + integer(7) + text("random_state") +
          tuple(
              {integer(3), tuple({"K\x05", std::string("\x8a\x05\xff\xff\xff\xff\x00", 7)}), "N"}) +
          text("numpy") +
          tuple({text("MT19937"),
                 array + tuple({integer(1), tuple({integer(2)}), dtype, "\x89", contents}) + "b"}) +
          text("lr") + std::string("G\x3f\xe0\0\0\0\0\0\0", 9) + text("done") + "\x88" +
          text("betas") + "](" + integer(-1) + "Ne" + text("device") +
          call(global("torch", "device"), {text("cuda"), integer(1)}) + text("raw") + "C\x02" +
          "ab" + text("torch_manual_seed") + tensor("ByteStorage", "0", 0, {3}, {1}) + "u",
      {{"0", "\x01\x02\x03"}});
  const auto dict = value.toGenericDict();
  EXPECT_EQ(dict.at("step").toInt(), 7);
  const auto& random_state = dict.at("random_state").toTupleRef().elements();
  EXPECT_EQ(random_state[1].toTupleRef().elements()[1].toInt(), 0xffffffffLL);
  EXPECT_TRUE(random_state[2].isNone());
  const at::Tensor numbers = dict.at("numpy").toTupleRef().elements()[1].toTensor();
  EXPECT_EQ(numbers.scalar_type(), at::kUInt32);
  EXPECT_TRUE(numbers.to(at::kLong).equal(at::tensor({1, 255}, at::kLong)));
  EXPECT_EQ(dict.at("lr").toDouble(), 0.5);
  EXPECT_TRUE(dict.at("done").toBool());
  EXPECT_EQ(dict.at("betas").toListRef()[0].toInt(), -1);
  EXPECT_EQ(dict.at("device").toDevice(), c10::Device("cuda:1"));
  EXPECT_EQ(dict.at("raw").toTensor().numel(), 2);
  EXPECT_TRUE(dict.at("torch_manual_seed").toTensor().equal(at::tensor({1, 2, 3}, at::kByte)));
}

TEST_F(TorchFile, HoldsWhatLibTorchSaves) {
  c10::impl::GenericDict dict(c10::StringType::get(), c10::TensorType::get());
  dict.insert("x", at::arange(3));
  const std::vector<char> bytes = torch::jit::pickle_save(dict);
  write(std::string(bytes.begin(), bytes.end()));
  const NamedTensors state = read_torch_state_dict(files_, path_).tensors;
  ASSERT_EQ(state.size(), 1);
  EXPECT_TRUE(state[0].second.equal(at::arange(3)));
}

// Beside the model a checkpoint has its optimizer, an epoch, and so on.
TEST_F(TorchFile, HoldsTheModelOfACheckpoint) {
  for (const char* key : {"state_dict", "model", "model_state_dict"}) {
    c10::impl::GenericDict model(c10::StringType::get(), c10::TensorType::get());
    model.insert("x", at::arange(3));
    c10::impl::GenericDict checkpoint(c10::StringType::get(), c10::AnyType::get());
    checkpoint.insert("epoch", 3);
    checkpoint.insert(key, model);
    const std::vector<char> bytes = torch::jit::pickle_save(checkpoint);
    write(std::string(bytes.begin(), bytes.end()));
    const TorchStateDict state = read_torch_state_dict(files_, path_);
    ASSERT_EQ(state.tensors.size(), 1) << key;
    EXPECT_EQ(state.tensors[0].first, "x") << key;
    EXPECT_TRUE(state.others.empty()) << key;
  }
}

// torch.save keeps the values before the conjugation or negation, and says that they are so.
TEST_F(TorchFile, HonoursFlagsOfViews) {
  const auto flags = [](const std::string& of) { return "}(" + of + "u"; };
  const std::string conj = flags(text("conj") + "\x88"), neg = flags(text("neg") + "\x88");
  const std::string both = flags(text("conj") + "\x88" + text("neg") + "\x88");
  const std::string none = flags(text("conj") + "\x89" + text("neg") + "\x89");
  const auto of = [](const std::string& metadata) {
    return tensor("ComplexFloatStorage", "0", 0, {2}, {1}, {metadata});
  };
  const auto dict =
      read(ordered_dict({{"plain", of(none)},
                         {"conj", of(conj)},
                         {"neg", of(neg)},
                         {"both", of(both)},
                         // The imaginary parts of a conjugated tensor.
                         {"imag", tensor("FloatStorage", "0", 1, {2}, {2}, {neg})},
                         {"half", tensor("UntypedStorage", "1", 0, {2}, {1},
                                         {global("torch", "float16"), neg}, "_rebuild_tensor_v3")},
                         {"parameter", call(global("torch._utils", "_rebuild_parameter"),
                                            {of(conj), "\x88", ordered_dict({})})}}),
           {{"0", bytes_of<float>({1, 2, 3, -4})}, {"1", std::string("\0\x3c\0\x40", 4)}})
          .toGenericDict();
  const auto is = [&](const char* name, const at::Tensor& expected) {
    const at::Tensor read = dict.at(name).toTensor();
    EXPECT_TRUE(read.equal(expected)) << name;
    EXPECT_TRUE(read.resolve_conj().resolve_neg().clone().equal(expected)) << name;
  };
  const at::Tensor plain = at::complex(at::tensor({1.f, 3.f}), at::tensor({2.f, -4.f}));
  is("plain", plain);
  is("conj", plain.conj());
  is("neg", -plain);
  is("both", -plain.conj());
  is("imag", at::tensor({-2.f, 4.f}));
  is("half", at::tensor({-1.f, -2.f}).to(at::kHalf));
  is("parameter", plain.conj());
  // They are views of one memory.
  dict.at("plain").toTensor().fill_(c10::complex<float>(0, 1));
  is("conj", at::complex(at::zeros({2}), at::full({2}, -1.f)));
  is("imag", at::tensor({-1.f, -1.f}));
  EXPECT_THAT(
      error_of(tensor("FloatStorage", "0", 0, {2}, {1}, {conj}), {{"0", bytes_of<float>({1, 2})}}),
      HasSubstr("not complex"));
  EXPECT_THAT(error_of(tensor("BoolStorage", "0", 0, {2}, {1}, {neg}), {{"0", "\1\1"}}),
              HasSubstr("truth values are negated"));
}

struct InnerImpl : torch::nn::Module {
  InnerImpl() {
    register_module("fc", torch::nn::Linear(2, 3));
    register_buffer("steps", at::arange(2));
  }
};
TORCH_MODULE(Inner);
struct OuterImpl : torch::nn::Module {
  OuterImpl() {
    register_module("inner", Inner());
    register_module("list", torch::nn::Sequential(torch::nn::Linear(3, 1)));
    tied = register_parameter("tied", at::randn({4, 4}).to(at::kBFloat16));
    register_parameter("again", tied);
  }
  at::Tensor tied;
};
TORCH_MODULE(Outer);

TEST_F(TorchFile, HoldsModulesOfLibTorch) {
  Outer net;
  torch::save(net, path_);
  std::map<std::string, at::Tensor> expected;
  for (const auto& item : net->named_parameters()) expected[item.key()] = item.value();
  for (const auto& item : net->named_buffers()) expected[item.key()] = item.value();
  expected["again"] = net->tied;
  const TorchStateDict state = read_torch_state_dict(files_, path_);
  EXPECT_THAT(state.others, IsEmpty());
  EXPECT_EQ(state.tensors.size(), expected.size());
  for (const auto& [name, tensor] : state.tensors) {
    ASSERT_TRUE(expected.contains(name)) << name;
    EXPECT_EQ(tensor.scalar_type(), expected[name].scalar_type());
    EXPECT_TRUE(tensor.equal(expected[name])) << name;
  }
  // As a value it is a dict of dicts.
  const auto dict = read_torch_file(files_, path_).toGenericDict();
  EXPECT_TRUE(dict.at("inner").toGenericDict().at("steps").toTensor().equal(at::arange(2)));

  torch::save(std::vector<at::Tensor>{at::ones({1}), at::zeros({2})}, path_);
  EXPECT_TRUE(read_torch_state_dict(files_, path_).tensors[1].second.equal(at::zeros({2})));
  // Dtypes that Python's torch.save keeps otherwise.
  const std::vector<at::ScalarType> dtypes = {at::kFloat8_e4m3fn, at::kFloat8_e5m2, at::kUInt16,
                                              at::kUInt32, at::kUInt64};
  std::vector<at::Tensor> ones;
  for (const at::ScalarType dtype : dtypes) ones.push_back(at::ones({2}).to(dtype));
  torch::save(ones, path_);
  const NamedTensors kinds = read_torch_state_dict(files_, path_).tensors;
  ASSERT_EQ(kinds.size(), dtypes.size());
  for (size_t i = 0; i < dtypes.size(); ++i) {
    EXPECT_EQ(kinds[i].second.scalar_type(), dtypes[i]);
    EXPECT_TRUE(kinds[i].second.to(at::kFloat).equal(at::ones({2}))) << dtypes[i];
  }
  torch::save(at::full({3}, 2), path_);
  const NamedTensors one = read_torch_state_dict(files_, path_).tensors;
  ASSERT_EQ(one.size(), 1);
  EXPECT_EQ(one[0].first, "0");
}

TEST_F(TorchFile, HoldsOptimizersOfLibTorch) {
  torch::nn::Linear net(2, 1);
  torch::optim::Adam adam(net->parameters(), 0.1);
  net(at::ones({1, 2})).sum().backward();
  adam.step();
  torch::save(adam, path_);
  int averages = 0;
  for (const auto& [name, tensor] : read_torch_state_dict(files_, path_).tensors) {
    if (name.starts_with("state.") && name.ends_with(".exp_avg")) ++averages;
  }
  EXPECT_EQ(averages, 2);
}

TEST_F(TorchFile, HoldsScriptedModules) {
  torch::jit::Module module("__torch__.Net");
  module.register_parameter("w", at::ones({2}), /*is_buffer=*/false);
  module.register_attribute("training", c10::BoolType::get(), true);
  module.register_attribute("sizes", c10::ListType::ofInts(), std::vector<int64_t>{1, 2});
  torch::jit::Module child("__torch__.Child");
  child.register_buffer("b", at::zeros({3}));
  module.register_module("child", child);
  module.define("def forward(self, x):\n  return x + self.w\n");
  module.save(path_);
  const TorchStateDict state = read_torch_state_dict(files_, path_);
  ASSERT_EQ(state.tensors.size(), 2);
  EXPECT_THAT(state.others, IsEmpty());
  EXPECT_EQ(state.tensors[0].first, "w");
  EXPECT_EQ(state.tensors[1].first, "child.b");
}

TEST_F(TorchFile, HoldsProtocol1) {
  // No instruction of protocol 2: integers and truth values are texts, tuples have marks.
  const auto read_1 = [&](const std::string& value,
                          const std::map<std::string, std::string>& storages) {
    std::map<std::string, std::string> records = {{"data.pkl", value + "."}};
    for (auto& [key, bytes] : storages) records["data/" + key] = bytes;
    write(zip(records));
    return read_torch_file(files_, path_).toGenericDict();
  };
  std::string w = tensor("FloatStorage", "0", 0, {2}, {1});
  w.replace(w.find('\x89'), 1, "I00\n");
  const auto dict =
      read_1("}(" + text("w") + w + text("yes") + "I01\n" + text("n") + "I-7\np3\n" +
                 text("again") + "g3\n" + text("long") + "L9007199254740993L\n" + text("wide") +
                 call(global("__builtin__", "set"), {"](" + integer(4) + "e"}) + "u",
             {{"0", bytes_of<float>({1, 2})}});
  EXPECT_TRUE(dict.at("w").toTensor().equal(at::tensor({1.f, 2.f})));
  EXPECT_TRUE(dict.at("yes").isBool() && dict.at("yes").toBool());
  EXPECT_EQ(dict.at("n").toInt(), -7);
  EXPECT_EQ(dict.at("again").toInt(), -7);
  EXPECT_EQ(dict.at("long").toInt(), 9007199254740993LL);
  EXPECT_EQ(dict.at("wide").toListRef()[0].toInt(), 4);
  EXPECT_THAT(error_of("I1x\n"), HasSubstr("a number is not one"));
  EXPECT_THAT(error_of("L99999999999999999999L\n"), HasSubstr("64 bits"));
}

TEST_F(TorchFile, HoldsComplexNumbersAndBytesOfEarlierPythons) {
  const std::string half("G\x3f\xe0\0\0\0\0\0\0", 9), two("G\x40\0\0\0\0\0\0\0", 9);
  const auto dict = read(ordered_dict({{"z", call(global("__builtin__", "complex"), {half, two})},
                                       {"raw", call(global("__builtin__", "bytearray"),
                                                    {text("a\xc3\xbf"), text("latin-1")})}}))
                        .toGenericDict();
  EXPECT_EQ(dict.at("z").toComplexDouble(), c10::complex<double>(0.5, 2));
  EXPECT_TRUE(dict.at("raw").toTensor().equal(at::tensor({97, 255}, at::kByte)));
}

TEST_F(TorchFile, NamesWhatIsNoValueByItself) {
  const std::string sparse =
      call(global("torch._utils", "_rebuild_sparse_tensor"),
           {call(global("torch.serialization", "_get_layout"), {text("torch.sparse_coo")}),
            tuple({tensor("LongStorage", "0", 0, {1}, {1})})});
  const std::string storage = tuple({text("storage"), global("torch", "FloatStorage"), text("0"),
                                     text("cpu"), integer(2)}) +
                              "Q";
  EXPECT_THAT(error_of(ordered_dict({{"s", sparse}}), {{"0", bytes_of<float>({1, 2})}}),
              AllOf(HasSubstr("\"s\""), HasSubstr("a sparse tensor")));
  EXPECT_THAT(error_of(ordered_dict({{"memory", storage}})),
              AllOf(HasSubstr("\"memory\""), HasSubstr("a storage without a tensor")));
}

TEST_F(TorchFile, HoldsArraysOfAnyLayout) {
  const auto dtype = [](const std::string& type, const std::string& order) {
    return call(global("numpy", "dtype"), {text(type), "\x89", "\x88"}) +
           tuple({integer(3), text(order), "N", "N", "N", integer(-1), integer(-1), integer(0)}) +
           "b";
  };
  const auto bytes = [](const std::string& value) {
    return "B" + little_endian(value.size(), 4) + value;
  };
  const auto array = [&](const std::string& type, const std::string& order,
                         const std::vector<int64_t>& shape, bool in_columns,
                         const std::string& contents) {
    std::vector<std::string> sizes;
    for (const int64_t size : shape) sizes.push_back(integer(size));
    return call(global("numpy.core.multiarray", "_reconstruct"),
                {global("numpy", "ndarray"), tuple({integer(0)}), bytes("b")}) +
           tuple({integer(1), tuple(sizes), dtype(type, order), in_columns ? "\x88" : "\x89",
                  bytes(contents)}) +
           "b";
  };
  const auto from_buffer = [&](const std::string& module, const std::string& order,
                               const std::string& rest) {
    const std::string contents = bytes_of<int16_t>({1, 2, 3, 4, 5, 6});
    // A bytearray of protocol 5.
    return global(module, "_frombuffer") + "(" + "\x96" + little_endian(contents.size(), 8) +
           contents + dtype("i2", "<") + tuple({integer(2), integer(3)}) + text(order) + rest +
           "tR";
  };
  const at::Tensor matrix = at::tensor({1, 2, 3, 4, 5, 6}, at::kShort).view({2, 3});
  EXPECT_TRUE(read(array("i2", "<", {2, 3}, false, bytes_of<int16_t>({1, 2, 3, 4, 5, 6})))
                  .toTensor()
                  .equal(matrix));
  EXPECT_TRUE(read(array("i2", "<", {2, 3}, true, bytes_of<int16_t>({1, 4, 2, 5, 3, 6})))
                  .toTensor()
                  .equal(matrix));
  EXPECT_TRUE(read(array("i2", ">", {2}, false, std::string("\0\1\1\0", 4)))
                  .toTensor()
                  .equal(at::tensor({1, 256}, at::kShort)));
  EXPECT_TRUE(read(array("c8", ">", {1}, false, std::string("\x3f\x80\0\0\x40\0\0\0", 8)))
                  .toTensor()
                  .equal(at::complex(at::ones({1}), at::full({1}, 2.f))));
  EXPECT_TRUE(read(from_buffer("numpy.core.numeric", "C", "")).toTensor().equal(matrix));
  EXPECT_TRUE(
      read(from_buffer("numpy._core.numeric", "F", "")).toTensor().equal(matrix.view({3, 2}).t()));
  EXPECT_TRUE(read(from_buffer("numpy._core.numeric", "K", tuple({integer(1), integer(0)})))
                  .toTensor()
                  .equal(matrix.t()));
  EXPECT_THAT(error_of(array("i2", "<", {3}, true, "ab")), HasSubstr("as long as its bytes"));
  EXPECT_THAT(error_of(array("O8", "|", {1}, false, "ab")), HasSubstr("numpy.dtype O8"));
}

// What is not asked for may be anything.
TEST_F(TorchFile, HoldsTensorsBesideWhatCannotBeRead) {
  const std::string namespace_of_arguments =
      global("argparse", "Namespace") + ")\x81}" + text("lr") + "K\x01" + "sb";
  const std::string with_list = global("my.module", "List") + ")\x81(K\x01" + "K\x02" + "e";
  const std::string quantised =
      call(global("torch._utils", "_rebuild_qtensor"), {"N", integer(0), "N"});
  const std::map<std::string, std::string> storages = {{"0", bytes_of<float>({1, 2})},
                                                       {"1", "\x7f\x7f"}};
  const std::string value = ordered_dict(
      {{"e8m0", tensor_of_dtype("float8_e8m0fnu", "1", 2)},
       {"fp4", tensor_of_dtype("float4_e2m1fn_x2", "1", 2)},
       {"uint4", tensor_of_dtype("uint4", "1", 2)},
       {"fnuz", tensor_of_dtype("float8_e4m3fnuz", "1", 2)},
       {"parameter", call(global("torch._utils", "_rebuild_parameter"),
                          {tensor_of_dtype("float8_e8m0fnu", "1", 2), "\x88", ordered_dict({})})},
       {"q", quantised},
       {"args", namespace_of_arguments},
       {"list", with_list},
       {"seed", "\x8a\x09" + std::string(9, '\x7f')},
       {"epoch", "K\x05"},
       {"w", tensor("FloatStorage", "0", 0, {2}, {1})}});
  EXPECT_THAT(error_of(value, storages),
              AllOf(HasSubstr("\"e8m0\""), HasSubstr("torch.float8_e8m0fnu")));
  const TorchStateDict state = read_torch_state_dict(files_, path_);
  ASSERT_EQ(state.tensors.size(), 2);
  EXPECT_EQ(state.tensors[0].first, "fnuz");
  EXPECT_EQ(state.tensors[0].second.scalar_type(), at::kFloat8_e4m3fnuz);
  EXPECT_TRUE(state.tensors[1].second.equal(at::tensor({1.f, 2.f})));
  std::map<std::string, TorchStateDict::Other> others;
  for (const auto& each : state.others) others[each.name] = each;
  ASSERT_EQ(others.size(), 9);
  for (const char* name : {"e8m0", "fp4", "uint4", "parameter", "q"}) {
    EXPECT_TRUE(others[name].is_tensor) << name;
  }
  for (const char* name : {"args", "list", "seed", "epoch"}) {
    EXPECT_FALSE(others[name].is_tensor) << name;
  }
  EXPECT_THAT(others["fp4"].why, HasSubstr("torch.float4_e2m1fn_x2"));
  EXPECT_THAT(others["parameter"].why, HasSubstr("torch.float8_e8m0fnu"));
  EXPECT_THAT(others["q"].why, HasSubstr("_rebuild_qtensor"));
  EXPECT_THAT(others["args"].why, HasSubstr("argparse.Namespace"));
  EXPECT_THAT(others["list"].why, HasSubstr("my.module.List"));
  EXPECT_THAT(others["seed"].why, HasSubstr("64 bits"));
  // A whole module of Python is named.
  EXPECT_THAT(error_of([&] {
                write(zip({{"data.pkl", program(global("torch.nn.modules.linear", "Linear") +
                                                ")\x81}" + text("training") + "\x88" + "sb")}}));
                read_torch_state_dict(files_, path_);
              }),
              AllOf(HasSubstr("torch.nn.modules.linear.Linear"), HasSubstr("state_dict()")));
}

TEST_F(TorchFile, ExecutesNothing) {
  for (const auto& [module, name] :
       std::vector<std::pair<std::string, std::string>>{{"os", "system"},
                                                        {"builtins", "eval"},
                                                        {"__builtin__", "getattr"},
                                                        {"torch.hub", "load"},
                                                        {"numpy", "load"},
                                                        {"numpy.core.multiarray", "frombuffer"}}) {
    EXPECT_THAT(error_of(call(global(module, name), {text("x")})), HasSubstr(name));
  }
  EXPECT_THAT(error_of(global("os", "system")), HasSubstr("\"os.system\""));
  const std::string again = global("torch._tensor", "_rebuild_from_type_v2");
  EXPECT_THAT(error_of(call(again, {again, "N", tuple({}), "}"})), HasSubstr("_rebuild_from_type"));
}

TEST_F(TorchFile, IsNotTrusted) {
  const std::string list = "]q\x01";
  EXPECT_THAT(error_of(list + "h\x01" + "a"), HasSubstr("contains itself"));
  EXPECT_THAT(error_of(std::string(1000000, ']') + std::string(999999, 'a')), HasSubstr("deep"));
  EXPECT_THAT(error_of("t"), HasSubstr("mark"));
  EXPECT_THAT(error_of(""), HasSubstr("stack underflow"));
  EXPECT_THAT(error_of("(0"), HasSubstr("stack underflow"));
  EXPECT_THAT(error_of("h\x07"), HasSubstr("unknown memo key"));
  EXPECT_THAT(error_of("X\xff\xff\xff\xff"), HasSubstr("too early"));
  EXPECT_THAT(error_of("}(K\x01u"), HasSubstr("not a container"));
  EXPECT_THAT(error_of("\x8a\x09" + std::string(9, '\x7f')), HasSubstr("64 bits"));
  EXPECT_THAT(error_of("P0\n"), HasSubstr("0x50"));
  EXPECT_THAT(error_of("(dp0\nVw\n"), HasSubstr("protocol 0, which is text"));
  EXPECT_THAT(error_of("\xff"), AllOf(HasSubstr("0xff"), testing::Not(HasSubstr("protocol"))));
  EXPECT_THAT(error_of("}(]K\x01u"), HasSubstr("hash"));
  // A list that is copied, and its copy copied, again and again.
  std::string copies = "](" + std::string(1000, 'N') + "eq\x01";
  for (int i = 0; i < 100000; ++i) {
    copies += global("builtins", "set") + "h\x01\x85R0";
  }
  EXPECT_THAT(error_of(copies), HasSubstr("much more"));
}

TEST_F(TorchFile, CostsMemoryInProportionToItsLength) {
  // A few bytes refer to a long text, bytes, or list, again and again.
  std::string recalls;
  for (int i = 0; i < 10000; ++i) recalls += "h\x01";
  const std::string megabyte(1 << 20, 'x');
  const std::string bytes = "B" + little_endian(megabyte.size(), 4) + megabyte;
  const std::string nones = "](" + std::string(100000, 'N') + "e";
  for (const std::string& large : {text(megabyte), bytes, nones}) {
    EXPECT_THAT(error_of(large + "q\x01" + "0](" + recalls + "e"), HasSubstr("much more"));
  }
  // Names too, where each is what a dict is asked for.
  std::string dicts;
  for (int i = 0; i < 10000; ++i) dicts += "}h\x01Ns";
  EXPECT_THAT(error_of(text(megabyte) + "q\x01" + "0](" + dicts + "e"), HasSubstr("much more"));
  // Each list has the one before it twice.
  std::string doubled = "]q\x01";
  for (int i = 0; i < 60; ++i) doubled += "0](h\x01h\x01" + std::string("eq\x01");
  EXPECT_THAT(error_of(doubled), HasSubstr("much more"));
  // Tensors of very many dims.
  std::string ones = "(";
  for (int i = 0; i < 10000; ++i) ones += "K\x01";
  const std::string storage =
      tuple({text("storage"), global("torch", "ByteStorage"), text("0"), text("cpu"), integer(1)}) +
      "Q";
  std::string wide = ones + "tq\x01" + "0" + storage + "q\x02" + "0](";
  for (int i = 0; i < 2000; ++i) {
    wide +=
        call(global("torch._utils", "_rebuild_tensor_v2"), {"h\x02", integer(0), "h\x01", "h\x01"});
  }
  EXPECT_THAT(error_of(wide + "e", {{"0", "x"}}), HasSubstr("much more"));
}

TEST_F(TorchFile, IsNotDeeperByReferences) {
  // A list of lists, each in the next one: none is far below the outermost where it first comes.
  std::string lists = "](]q\x01";
  for (int i = 0; i < 98; ++i) lists += "]h\x01" + std::string("aq\x01");
  EXPECT_EQ(error_of(lists + "e"), "");
  EXPECT_THAT(error_of(lists + "]h\x01" + "aq\x01]h\x01" + "ae"), HasSubstr("deep"));
}

TEST_F(TorchFile, SharesWhatIsUsedOften) {
  // As in the state of an optimizer with many parameters: names, and a tuple.
  std::string program = text("exponential_moving_average_of_gradients") + "q\x01" + "0(" +
                        integer(1) + integer(2) + "tq\x02" + "0](";
  for (int i = 0; i < 100000; ++i) program += "}h\x01h\x02s";
  const c10::IValue value = read(program + "e");
  ASSERT_EQ(value.toListRef().size(), 100000);
  EXPECT_EQ(value.toListRef()[99999].toGenericDict().size(), 1);
}

TEST_F(TorchFile, RefusesTheOldFormat) {
  const std::string magic = "\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.";
  for (const std::string& start :
       {std::string("\x80\x02"), std::string("\x80\x04\x95\x0d\0\0\0\0\0\0\0", 11)}) {
    write(start + magic + program("K\x01"));
    EXPECT_TRUE(is_torch_file(files_, path_));
    EXPECT_THAT(error_of([&] { read_torch_state_dict(files_, path_); }),
                HasSubstr("old format of torch.save"));
  }
  write("L119547037146038801333356L\n.I1001\n.");  // pickle_protocol=1
  EXPECT_TRUE(is_torch_file(files_, path_));
  EXPECT_THAT(error_of([&] { read_torch_file(files_, path_); }), HasSubstr("old format"));
  write(program("K\x01"));
  EXPECT_FALSE(is_torch_file(files_, path_));
  write("");
  EXPECT_FALSE(is_torch_file(files_, path_));
}

TEST_F(TorchFile, RefusesTensorsBeyondTheirStorage) {
  const std::map<std::string, std::string> storages = {{"0", bytes_of<float>({1, 2, 3, 4})}};
  EXPECT_EQ(error_of(tensor("FloatStorage", "0", 0, {2, 2}, {2, 1}), storages), "");
  EXPECT_EQ(error_of(tensor("FloatStorage", "0", 3, {5}, {0}), storages), "");
  EXPECT_EQ(error_of(tensor("FloatStorage", "0", 4, {0}, {1}), storages), "");
  const int64_t huge = INT32_MAX;
  for (const std::string& bad :
       {tensor("FloatStorage", "0", 0, {5}, {1}), tensor("FloatStorage", "0", 1, {2, 2}, {2, 1}),
        tensor("FloatStorage", "0", -1, {1}, {1}), tensor("FloatStorage", "0", 0, {-1}, {1}),
        tensor("FloatStorage", "0", 0, {2}, {-1}), tensor("FloatStorage", "0", 0, {2, 2}, {1}),
        tensor("DoubleStorage", "0", 0, {3}, {1}),
        tensor("FloatStorage", "0", 0, {huge, huge, huge}, {huge, huge, huge}),
        tensor("FloatStorage", "0", 0, {huge, huge, huge}, {0, 0, 0})}) {
    EXPECT_THAT(error_of(bad, storages), HasSubstr("beyond its storage"));
  }
  EXPECT_THAT(error_of(tensor("FloatStorage", "7", 0, {1}, {1}), storages), HasSubstr("data/7"));
  EXPECT_THAT(error_of(tensor("QInt8Storage", "0", 0, {1}, {1}), storages),
              HasSubstr("QInt8Storage"));
}

TEST_F(TorchFile, SaysWhatIsNoStateDict) {
  EXPECT_THAT(error_of([&] {
                read("K\x05");
                read_torch_state_dict(files_, path_);
              }),
              HasSubstr("not a dict"));
  EXPECT_THAT(error_of([&] {
                read("}" + text("epoch") + "K\x05s");
                read_torch_state_dict(files_, path_);
              }),
              HasSubstr("epoch"));
  write(zip({{"models/model.json", "{}"}}));
  EXPECT_THAT(error_of([&] { read_torch_state_dict(files_, path_); }),
              AllOf(HasSubstr("it has no data.pkl"), HasSubstr("models/model.json")));
}

TEST_F(TorchFile, SurvivesDamageAnywhere) {
  const std::string good =
      zip({{"data.pkl", program(ordered_dict({{"w", tensor("FloatStorage", "0", 0, {2}, {1})}}))},
           {"data/0", bytes_of<float>({1, 2})}});
  const auto read_damaged = [&](const std::string& bytes) {
    write(bytes);
    try {
      read_torch_file(files_, path_);
    } catch (const CheckpointError&) {
    }
  };
  for (size_t length = 0; length < good.size(); length += 7) read_damaged(good.substr(0, length));
  for (size_t i = 0; i < good.size(); i += 2) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0x55);
    read_damaged(bad);
  }
  EXPECT_NE(error_of([&] {
              write(good.substr(0, good.size() / 2));
              read_torch_file(files_, path_);
            }),
            "");
  EXPECT_NE(error_of([&] {
              write("this is not a zip");
              read_torch_file(files_, path_);
            }),
            "");
  EXPECT_NE(error_of([&] {
              EXPECT_TRUE(remove_all(files_, path_).ok());
              read_torch_file(files_, path_);
            }),
            "");
}

}  // namespace
}  // namespace accelerate
