#include "accelerate/modules/module_tensors.h"

#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "accelerate/modules/tied_parameters.h"
#include "accelerate/operators/default_device.h"
#include "accelerate/testing/fake_runtime.h"
#include "accelerate/testing/recorded_warnings.h"
#include "accelerate/testing/value_error.h"

namespace accelerate {
namespace {

namespace nn = torch::nn;

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using torch::Tensor;

struct HeadImpl : nn::Module {
  explicit HeadImpl(const Tensor& of) : weight(register_parameter("weight", of)) {
    mask = register_buffer("mask", torch::ones({2}));
  }
  Tensor weight, mask;
};
TORCH_MODULE(Head);

// An embedding whose weight is also the head's.
struct Model : nn::Module {
  Model()
      : tokens(register_module("tokens", nn::Embedding(5, 2))),
        norm(register_module("norm", nn::BatchNorm1d(2))),
        head(register_module("head", Head(tokens->weight))) {}
  nn::Embedding tokens;
  nn::BatchNorm1d norm;
  Head head;
};

std::vector<std::string> names_of(const NamedTensors& tensors) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) names.push_back(name);
  return names;
}

std::shared_ptr<Model> empty_model() {
  const DefaultDeviceScope scope(c10::kMeta);
  return std::make_shared<Model>();
}

void set(nn::Module& module, const std::string& name, c10::Device device,
         const SetModuleTensorOptions& options = {}) {
  set_module_tensor_to_device(module, name, device, options);
}

TEST(NamedModuleTensors, ListsParametersThenBuffers) {
  const Model model;
  EXPECT_THAT(named_module_tensors(model), IsEmpty());
  EXPECT_THAT(names_of(named_module_tensors(model, {.recurse = true})),
              ElementsAre("tokens.weight", "norm.weight", "norm.bias", "norm.running_mean",
                          "norm.running_var", "norm.num_batches_tracked", "head.mask"));
  EXPECT_THAT(names_of(named_module_tensors(
                  model, {.include_buffers = false, .recurse = true, .remove_duplicate = false})),
              ElementsAre("tokens.weight", "norm.weight", "norm.bias", "head.weight"));
  EXPECT_THAT(names_of(named_module_tensors(*model.head)), ElementsAre("weight", "mask"));
}

TEST(NonPersistentBuffers, AreThoseOfTheirRuntime) {
  Model model;
  EXPECT_THROW(non_persistent(model.head->mask), c10::Error) << "there is no Runtime";
  EXPECT_THAT(get_non_persistent_buffers(model, /*recurse=*/true), IsEmpty());
  FakeRuntime runtime, other;
  {
    const RuntimeScope scope(runtime);
    EXPECT_TRUE(non_persistent(model.head->mask).is_same(model.head->mask));
    EXPECT_THAT(get_non_persistent_buffers(model), IsEmpty());
    EXPECT_THAT(get_non_persistent_buffers(model, true), ElementsAre("mask"));
    EXPECT_THAT(get_non_persistent_buffers(model, true, true), ElementsAre("head.mask"));
    EXPECT_THAT(get_non_persistent_buffers(*model.head, false, true), ElementsAre("mask"));
    EXPECT_THAT(
        names_of(named_module_tensors(model, {.recurse = true, .remove_non_persistent = true})),
        ElementsAre("tokens.weight", "norm.weight", "norm.bias", "norm.running_mean",
                    "norm.running_var", "norm.num_batches_tracked"));
    // Marks of dead buffers do not become another's.
    for (int i = 0; i < 100; ++i) non_persistent(torch::ones({1}));
    EXPECT_THAT(get_non_persistent_buffers(model, true), ElementsAre("mask"));
  }
  const RuntimeScope scope(other);
  EXPECT_THAT(get_non_persistent_buffers(model, true), IsEmpty());
}

