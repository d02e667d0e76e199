// Models on one and two simulated devices through hooks: the same bits as without, and no more
// memory than stated. One shape of the cluster each: the bytes are worked out for its devices.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "absl/strings/str_cat.h"
#include "accelerate/accelerate.h"
#include "accelerate/big_model/infer_device_map.h"
#include "accelerate/big_model/offload.h"
#include "accelerate/hooks/align_devices.h"
#include "accelerate/hooks/cpu_offload.h"
#include "accelerate/hooks/hooked.h"
#include "accelerate/hooks/layerwise_casting.h"
#include "accelerate/hooks/model_hook.h"
#include "accelerate/modules/module_state_dict.h"
#include "accelerate/modules/module_tensors.h"
#include "accelerate/testing/value_error.h"
#include "integration_tests/hooks/models.h"
#include "simulator/cluster/cluster.h"
#include "simulator/device/sim_device.h"
#include "simulator/disk/sim_disk.h"

namespace accelerate {
namespace {

namespace nn = torch::nn;

using simulator::Cluster;
using simulator::DeviceMemory;
using simulator::Rank;
using simulator::SimDisk;
using simulator::torch_device;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Pair;
using torch::Tensor;

int64_t bytes_of(const nn::Module& module, const std::string& prefix = "") {
  int64_t bytes = 0;
  for (const auto& [name, tensor] : named_module_tensors(module, {.recurse = true})) {
    if (name.starts_with(prefix)) bytes += static_cast<int64_t>(tensor.nbytes());
  }
  return bytes;
}

// All tensors by name, on the host.
std::map<std::string, Tensor> values_of(const nn::Module& module) {
  std::map<std::string, Tensor> values;
  for (const auto& [name, tensor] : named_module_tensors(module, {.recurse = true})) {
    values[name] = tensor.detach().cpu().clone();
  }
  return values;
}

void expect_values(const nn::Module& module, const std::map<std::string, Tensor>& expected) {
  for (const auto& [name, value] : values_of(module)) {
    EXPECT_TRUE(value.equal(expected.at(name))) << name;
  }
}

std::map<std::string, std::optional<c10::Device>> two_devices() {
  return {{"tokens", torch_device(0)},   {"blocks.0", torch_device(0)},
          {"blocks.1", torch_device(1)}, {"blocks.2", torch_device(1)},
          {"head", torch_device(1)},     {"scale", torch_device(0)}};
}

// ---- Placement.

TEST(HooksOnTwoDevices, GiveTheBitsOfThePlainModel) {
  Cluster cluster("1x1:h100,devices=2");
  cluster.run_on_every_rank([](Rank& rank) {
    const auto plain = seeded<PlainGpt>();
    const auto gpt = seeded<HookedGpt>();
    attach_align_device_hook_on_blocks(*gpt, {.execution_device = two_devices()});
    EXPECT_EQ(gpt->block(0).qkv->weight.device(), torch_device(0));
    EXPECT_EQ(gpt->block(2).qkv->weight.device(), torch_device(1));
    EXPECT_GT(rank.devices()[0]->memory().in_use(), 0);
    EXPECT_GT(rank.devices()[1]->memory().in_use(), 0);
    const torch::NoGradGuard no_grad;
    const Tensor output = gpt->forward(some_ids());
    EXPECT_TRUE(output.is_cpu());
    EXPECT_TRUE(output.equal(plain->forward(some_ids())));
    const Tensor prompt = some_ids().narrow(1, 0, 4);
    EXPECT_TRUE(generate(*gpt, prompt).equal(generate(*plain, prompt)));
    // Tied weights stay one tensor.
    EXPECT_TRUE(gpt->tokens->weight.is_same(gpt->head->weight));
    expect_values(*gpt, values_of(*plain));
  });
}

TEST(HooksOnTwoDevices, TrainAsThePlainModel) {
  Cluster cluster("1x1:h100,devices=2");
  cluster.run_on_every_rank([](Rank&) {
    const auto plain = seeded<PlainGpt>(/*tied=*/false);
    const auto gpt = seeded<HookedGpt>(/*tied=*/false);
    attach_align_device_hook_on_blocks(*gpt, {.execution_device = two_devices()});
    for (int step = 0; step < 3; ++step) {
      const auto train = [](auto& model) {
        torch::optim::SGD sgd(model.parameters(), 0.1);
        model.zero_grad();
        Tensor loss = model.forward(some_ids()).log_softmax(-1).select(2, 3).mean();
        loss.backward();
        sgd.step();
        return loss.item<float>();
      };
      EXPECT_EQ(train(*gpt), train(*plain));
    }
    expect_values(*gpt, values_of(*plain));
    const auto gradients = plain->named_parameters();
    for (const auto& item : gpt->named_parameters()) {
      EXPECT_TRUE(item.value().grad().cpu().equal(gradients[item.key()].grad())) << item.key();
    }
  });
}

TEST(HooksOnTwoDevices, RefuseABackwardPassOverATiedCopy) {
  Cluster cluster("1x1:h100,devices=2");
  cluster.run_on_every_rank([](Rank&) {
    const auto gpt = seeded<HookedGpt>();
    attach_align_device_hook_on_blocks(*gpt, {.execution_device = two_devices()});
    const Tensor loss = gpt->forward(some_ids()).sum();
    EXPECT_THROW(loss.backward(), c10::Error);
  });
}

TEST(HooksOnTwoDevices, MayKeepACopyOfATiedWeight) {
  Cluster cluster("1x1:h100,devices=2");
  cluster.run_on_every_rank([](Rank& rank) {
    const auto plain = seeded<PlainGpt>();
    const int64_t weight = plain->tokens->weight.nbytes();
    DeviceMemory& memory = rank.devices()[0]->memory();
    const torch::NoGradGuard no_grad;
    const Tensor expected = plain->forward(some_ids());
    for (const bool keeps : {false, true}) {
      const auto gpt = seeded<HookedGpt>();
      const auto tied = keeps ? std::make_shared<TiedParamsMap>() : nullptr;
      attach_align_device_hook_on_blocks(
          *gpt, {.execution_device = two_devices(), .tied_params_map = tied});
      // The head has it, on the other device.
      EXPECT_EQ(gpt->tokens->weight.device(), torch_device(1));
      if (keeps) tied->add(gpt->tokens->weight);
      const int64_t at_rest = memory.in_use();
      for (int i = 0; i < 2; ++i) {
        EXPECT_TRUE(gpt->forward(some_ids()).equal(expected));
        EXPECT_EQ(memory.in_use(), at_rest + (keeps ? weight : 0));
      }
    }
  });
}

struct TwiceImpl : nn::Module {
  explicit TwiceImpl(const nn::ModuleHolder<Hooked<nn::LinearImpl>>& layer)
      : first(register_module("first", layer)), second(register_module("second", layer)) {}
  Tensor forward(const Tensor& x) { return second(torch::relu(first(x))); }
  nn::ModuleHolder<Hooked<nn::LinearImpl>> first, second;
};

TEST(HooksOnTwoDevices, AreAttachedOnceToAModuleUnderTwoNames) {
  Cluster cluster("1x1:h100");
  cluster.run_on_every_rank([](Rank& rank) {
    const nn::ModuleHolder<Hooked<nn::LinearImpl>> layer(4, 4);
    const auto net = std::make_shared<TwiceImpl>(layer);
    const torch::NoGradGuard no_grad;
    const Tensor x = torch::rand({2, 4});
    const Tensor expected = net->forward(x);
    attach_align_device_hook(*net, {.execution_device = rank.runtime().device(), .offload = true});
    EXPECT_NE(dynamic_cast<AlignDevicesHook*>(find_hook(*layer.ptr()).get()), nullptr);
    EXPECT_TRUE(net->forward(x).cpu().equal(expected));
    remove_hook_from_submodules(*net);
    EXPECT_TRUE(net->forward(x).equal(expected));
  });
}

TEST(HooksOnTwoDevices, PlaceWhatHasNoHookYet) {
  Cluster cluster("1x1:h100,devices=2");
  cluster.run_on_every_rank([](Rank&) {
    const auto plain = seeded<PlainGpt>();
    const auto gpt = seeded<HookedGpt>();
    add_hook_to_module(gpt->block(1), std::make_shared<AlignDevicesHook>(AlignDevicesHookOptions{
                                          .execution_device = torch_device(1)}));
    attach_execution_device_hook(*gpt, torch_device(0));
    EXPECT_EQ(gpt->block(0).up->weight.device(), torch_device(0));
    EXPECT_EQ(gpt->block(1).up->weight.device(), torch_device(1));
    const torch::NoGradGuard no_grad;
    EXPECT_TRUE(gpt->forward(some_ids()).cpu().equal(plain->forward(some_ids())));
    EXPECT_THAT(value_error_of([&] { attach_execution_device_hook(*plain, torch_device(0)); }),
                HasSubstr("no hook would bring it"));
  });
}

TEST(HooksOnTwoDevices, ServePlainLayersOfAHookedModule) {
  Cluster cluster("1x1:h100,devices=2");
  cluster.run_on_every_rank([](Rank&) {
    const auto plain = seeded<ConvImpl>();
    const Conv hooked(seeded<Hooked<ConvImpl>>());
    const HookedModel handle(seeded<ConvImpl>());
    attach_align_device_hook_on_blocks(*hooked.ptr(), {.execution_device = torch_device(1)});
    attach_align_device_hook_on_blocks(handle, {.execution_device = torch_device(1)});
    const Tensor images = torch::rand({2, 3, 8, 8});
    for (int step = 0; step < 2; ++step) {
      const Tensor expected = plain->forward(images);
      expected.sum().backward();
      for (Tensor output : {hooked.ptr()->forward(images), handle(images)}) {
        EXPECT_TRUE(output.is_cpu());
        EXPECT_TRUE(output.equal(expected));
        output.sum().backward();
      }
    }
    EXPECT_EQ(handle->norm->running_mean.device(), torch_device(1));
    expect_values(*hooked.ptr(), values_of(*plain));
    expect_values(*handle, values_of(*plain));
  });
}

// ---- Offload.

struct OffloadCase {
  std::string name;
  std::string weights;  // "", "map", "folder"
  bool offload_buffers = false;
};

class Offload : public testing::TestWithParam<OffloadCase> {};

TEST_P(Offload, HasOneBlockOnTheDevice) {
  const OffloadCase& way = GetParam();
  const auto disk = std::make_shared<SimDisk>();
  Cluster cluster("1x1:h100", {.disk = disk});
  cluster.run_on_every_rank([&](Rank& rank) {
    FileSystem& files = rank.runtime().files();
    const auto plain = seeded<PlainGpt>();
    const auto gpt = seeded<HookedGpt>();
    DeviceMemory& memory = rank.device()->memory();
    std::shared_ptr<const WeightsMap> weights;
    const NamedTensors state =
        named_module_tensors(*gpt, {.recurse = true, .remove_duplicate = false});
    if (way.weights == "folder") {
      offload_state_dict(files, "/sim/offload", state);
      weights = std::make_shared<OffloadedWeightsLoader>(
          files, OffloadedWeightsLoaderOptions{.save_folder = "/sim/offload"});
    } else if (way.weights == "map") {
      NamedTensors host;
      for (const auto& [name, tensor] : state) host.emplace_back(name, tensor.detach().clone());
      weights = std::make_shared<OffloadedWeightsLoader>(
          files, OffloadedWeightsLoaderOptions{.state_dict = host});
    }
    attach_align_device_hook(*gpt, {.execution_device = rank.runtime().device(),
                                    .offload = true,
                                    .weights_map = weights,
                                    .offload_buffers = way.offload_buffers});
    for (const Tensor& each : gpt->parameters()) EXPECT_TRUE(each.is_meta());
    const int64_t at_rest = memory.in_use();
    EXPECT_LE(at_rest, way.offload_buffers ? 0 : 512);
    const torch::NoGradGuard no_grad;
    EXPECT_TRUE(gpt->forward(some_ids()).cpu().equal(plain->forward(some_ids())));
    EXPECT_EQ(memory.in_use(), at_rest);
    const int64_t block = bytes_of(gpt->block(0));
    // The widest layer's input and output, and what attention has.
    const int64_t activations = 2 * kLength * kWidth * 4 * 16;
    EXPECT_LE(memory.peak(), block + activations);
    EXPECT_LT(memory.peak(), 2 * block);
    const Tensor prompt = some_ids().narrow(1, 0, 4);
    EXPECT_TRUE(generate(*gpt, prompt).cpu().equal(generate(*plain, prompt)));

    remove_hook_from_submodules(*gpt);
    for (const Tensor& each : gpt->parameters()) EXPECT_TRUE(each.is_cpu());
    expect_values(*gpt, values_of(*plain));
  });
}

INSTANTIATE_TEST_SUITE_P(Ways, Offload,
                         testing::Values(OffloadCase{"ToTheHost", ""},
                                         OffloadCase{"ToTheHostWithBuffers", "", true},
                                         OffloadCase{"ToAMap", "map"},
                                         OffloadCase{"ToAFolder", "folder", true}),
                         [](const auto& info) { return info.param.name; });

// Uses its layers' weights without calling them.
struct FusedImpl : nn::Module {
  FusedImpl()
      : first(register_module("first", nn::ModuleHolder<Hooked<nn::LinearImpl>>(4, 4))),
        second(register_module("second", nn::ModuleHolder<Hooked<nn::LinearImpl>>(4, 4))) {}
  Tensor forward(const Tensor& x) { return torch::matmul(x, first->weight + second->weight); }
  nn::ModuleHolder<Hooked<nn::LinearImpl>> first, second;
};
TORCH_MODULE_IMPL(Fused, Hooked<FusedImpl>);

TEST(OffloadHooks, BringWholeModulesOfPreloadClasses) {
  Cluster cluster("1x1:h100");
  cluster.run_on_every_rank([](Rank& rank) {
    Fused fused;
    const torch::NoGradGuard no_grad;
    const Tensor x = torch::rand({2, 4});
    const Tensor expected = fused(x);
    const c10::Device device = rank.runtime().device();
    attach_align_device_hook(*fused, {.execution_device = device, .offload = true});
    EXPECT_ANY_THROW(fused(x).cpu());
    remove_hook_from_submodules(*fused);
    attach_align_device_hook(
        *fused, {.execution_device = device, .offload = true, .preload_module_classes = {"Fused"}});
    EXPECT_TRUE(fused(x).cpu().equal(expected));
    EXPECT_EQ(find_hook(*fused->first), nullptr);
    EXPECT_EQ(rank.device()->memory().in_use(), 0);
  });
}

// An LSTM keeps its weights in a list of its own, and has default arguments and nested outputs.
TEST(OffloadHooks, ServeAnLstm) {
  Cluster cluster("1x1:h100");
  cluster.run_on_every_rank([](Rank& rank) {
    torch::manual_seed(2);
    nn::ModuleHolder<Hooked<nn::LSTMImpl>> lstm(nn::LSTMOptions(8, 8).num_layers(2));
    const Tensor x = torch::rand({5, 2, 8});
    const c10::InferenceMode mode;
    const auto [y, state] = lstm->forward(x);
    add_hook_to_module(
        *lstm,
        std::make_shared<AlignDevicesHook>(AlignDevicesHookOptions{
            .execution_device = rank.runtime().device(), .offload = true, .io_same_device = true}));
    for (int i = 0; i < 2; ++i) {
      const auto [output, output_state] = lstm->forward(x);
      EXPECT_TRUE(output.equal(y));
      EXPECT_TRUE(std::get<0>(output_state).equal(std::get<0>(state)));
      EXPECT_EQ(rank.device()->memory().in_use(), 0);
      const auto next = lstm->forward(x, output_state);
      EXPECT_TRUE(std::get<0>(next).is_cpu());
    }
  });
}

TEST(HookedModels, AreWhatRanksPrepare) {
  Cluster cluster("1x2:h100");
  cluster.run_on_every_rank([](Rank& rank) {
    Accelerator accelerator;
    auto block = seeded<Hooked<BlockImpl>>();
    add_hook_to_module(*block, std::make_shared<AlignDevicesHook>(AlignDevicesHookOptions{
                                   .execution_device = accelerator.device()}));
    torch::optim::SGD sgd(block->parameters(), 0.1);
    const auto plain = seeded<BlockImpl>();
    auto [model, optimizer] = accelerator.prepare(block, sgd);
    const Tensor x = torch::rand({1, 4, kWidth}), mask = torch::zeros({4, 4});
    // The arguments are in host memory.
    const Tensor y = model(x, mask);
    EXPECT_TRUE(y.cpu().equal(plain->forward(x, mask)));
    accelerator.backward(y.sum());
    optimizer.step();
    rank.report("weight", block->qkv->weight);
  });
  const std::vector<Tensor> weights = cluster.reports("weight");
  EXPECT_TRUE(weights.at(0).equal(weights.at(1)));
}

TEST(OffloadHooks, KeepWhatTrainingChangesInBuffers) {
  Cluster cluster("1x1:h100");
  cluster.run_on_every_rank([](Rank& rank) {
    const auto plain = seeded<ConvImpl>();
    const Conv hooked(seeded<Hooked<ConvImpl>>());
    attach_align_device_hook(
        *hooked.ptr(),
        {.execution_device = rank.runtime().device(), .offload = true, .offload_buffers = true});
    const torch::NoGradGuard no_grad;
    const Tensor images = torch::rand({2, 3, 8, 8});
    for (int i = 0; i < 2; ++i) {
      EXPECT_TRUE(hooked.ptr()->forward(images).cpu().equal(plain->forward(images)));
      EXPECT_EQ(rank.device()->memory().in_use(), 0);
    }
    remove_hook_from_module(*hooked.ptr());
    expect_values(*hooked.ptr(), values_of(*plain));
  });
}

TEST(OffloadHooks, LeaveNothingOnTheDeviceWhenTheyAreRemoved) {
  Cluster cluster("1x1:h100");
  cluster.run_on_every_rank([](Rank& rank) {
    const auto plain = seeded<ConvImpl>();
    const Conv hooked(seeded<Hooked<ConvImpl>>());
    attach_align_device_hook(*hooked.ptr(),
                             {.execution_device = rank.runtime().device(), .offload = true});
    ASSERT_GT(rank.device()->memory().in_use(), 0) << "its buffers stay on the device";
    const torch::NoGradGuard no_grad;
    const Tensor images = torch::rand({2, 3, 8, 8});
    // Training changes buffers.
    EXPECT_TRUE(hooked.ptr()->forward(images).cpu().equal(plain->forward(images)));
    remove_hook_from_module(*hooked.ptr());
    for (const auto& [name, tensor] : named_module_tensors(*hooked.ptr(), {.recurse = true})) {
      EXPECT_TRUE(tensor.is_cpu()) << name;
    }
    EXPECT_EQ(rank.device()->memory().in_use(), 0);
    expect_values(*hooked.ptr(), values_of(*plain));
    EXPECT_TRUE(hooked.ptr()->forward(images).equal(plain->forward(images)));
  });
}

TEST(OffloadHooks, LeaveBuffersWhereTheProgramHasMovedThem) {
  Cluster cluster("1x1:h100,devices=2");
  cluster.run_on_every_rank([](Rank&) {
    const Conv hooked(seeded<Hooked<ConvImpl>>());
    attach_align_device_hook(*hooked.ptr(), {.execution_device = torch_device(0), .offload = true});
    const auto buffers = hooked.ptr()->named_buffers();
    ASSERT_GT(buffers.size(), 1U);
    set_module_tensor_to_device(*hooked.ptr(), buffers.begin()->key(), torch_device(1));
    remove_hook_from_module(*hooked.ptr());
    for (const auto& each : hooked.ptr()->named_buffers()) {
      const bool is_first = each.key() == buffers.begin()->key();
      EXPECT_EQ(each.value().device(), is_first ? torch_device(1) : c10::Device(c10::kCPU));
    }
  });
}

TEST(OffloadHooks, RefuseABackwardPass) {
  Cluster cluster("1x1:h100");
  cluster.run_on_every_rank([](Rank& rank) {
    const auto gpt = seeded<HookedGpt>();
    attach_align_device_hook(*gpt, {.execution_device = rank.runtime().device(), .offload = true});
    const Tensor loss = gpt->forward(some_ids()).sum();
    try {
      loss.backward();
      ADD_FAILURE();
    } catch (const c10::Error& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("(Linear)"), HasSubstr("offload took off")));
    }
  });
}

