#include "accelerate/optim/optimizer_archive.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <caffe2/serialize/inline_container.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torch/serialize/archive.h>

#include "accelerate/testing/value_error.h"

namespace accelerate::internal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using torch::optim::Optimizer;

std::vector<at::Tensor> made_parameters() {
  return {at::ones({3}).requires_grad_(), at::ones({2, 2}).requires_grad_()};
}

// A user's own, with state in a place of its own.
class Counting : public Optimizer {
 public:
  explicit Counting(std::vector<at::Tensor> parameters)
      : Optimizer(std::move(parameters), std::make_unique<torch::optim::SGDOptions>(0.1)) {}
  at::Tensor step(LossClosure) override { return {}; }
  void save(torch::serialize::OutputArchive& archive) const override {
    archive.write("steps", c10::IValue(steps));
  }
  void load(torch::serialize::InputArchive& archive) override {
    c10::IValue saved;
    archive.read("steps", saved);
    steps = saved.toInt();
  }
  int64_t steps = 3;
};

// A subclass of a known one, which LibTorch saves.
class ScaledAdam : public torch::optim::Adam {
 public:
  using torch::optim::Adam::Adam;
};

TEST(OptimizerArchive, BringsBackSubclasses) {
  const auto train = [](ScaledAdam& optimizer, const std::vector<at::Tensor>& parameters) {
    optimizer.zero_grad();
    (parameters[0].sum() + parameters[1].pow(2).sum()).backward();
    optimizer.step();
  };
  const std::vector<at::Tensor> parameters = made_parameters();
  ScaledAdam optimizer(parameters, torch::optim::AdamOptions(0.1).amsgrad(true));
  for (int i = 0; i < 3; ++i) train(optimizer, parameters);
  std::vector<at::Tensor> others;
  for (const at::Tensor& parameter : parameters) {
    others.push_back(parameter.detach().clone().requires_grad_());
  }
  ScaledAdam resumed(others, torch::optim::AdamOptions(0.5));
  load_optimizer_archive(resumed, optimizer_archive(optimizer));
  train(optimizer, parameters);
  train(resumed, others);
  EXPECT_TRUE(others[0].equal(parameters[0]));
  EXPECT_TRUE(others[1].equal(parameters[1]));
}

at::Tensor bytes_of(const std::string& text) {
  at::Tensor bytes = at::zeros({static_cast<int64_t>(text.size())}, at::kByte);
  text.copy(static_cast<char*>(bytes.mutable_data_ptr()), text.size());
  return bytes;
}

at::Tensor saved_module(const torch::jit::Module& module) {
  std::ostringstream stream;
  module.save(stream);
  return bytes_of(stream.str());
}

at::Tensor zip_of(const std::vector<std::pair<std::string, std::string>>& records) {
  std::string bytes;
  caffe2::serialize::PyTorchStreamWriter writer([&bytes](const void* data, size_t size) {
    bytes.append(static_cast<const char*>(data), size);
    return size;
  });
  for (const auto& [name, text] : records) writer.writeRecord(name, text.data(), text.size());
  writer.writeEndOfFile();
  return bytes_of(bytes);
}

TEST(OptimizerArchive, CodeInArchivesIsNotExecuted) {
  Counting own(made_parameters());
  const auto error_with = [&](const at::Tensor& archive) {
    return value_error_of([&] { load_optimizer_archive(own, archive); });
  };
  for (const char* code :
       {"def __getstate__(self):\n  return 5\n"
        "def __setstate__(self, s: int) -> None:\n  assert s == 6, 'it was executed'\n",
        "def steps(self) -> int:\n  return 5\n"}) {
    torch::jit::Module module("m");
    module.define(code);
    EXPECT_THAT(error_with(saved_module(module)),
                AllOf(HasSubstr("holds code, which is not executed: code/__torch__.py: "),
                      HasSubstr("def "), Not(HasSubstr("it was executed"))));
  }
  const std::string begin = "class m(Module):\n  __parameters__ = []\n";
  for (const char* line :
       {"  x : int = f()", "  __annotations__[\"x\"] = f()", "  __parameters__ = [\"a\", f(), ]",
        "  __parameters__ = [\"\"\", ]", "  __annotations__[\"\"\"] = int", "  def f(self):",
        "  x = 3", "def f():", "class m(NamedTuple):", "  x : __torch__.torch.classes.a.B", "op()",
        "  x : int\r  def f(self):", "  __annotations__[\"a\\\"] = int"}) {
    EXPECT_THAT(error_with(zip_of({{"code/__torch__.py", begin + line + "\n"}})),
                HasSubstr("holds code"))
        << line;
  }
  for (const auto& [record, text] : std::vector<std::pair<std::string, std::string>>{
           {"data.pkl", "c__torch__.torch.classes.a\nB\n"},
           {"data.pkl", "c__torch__.torch\nclasses.a.B\n"},
           {"model.json", "{}"},
           {"CODE/__torch__.py", begin},
           {"code/__torch__.PY", begin}}) {
    EXPECT_THAT(error_with(zip_of({{record, text}})), HasSubstr("holds code")) << record;
  }
  EXPECT_THAT(error_with(zip_of({{"code/__torch__.py", begin}})),
              AllOf(HasSubstr("cannot be loaded"), Not(HasSubstr("holds code"))));
}

// One that keeps what an archive can hold.
class Collector : public Counting {
 public:
  using Counting::Counting;
  void save(torch::serialize::OutputArchive& archive) const override {
    Counting::save(archive);
    for (const auto& [name, value] : values) archive.write(name, value);
    torch::serialize::OutputArchive inner(archive.compilation_unit());
    inner.write("buffer", at::ones({2}), /*is_buffer=*/true);
    inner.write("parameter/0", at::ones({2}));
    archive.write("7", inner);
    if (!module) return;
    archive.write("module", module->_ivalue());
  }
  void load(torch::serialize::InputArchive& archive) override {
    Counting::load(archive);
    for (auto& [name, value] : values) archive.read(name, value);
  }
  std::vector<std::pair<std::string, c10::IValue>> values = {
      {"two words", c10::IValue(c10::List<int64_t>({1, 2}))},
      {"dict", c10::IValue(c10::Dict<std::string, at::Tensor>())},
      {"tuple", c10::IValue(std::make_tuple(int64_t{1}, 2.0, std::string("def f(self):")))},
      {"no_tuple", c10::IValue(c10::ivalue::Tuple::create(std::vector<c10::IValue>()))},
      {"device", c10::IValue(c10::Device("cpu"))},
      {"nothing", c10::IValue()}};
  std::optional<torch::jit::Module> module;
};

TEST(OptimizerArchive, ValuesInArchivesAreNoCode) {
  Collector own(made_parameters());
  const at::Tensor saved = optimizer_archive(own);
  own.values[0].second = c10::IValue(c10::List<int64_t>());
  load_optimizer_archive(own, saved);
  EXPECT_EQ(own.values[0].second.toIntVector(), (std::vector<int64_t>{1, 2}));
  own.module.emplace("m");
  own.module->define("def steps(self) -> int:\n  return 5\n");
  EXPECT_THAT(value_error_of([&] { optimizer_archive(own); }), HasSubstr("holds code"));
}

}  // namespace
}  // namespace accelerate::internal