TEST(ModuleChildren, ComeBeforeTheirParents) {
  const nn::ModuleList inner(nn::ReLU(), nn::Linear(1, 1));
  const nn::ModuleList outer(inner, nn::Tanh());
  std::vector<std::string> names;
  for (const auto& [name, module] : get_module_children_bottom_up(*outer)) names.push_back(name);
  EXPECT_THAT(names, ElementsAre("0.0", "0.1", "0", "1", ""));
}

TEST(ExtractSubmodules, TakesNamesAndWhatIsBelow) {
  const Tensor x = torch::ones({1});
  const NamedTensors state = {{"h.1.w", x}, {"h.10.w", x}, {"h.1", x}, {"c", x}};
  EXPECT_THAT(names_of(extract_submodules_state_dict(state, {"c", "h.1", "c"})),
              ElementsAre("c", "h.1.w", "h.1"));
}

TEST(TensorStorage, IsToldApartWithoutMemory) {
  const Tensor a = torch::empty({2, 3}, torch::kMeta), b = torch::empty({2, 3}, torch::kMeta);
  EXPECT_EQ(id_tensor_storage(a), id_tensor_storage(a[0]));
  EXPECT_FALSE(id_tensor_storage(a) == id_tensor_storage(b));
  EXPECT_EQ(id_tensor_storage(a).bytes, 24u);
}

TEST(Devices, AreTheSameWithAndWithoutTheFirstIndex) {
  EXPECT_TRUE(check_device_same(c10::kCUDA, c10::Device(c10::kCUDA, 0)));
  EXPECT_FALSE(check_device_same(c10::kCUDA, c10::Device(c10::kCUDA, 1)));
  EXPECT_FALSE(check_device_same(c10::kCUDA, c10::kCPU));
  EXPECT_TRUE(check_device_same(c10::kCPU, c10::Device(c10::kCPU, 0)));
}

TEST(SetModuleTensor, GivesAnEmptyTensorAValueAndKeepsItTheSame) {
  const auto model = empty_model();
  const Tensor weight = model->tokens->weight;
  const Tensor value = torch::arange(10).view({5, 2}).to(torch::kDouble);
  set(*model, "tokens.weight", c10::kCPU, {.value = value});
  EXPECT_TRUE(model->tokens->weight.is_same(weight));
  EXPECT_TRUE(model->head->weight.is_same(weight)) << "the tie is kept";
  EXPECT_TRUE(weight.is_cpu() && weight.requires_grad() && weight.is_leaf());
  EXPECT_EQ(weight.dtype(), torch::kFloat) << "as the tensor was";
  EXPECT_TRUE(weight.equal(value.to(torch::kFloat)));
  model->tokens(torch::tensor({1, 1})).sum().backward();
  EXPECT_EQ(weight.grad().sum().item<double>(), 4);
}

TEST(SetModuleTensor, ConvertsFloatsOnly) {
  const auto model = empty_model();
  const SetModuleTensorOptions floats = {.value = torch::ones({2}), .dtype = torch::kHalf};
  set(*model, "norm.weight", c10::kCPU, floats);
  EXPECT_EQ(model->norm->weight.dtype(), torch::kHalf);
  set(*model, "norm.num_batches_tracked", c10::kCPU,
      {.value = torch::tensor(7), .dtype = torch::kHalf});
  EXPECT_EQ(model->norm->num_batches_tracked.dtype(), torch::kLong);
  EXPECT_EQ(model->norm->num_batches_tracked.item<int64_t>(), 7);
  set(*model, "norm.bias", c10::kMeta, {.dtype = torch::kBFloat16});
  EXPECT_TRUE(model->norm->bias.is_meta());
  EXPECT_EQ(model->norm->bias.dtype(), torch::kBFloat16);
  EXPECT_TRUE(model->norm->bias.requires_grad());
}