// ---- Errors.

TEST(HookErrorsOnDevices, LeaveWeightsWhereTheyWere) {
  Cluster cluster("1x1:h100,mem=400KiB,efficiency=ideal");
  cluster.run_on_every_rank([](Rank& rank) {
    const auto plain = seeded<PlainGpt>();
    const auto gpt = seeded<HookedGpt>();
    const auto values = values_of(*gpt);
    DeviceMemory& memory = rank.device()->memory();
    const c10::Device device = rank.runtime().device();
    // Blocks fit, but not all.
    EXPECT_THROW(attach_align_device_hook(*gpt, {.execution_device = device}),
                 c10::OutOfMemoryError);
    EXPECT_EQ(memory.in_use(), 0);
    EXPECT_EQ(find_hook(gpt->block(0)), nullptr);
    expect_values(*gpt, values);
    EXPECT_TRUE(gpt->forward(some_ids()).equal(plain->forward(some_ids())));

    attach_align_device_hook(*gpt, {.execution_device = device, .offload = true});
    const torch::NoGradGuard no_grad;
    const int64_t at_rest = memory.in_use();
    {
      // No room for a block's weights.
      const Tensor hog = torch::empty({300 * 1024}, at::TensorOptions(device).dtype(at::kByte));
      EXPECT_THROW(gpt->forward(some_ids()), c10::OutOfMemoryError);
    }
    EXPECT_EQ(memory.in_use(), at_rest);
    // A forward that throws.
    EXPECT_ANY_THROW(gpt->forward(some_ids() + kVocabulary));
    EXPECT_EQ(memory.in_use(), at_rest);
    for (const Tensor& each : gpt->parameters()) EXPECT_TRUE(each.is_meta());
    EXPECT_TRUE(gpt->forward(some_ids()).cpu().equal(plain->forward(some_ids())));
    remove_hook_from_submodules(*gpt);
    expect_values(*gpt, values);
  });
}

