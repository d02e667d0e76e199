#include "accelerate/modules/module_state_dict.h"

#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include "accelerate/comm/checkpoint_error.h"

namespace accelerate {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    // Children are registered before what is the module's own, and still come after it.
    first = register_module("first", torch::nn::Linear(2, 3));
    norm = register_module("norm", torch::nn::BatchNorm1d(3));
    scale = register_parameter("scale", at::ones({1}));
    steps = register_buffer("steps", at::zeros({}, at::kLong));
  }
  torch::nn::Linear first{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  at::Tensor scale;
  at::Tensor steps;
};
TORCH_MODULE(Net);

struct TiedImpl : torch::nn::Module {
  TiedImpl() {
    embedding = register_parameter("embedding", at::zeros({3, 2}));
    head = register_parameter("head", embedding);
    register_parameter("absent", at::Tensor(), /*requires_grad=*/false);
  }
  at::Tensor embedding;
  at::Tensor head;
};
TORCH_MODULE(Tied);

std::vector<std::string> names_of(const NamedTensors& tensors) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) names.push_back(name);
  return names;
}

std::string error_of(torch::nn::Module& module, const NamedTensors& state, bool strict = true) {
  try {
    load_module_state_dict(module, state, {.strict = strict});
  } catch (const CheckpointError& error) {
    return error.what_without_backtrace();
  }
  return "";
}

TEST(ModuleStateDict, HasPyTorchsOrder) {
  const Net net;
  EXPECT_THAT(
      names_of(module_state_dict(*net)),
      ElementsAre("scale", "steps", "first.weight", "first.bias", "norm.weight", "norm.bias",
                  "norm.running_mean", "norm.running_var", "norm.num_batches_tracked"));
}

TEST(ModuleStateDict, IsTheModulesOwnMemory) {
  const Net net;
  for (const auto& [name, tensor] : module_state_dict(*net)) {
    EXPECT_FALSE(tensor.requires_grad()) << name;
    if (name == "scale") tensor.fill_(7);
  }
  EXPECT_EQ(net->scale.item<float>(), 7);
}

TEST(ModuleStateDict, HasTiedTensorsUnderEachNameAndNoUndefinedOnes) {
  const Tied tied;
  const NamedTensors state = module_state_dict(*tied);
  EXPECT_THAT(names_of(state), ElementsAre("embedding", "head"));
  EXPECT_THAT(internal::first_identical_views(state), ElementsAre(0, 0));
}

TEST(FirstIdenticalViews, TellsViewsOfOneMemoryApart) {
  const at::Tensor whole = at::arange(6);
  const at::Tensor empty = at::empty({0});
  const NamedTensors tensors = {{"whole", whole},
                                {"part", whole.slice(0, 2, 4)},
                                {"same part", whole.slice(0, 2, 4)},
                                {"rows", whole.view({2, 3})},
                                {"columns", whole.view({3, 2}).t()},
                                {"empty", empty},
                                {"also empty", at::empty({0})},
                                {"the same empty", empty}};
  EXPECT_THAT(internal::first_identical_views(tensors), ElementsAre(0, 1, 1, 3, 4, 5, 6, 5));
}

TEST(LoadModuleStateDict, CopiesAcrossDtypesAndKeepsTheTensors) {
  Net net;
  NamedTensors state = module_state_dict(*Net());
  for (auto& [name, tensor] : state) {
    tensor = tensor.is_floating_point() ? at::full_like(tensor, 0.5, at::kDouble)
                                        : at::full_like(tensor, 3);
  }
  const void* memory = net->first->weight.data_ptr();
  const IncompatibleKeys keys = load_module_state_dict(*net, state);
  EXPECT_THAT(keys.missing_keys, IsEmpty());
  EXPECT_THAT(keys.unexpected_keys, IsEmpty());
  EXPECT_EQ(net->first->weight.data_ptr(), memory);
  EXPECT_TRUE(net->first->weight.requires_grad());
  EXPECT_TRUE(net->first->weight.equal(at::full({3, 2}, 0.5)));
  EXPECT_EQ(net->steps.item<int64_t>(), 3);
}

TEST(LoadModuleStateDict, TakesNamesOfWrappedModels) {
  Tied tied;
  load_module_state_dict(*tied, {{"module.embedding", at::ones({3, 2})}});
  EXPECT_TRUE(tied->head.equal(at::ones({3, 2})));
}

TEST(LoadModuleStateDict, SaysAllThatIsWrongAtOnceAndChangesNothing) {
  Net net;
  NamedTensors state = module_state_dict(*net);
  for (auto& [name, tensor] : state) tensor = tensor.clone();
  state.erase(state.begin());                   // scale
  state.back() = {"norm.other", at::ones({})};  // for num_batches_tracked
  state[1] = {"first.weight", at::ones({4, 2})};
  state[2].second.fill_(9);  // first.bias
  const at::Tensor bias = net->first->bias.clone();

  const std::string text = error_of(*net, state);
  EXPECT_THAT(text, HasSubstr("NetImpl"));
  EXPECT_THAT(text, HasSubstr("missing: scale, norm.num_batches_tracked\n"));
  EXPECT_THAT(text, HasSubstr("unexpected: norm.other\n"));
  EXPECT_THAT(text, HasSubstr("first.weight ([4, 2] there, [3, 2] in the model)"));
  EXPECT_TRUE(net->first->bias.equal(bias));

  const std::string lenient = error_of(*net, state, /*strict=*/false);
  EXPECT_THAT(lenient, HasSubstr("first.weight"));
  EXPECT_THAT(lenient, Not(HasSubstr("missing")));
}

TEST(LoadModuleStateDict, ReportsWhatItWasToldToIgnore) {
  Tied tied;
  const IncompatibleKeys keys =
      load_module_state_dict(*tied, {{"other", at::ones({1})}}, {.strict = false});
  EXPECT_THAT(keys.missing_keys, ElementsAre("embedding", "head"));
  EXPECT_THAT(keys.unexpected_keys, ElementsAre("other"));
}

TEST(LoadModuleStateDict, TakesANameOnlyOnce) {
  Tied tied;
  const NamedTensors state = {{"embedding", at::ones({3, 2})},
                              {"module.embedding", at::zeros({3, 2})}};
  EXPECT_THAT(error_of(*tied, state), HasSubstr("unexpected: module.embedding"));
}

TEST(LoadModuleStateDict, RefusesTensorsWithoutMemory) {
  struct Hollow : torch::nn::Module {
    Hollow() { register_parameter("x", at::empty({2}, at::kMeta)); }
  } hollow;
  try {
    load_module_state_dict(hollow, {{"x", at::ones({2})}});
    ADD_FAILURE();
  } catch (const c10::ValueError& error) {
    EXPECT_THAT(error.what(), HasSubstr("x"));
  }
  EXPECT_THROW(load_module_state_dict(*Tied(), {{"embedding", at::Tensor()}}), c10::ValueError);
}

}  // namespace
}  // namespace accelerate