TEST(SetModuleTensor, MovesToMetaAndDropsTheGradient) {
  Model model;
  model.norm->weight.mutable_grad() = torch::ones({2});
  set(model, "norm.weight", c10::kMeta);
  EXPECT_TRUE(model.norm->weight.is_meta() && model.norm->weight.requires_grad());
  EXPECT_FALSE(model.norm->weight.grad().defined());
  set(model, "norm.running_mean", c10::kMeta);
  EXPECT_TRUE(model.norm->running_mean.is_meta());
  // Nothing to do: the same memory.
  const void* const memory = model.norm->bias.data_ptr();
  set(model, "norm.bias", c10::kCPU);
  EXPECT_EQ(model.norm->bias.data_ptr(), memory);
}

TEST(SetModuleTensor, RefusesWhatDoesNotFit) {
  const auto model = empty_model();
  const auto error = [&](const std::string& name, const SetModuleTensorOptions& options) {
    return value_error_of([&] { set(*model, name, c10::kCPU, options); });
  };
  EXPECT_THAT(error("tokens.wait", {}), HasSubstr("tokens.wait"));
  EXPECT_THAT(error("toke.weight", {}), AllOf(HasSubstr("toke"), HasSubstr("no module")));
  EXPECT_THAT(error("head", {}), HasSubstr("head"));
  EXPECT_THAT(error("tokens.weight", {}),
              AllOf(HasSubstr("tokens.weight is on the meta device"), HasSubstr("value")));
  EXPECT_THAT(error("tokens.weight", {.value = torch::ones({2, 5})}),
              AllOf(HasSubstr("[2, 5]"), HasSubstr("[5, 2]")));
  EXPECT_THAT(error("norm.bias", {.value = torch::ones({2}), .fp16_statistics = torch::ones({1})}),
              AllOf(HasSubstr("fp16_statistics: norm.bias"), HasSubstr("not kept in 8 bits")));
  EXPECT_TRUE(model->norm->bias.is_meta());
}

TEST(SetModuleTensor, SharesWhatWasMovedAlready) {
  const auto first = empty_model(), second = empty_model();
  const Tensor value = torch::rand({5, 2});
  TiedParamsMap map;
  map.add(value);
  // As if it were another device.
  const Tensor there = value.clone();
  map.moved(value, there);
  EXPECT_TRUE(map.find(value.detach(), c10::kCPU).is_alias_of(there));
  EXPECT_FALSE(map.find(value[0], c10::kCPU).defined()) << "another view of the same memory";
  EXPECT_FALSE(map.find(there, c10::kCPU).defined());
  set(*first, "tokens.weight", c10::kCPU, {.value = value, .tied_params_map = &map});
  set(*second, "head.weight", c10::kCPU, {.value = value, .tied_params_map = &map});
  EXPECT_TRUE(first->tokens->weight.is_alias_of(there));
  EXPECT_TRUE(second->tokens->weight.is_alias_of(there));
  EXPECT_TRUE(second->tokens->weight.requires_grad());
}

// As the weights of an LSTM that lie in one memory.
TEST(SetModuleTensor, TellsViewsOfOneMemoryApart) {
  const Tensor both = torch::arange(8, torch::kFloat);
  const Tensor first = both.slice(0, 0, 4), second = both.slice(0, 4, 8);
  TiedParamsMap map;
  for (const Tensor& each : {first, second}) {
    map.add(each);
    map.moved(each, each.clone());
  }
  EXPECT_TRUE(map.find(first, c10::kCPU).equal(first));
  EXPECT_TRUE(map.find(second, c10::kCPU).equal(second));
}

TEST(SetModuleTensor, EntersWhatItMoves) {
  const auto model = empty_model();
  const Tensor value = torch::rand({5, 2});
  TiedParamsMap map;
  map.add(value);
  set(*model, "tokens.weight", c10::kCPU, {.value = value, .tied_params_map = &map});
  EXPECT_TRUE(map.find(value, c10::kCPU).is_alias_of(model->tokens->weight));
}

// ---- Ties.