TEST(HookErrorsOnDevices, NameWhatIsWrong) {
  Cluster cluster("1x1:h100,devices=2");
  cluster.run_on_every_rank([](Rank& rank) {
    const auto plain = seeded<PlainGpt>();
    const auto gpt = seeded<HookedGpt>();
    const c10::Device device = rank.runtime().device();
    EXPECT_THAT(value_error_of([&] {
                  attach_align_device_hook(*plain, {.execution_device = device, .offload = true});
                }),
                AllOf(HasSubstr("\"scale\": no hook would bring it"), HasSubstr("HookedModel"),
                      HasSubstr("dispatch_model")));
    EXPECT_THAT(value_error_of([&] {
                  attach_align_device_hook_on_blocks(
                      *gpt, {.execution_device = std::map<std::string, std::optional<c10::Device>>{
                                 {"blocks.0.qkv", device}}});
                }),
                HasSubstr("\"blocks.0.qkv\" (Linear) runs no hooks"));
    EXPECT_EQ(find_hook(*gpt), nullptr);
    EXPECT_THAT(value_error_of([&] { attach_align_device_hook(*gpt, {.offload = true}); }),
                HasSubstr("offload needs an execution_device"));
    const auto weights = std::make_shared<OffloadedWeightsLoader>(
        rank.runtime().files(),
        OffloadedWeightsLoaderOptions{.state_dict = {{"tokens.weight", gpt->tokens->weight}}});
    EXPECT_THAT(value_error_of([&] {
                  attach_align_device_hook(
                      *gpt, {.execution_device = device, .offload = true, .weights_map = weights});
                }),
                HasSubstr("the weights_map has no"));
    attach_layerwise_casting_hooks(gpt->block(1), at::kHalf, at::kFloat);
    const auto all_weights = std::make_shared<OffloadedWeightsLoader>(
        rank.runtime().files(),
        OffloadedWeightsLoaderOptions{.state_dict = module_state_dict(*gpt)});
    EXPECT_THAT(value_error_of([&] {
                  attach_align_device_hook(
                      *gpt,
                      {.execution_device = device, .offload = true, .weights_map = all_weights});
                }),
                AllOf(HasSubstr("\"qkv.weight\""), HasSubstr("layerwise casting")));
    EXPECT_FALSE(gpt->tokens->weight.is_meta());
    const auto hook = std::make_shared<AlignDevicesHook>();
    add_hook_to_module(gpt->block(0), hook);
    EXPECT_THAT(value_error_of([&] { add_hook_to_module(gpt->block(2), hook); }),
                HasSubstr("serves another module"));
  });
}

TEST(SkipKeys, LeaveEntriesWhereTheyAre) {
  struct EchoImpl : nn::Module {
    using Values = std::map<std::string, Tensor>;
    EchoImpl() { register_parameter("w", torch::ones({1})); }
    Values forward(Values values) { return values; }
  };
  Cluster cluster("1x1:h100,devices=2");
  cluster.run_on_every_rank([](Rank&) {
    const HookedModel model(std::make_shared<EchoImpl>());
    add_hook_to_module(model, std::make_shared<AlignDevicesHook>(AlignDevicesHookOptions{
                                  .execution_device = torch_device(1), .skip_keys = {"cache"}}));
    const auto output =
        model(EchoImpl::Values{{"cache", torch::ones({1})}, {"x", torch::ones({1})}});
    EXPECT_TRUE(output.at("cache").is_cpu());
    EXPECT_EQ(output.at("x").device(), torch_device(1));
  });
}

// ---- Pipelines of models.

struct StageImpl : nn::Module {
  StageImpl() {
    for (int i = 0; i < 4; ++i) layers->push_back(nn::Linear(128, 128));
    register_module("layers", layers);
  }
  Tensor forward(Tensor x) { return layers->forward(torch::relu(x)); }
  nn::Sequential layers;
};
TORCH_MODULE(Stage);