TEST(TiedParameters, AreFoundWithAndWithoutMemory) {
  const Model model;
  const auto empty = empty_model();
  for (const Model* each : {&model, static_cast<const Model*>(empty.get())}) {
    EXPECT_THAT(find_tied_parameters(*each),
                ElementsAre(ElementsAre("head.weight", "tokens.weight")));
  }
  EXPECT_THAT(find_tied_parameters(*model.norm), IsEmpty());
  // Two parts of one memory are not tied.
  nn::Sequential parts(nn::Linear(2, 1), nn::Linear(2, 1));
  const Tensor both = torch::ones({2, 2});
  set(*parts, "0.weight", c10::kCPU, {.value = both.slice(0, 0, 1)});
  set(*parts, "1.weight", c10::kCPU, {.value = both.slice(0, 1, 2)});
  EXPECT_THAT(find_tied_parameters(*parts), IsEmpty());
}

TEST(TiedParameters, ShareTheFirstMemoryThatThereIs) {
  nn::Sequential net(nn::Linear(2, 2), nn::Linear(2, 2), nn::Linear(2, 2));
  set(*net, "0.weight", c10::kMeta);
  const TiedParameters tied = {{"0.weight", "1.weight", "2.weight"}};
  const Tensor memory = net->named_parameters()["1.weight"].detach();
  retie_parameters(*net, tied);
  EXPECT_EQ(find_tied_parameters(*net), tied);
  for (const auto& item : net->named_parameters()) {
    if (item.key().ends_with("weight")) EXPECT_TRUE(item.value().is_alias_of(memory)) << item.key();
    EXPECT_TRUE(item.value().requires_grad());
  }
  EXPECT_THAT(value_error_of([&] { retie_parameters(*net, {{"0.weight", "3.weight"}}); }),
              HasSubstr("3.weight"));
  EXPECT_THAT(value_error_of([&] { retie_parameters(*net, {{"0.weight", "0.bias"}}); }),
              AllOf(HasSubstr("0.bias"), HasSubstr("[2, 2]")));
  // All without memory: as they were.
  const auto empty = empty_model();
  retie_parameters(*empty, find_tied_parameters(*empty));
  EXPECT_TRUE(empty->tokens->weight.is_meta());
}

TEST(TiedParameters, AreAnnouncedByAConfiguration) {
  const auto says = [](const char* json) {
    return check_tied_parameters_in_config(nlohmann::json::parse(json));
  };
  EXPECT_TRUE(says(R"({"tie_word_embeddings": true})"));
  EXPECT_TRUE(says(R"({"tie_encoder_decoder": true})"));
  EXPECT_TRUE(says(R"({"text_config": {"tie_word_embeddings": true}})"));
  EXPECT_FALSE(says(R"({"tie_word_embeddings": false})"));
  EXPECT_FALSE(says(R"({"tie_word_embeddings": "yes"})"));
  EXPECT_FALSE(says("[]"));
}

TEST(TiedParameters, AreWarnedAboutOnSeveralDevices) {
  const RecordedWarnings warnings;
  DeviceMap map;
  map.set("tokens", DevicePlacement::accelerator(0));
  map.set("head", DevicePlacement::accelerator(0));
  const TiedParameters tied = find_tied_parameters(Model());
  EXPECT_TRUE(check_tied_parameters_on_same_device(tied, map));
  EXPECT_THAT(warnings.texts(), IsEmpty());
  map.set("head", DevicePlacement::cpu());
  EXPECT_FALSE(check_tied_parameters_on_same_device(tied, map));
  EXPECT_THAT(warnings.texts(),
              ElementsAre(AllOf(HasSubstr("head.weight: cpu"), HasSubstr("tokens.weight: 0"))));
  EXPECT_THAT(value_error_of([&] { check_tied_parameters_on_same_device(tied, DeviceMap()); }),
              HasSubstr("head.weight"));
}

}  // namespace
}  // namespace accelerate