TEST(CpuOffloadHooks, LetModelsTakeTurnsOnADevice) {
  // Room for one stage and a half.
  Cluster cluster("1x1:h100,mem=400KiB,efficiency=ideal");
  cluster.run_on_every_rank([](Rank& rank) {
    const c10::Device device = rank.runtime().device();
    DeviceMemory& memory = rank.device()->memory();
    torch::manual_seed(3);
    Stage plain[2];
    const torch::NoGradGuard no_grad;
    const Tensor x = torch::rand({4, 128});
    Tensor expected = plain[0](x);
    for (int i = 0; i < 3; ++i) expected = plain[1](expected);

    auto [encoder, encoder_hook] = cpu_offload_with_hook(plain[0]);
    auto [denoiser, denoiser_hook] = cpu_offload_with_hook(plain[1], device, encoder_hook);
    EXPECT_EQ(memory.in_use(), 0);
    const int64_t stage = bytes_of(*plain[0]);
    for (int round = 0; round < 2; ++round) {
      Tensor y = encoder(x);
      EXPECT_EQ(plain[0]->layers[0]->parameters()[0].device(), device);
      for (int i = 0; i < 3; ++i) {
        y = denoiser(y);
        EXPECT_TRUE(plain[0]->layers[0]->parameters()[0].is_cpu());
        EXPECT_EQ(plain[1]->layers[0]->parameters()[0].device(), device);
      }
      EXPECT_TRUE(y.cpu().equal(expected));
      denoiser_hook.offload();
      EXPECT_TRUE(plain[1]->layers[0]->parameters()[0].is_cpu());
      EXPECT_LE(memory.in_use(), 4 * 128 * 4);  // y
    }
    std::cout << "two stages of " << stage << " bytes in turn: peak " << memory.peak() << "\n";
    EXPECT_GE(memory.peak(), stage);
    EXPECT_LE(memory.peak(), stage + 8 * 4 * 128 * 4);

    // Without the hook before, both would be there.
    denoiser_hook.remove();
    EXPECT_EQ(find_hook(denoiser), nullptr);
    encoder(x);
    auto [other, other_hook] = cpu_offload_with_hook(plain[1], device);
    EXPECT_THROW(other(x), c10::OutOfMemoryError);
    // It is on one device, and works when there is room.
    for (const Tensor& each : plain[1]->parameters()) EXPECT_TRUE(each.is_cpu());
    encoder_hook.offload();
    const Tensor y = other(x).cpu();
    other_hook.offload();
    EXPECT_TRUE(y.equal(plain[1](x)));
  });
}

TEST(CpuOffloadHooks, MoveNarrowWeights) {
  Cluster cluster("1x1:h100");
  cluster.run_on_every_rank([](Rank& rank) {
    Stage stage;
    attach_layerwise_casting_hooks(*stage, at::kHalf, at::kFloat);
    const torch::NoGradGuard no_grad;
    const Tensor x = torch::rand({4, 128});
    const Tensor expected = stage(x);
    const int64_t narrow = 4 * (128 * 128 * 2 + 512);  // a bias takes a block of 512 bytes
    {
      const auto [model, hook] = cpu_offload_with_hook(stage);
      EXPECT_TRUE(model(x).cpu().equal(expected));
      EXPECT_EQ(rank.device()->memory().in_use(), narrow);
      hook.offload();
      EXPECT_EQ(rank.device()->memory().in_use(), 0);
      EXPECT_TRUE(stage(x).equal(expected));
    }
  });
}

}  // namespace
}  // namespace accelerate
