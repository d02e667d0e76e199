#include "accelerate/hooks/model_hook.h"

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/hooks/align_devices.h"
#include "accelerate/hooks/attach_hook.h"
#include "accelerate/hooks/cpu_offload.h"
#include "accelerate/hooks/hooked.h"
#include "accelerate/hooks/layerwise_casting.h"
#include "accelerate/testing/value_error.h"
#include "accelerate/values/module_class.h"

namespace accelerate {
namespace {

namespace nn = torch::nn;

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using torch::Tensor;

struct BlockImpl : nn::Cloneable<BlockImpl> {
  BlockImpl() { reset(); }
  void reset() override { linear = register_module("linear", nn::Linear(3, 3)); }
  Tensor forward(const Tensor& x) {
    if (!torch::isfinite(x).all().item<bool>()) throw std::domain_error("forward");
    return linear(x) + x;
  }
  nn::Linear linear = nullptr;
};
TORCH_MODULE_IMPL(Block, Hooked<BlockImpl>);

// Notes what it is asked, adds a number before and multiplies by one after.
class Spy final : public ModelHook {
 public:
  explicit Spy(std::vector<std::string>& calls, std::string name = "")
      : calls_(calls), name_(std::move(name)) {}

  void init_hook(nn::Module& /*module*/) override { note("init"); }
  void pre_forward(nn::Module& /*module*/, ForwardValues& arguments) override {
    note("pre");
    arguments.for_each_tensor([this](Tensor& tensor) { tensor = tensor + add; });
  }
  void post_forward(nn::Module& /*module*/, ForwardValues& output) override {
    note("post");
    output.for_each_tensor([this](Tensor& tensor) { tensor = tensor * times; });
  }
  void forward_failed(nn::Module& /*module*/) noexcept override {
    calls_.push_back(name_ + "failed");
  }
  void detach_hook(nn::Module& /*module*/) override { note("detach"); }
  bool no_grad() const override { return without_gradients; }

  double add = 0, times = 1;
  bool without_gradients = false;
  std::string throws_in;

 private:
  void note(const std::string& what) {
    calls_.push_back(name_ + what);
    if (what == throws_in) throw std::runtime_error(what);
  }

  std::vector<std::string>& calls_;
  const std::string name_;
};

std::shared_ptr<Spy> spy(std::vector<std::string>& calls, std::string name, double add,
                         double times) {
  auto hook = std::make_shared<Spy>(calls, std::move(name));
  hook->add = add;
  hook->times = times;
  return hook;
}

Tensor plain(Block& block, const Tensor& x) { return block->BlockImpl::forward(x); }

// ---- One hook.

TEST(Hooks, ChangeArgumentsAndOutputs) {
  Block block;
  const Tensor x = torch::rand({2, 3});
  const Tensor before = x.clone();
  const Tensor expected = plain(block, x + 2) * 3;
  std::vector<std::string> calls;
  add_hook_to_module(*block, spy(calls, "", 2, 3));
  EXPECT_TRUE(block(x).equal(expected));
  EXPECT_TRUE((*block)(x).equal(expected));
  EXPECT_TRUE(block->forward(x).equal(expected));
  EXPECT_TRUE(x.equal(before));
  remove_hook_from_module(*block);
  EXPECT_EQ(find_hook(*block), nullptr);
  EXPECT_TRUE(block(x).equal(plain(block, x)));
  EXPECT_THAT(calls, ElementsAre("init", "pre", "post", "pre", "post", "pre", "post", "detach"));
}

TEST(Hooks, ReplaceOrFollowTheOneBefore) {
  Block block;
  const Tensor x = torch::rand({2, 3});
  std::vector<std::string> calls;
  add_hook_to_module(*block, spy(calls, "a.", 1, 1));
  add_hook_to_module(*block, spy(calls, "b.", 2, 1));
  EXPECT_THAT(calls, ElementsAre("a.init", "a.detach", "b.init"));
  EXPECT_TRUE(block(x).equal(plain(block, x + 2)));

  calls.clear();
  add_hook_to_module(*block, spy(calls, "c.", 0, 5), /*append=*/true);
  EXPECT_TRUE(block(x).equal(plain(block, x + 2) * 5));
  const auto both = std::dynamic_pointer_cast<SequentialHook>(find_hook(*block));
  ASSERT_NE(both, nullptr);
  EXPECT_EQ(both->hooks().size(), 2);
  remove_hook_from_module(*block);
  EXPECT_THAT(calls,
              ElementsAre("c.init", "b.pre", "c.pre", "b.post", "c.post", "b.detach", "c.detach"));
}

TEST(Hooks, MayTurnGradientsOff) {
  Block block;
  const Tensor x = torch::rand({2, 3});
  EXPECT_TRUE(block(x).requires_grad());
  std::vector<std::string> calls;
  const auto hook = spy(calls, "", 0, 1);
  hook->without_gradients = true;
  add_hook_to_module(*block, hook);
  EXPECT_FALSE(block(x).requires_grad());
  add_hook_to_module(*block, spy(calls, "", 0, 1), /*append=*/true);
  EXPECT_FALSE(block(x).requires_grad());
}

TEST(Hooks, TakePartInBackwardPasses) {
  Block block;
  std::vector<std::string> calls;
  add_hook_to_module(*block, spy(calls, "", 1, 3));
  const Tensor x = torch::rand({2, 3}, torch::requires_grad());
  block(x).sum().backward();
  const Tensor gradient = x.grad().clone();
  x.mutable_grad() = Tensor();
  (plain(block, x + 1) * 3).sum().backward();
  EXPECT_TRUE(x.grad().equal(gradient));
}

TEST(Hooks, AreRemovedFromAllModulesBelow) {
  nn::Sequential net{Block(), Block()};
  std::vector<std::string> calls;
  for (const auto& child : net->children()) add_hook_to_module(*child, spy(calls, "", 0, 1));
  const auto hooked = [&] {
    int count = 0;
    for (const auto& child : net->children()) count += find_hook(*child) != nullptr;
    return count;
  };
  EXPECT_EQ(hooked(), 2);
  remove_hook_from_module(*net);
  EXPECT_EQ(hooked(), 2);
  remove_hook_from_module(*net, /*recurse=*/true);
  EXPECT_EQ(hooked(), 0);
  for (const auto& child : net->children()) add_hook_to_module(*child, spy(calls, "", 0, 1));
  remove_hook_from_submodules(*net);
  EXPECT_EQ(hooked(), 0);
}

// ---- Errors.

TEST(HookErrors, EndThePassOfEveryHookThatHasBegun) {
  Block block;
  const Tensor x = torch::rand({2, 3});
  const Tensor bad = torch::full({2, 3}, INFINITY);
  std::vector<std::string> calls;
  const auto first = spy(calls, "a.", 0, 1), second = spy(calls, "b.", 0, 1);
  add_hook_to_module(*block, first);
  add_hook_to_module(*block, second, /*append=*/true);
  const auto calls_of = [&](const Tensor& input) {
    calls.clear();
    EXPECT_ANY_THROW(block(input));
    return calls;
  };
  EXPECT_THAT(calls_of(bad), ElementsAre("a.pre", "b.pre", "b.failed", "a.failed"));
  second->throws_in = "pre";
  EXPECT_THAT(calls_of(x), ElementsAre("a.pre", "b.pre", "a.failed"));
  second->throws_in = "";
  first->throws_in = "post";
  EXPECT_THAT(calls_of(x), ElementsAre("a.pre", "b.pre", "a.post", "b.failed"));
  first->throws_in = "";
  EXPECT_TRUE(block(x).equal(plain(block, x)));
}

// Halves the weights, then fails.
class Spoiler final : public ModelHook {
 public:
  void init_hook(nn::Module& module) override {
    for (Tensor& each : module.parameters()) each.set_data(each / 2);
    throw std::runtime_error("init");
  }
};

TEST(HookErrors, LeaveWeightsAndHooksAsTheyWere) {
  Block block;
  const Tensor x = torch::rand({2, 3});
  const Tensor weight = block->linear->weight.clone();
  EXPECT_THROW(add_hook_to_module(*block, std::make_shared<Spoiler>()), std::runtime_error);
  EXPECT_EQ(find_hook(*block), nullptr);
  EXPECT_TRUE(block->linear->weight.equal(weight));

  std::vector<std::string> calls;
  const auto hook = spy(calls, "", 0, 1);
  add_hook_to_module(*block, hook);
  EXPECT_THROW(add_hook_to_module(*block, std::make_shared<Spoiler>()), std::runtime_error);
  EXPECT_EQ(find_hook(*block), hook);
  EXPECT_THAT(calls, ElementsAre("init", "detach", "init"));
  EXPECT_THROW(add_hook_to_module(*block, std::make_shared<Spoiler>(), true), std::runtime_error);
  EXPECT_EQ(find_hook(*block), hook);
  EXPECT_TRUE(block->linear->weight.equal(weight));

  hook->throws_in = "detach";
  EXPECT_THROW(remove_hook_from_module(*block), std::runtime_error);
  EXPECT_THROW(add_hook_to_module(*block, spy(calls, "", 0, 1)), std::runtime_error);
  EXPECT_EQ(find_hook(*block), hook);
}

TEST(HookErrors, SayHowAModuleGetsHooks) {
  nn::Linear linear(2, 2);
  std::vector<std::string> calls;
  EXPECT_THAT(
      value_error_of([&] { add_hook_to_module(*linear, spy(calls, "", 0, 1)); }),
      AllOf(HasSubstr("(Linear) runs no hooks"),
            HasSubstr("accelerate::Hooked<torch::nn::LinearImpl>"), HasSubstr("HookedModel")));
  Block block;
  EXPECT_THAT(value_error_of([&] { add_hook_to_module(*block, nullptr); }),
              HasSubstr("there is no hook"));
  EXPECT_THAT(value_error_of([] { SequentialHook({nullptr}); }), HasSubstr("null"));
}

class Remover final : public ModelHook {
  void pre_forward(nn::Module& module, ForwardValues& /*arguments*/) override {
    remove_hook_from_module(module);
  }
};

TEST(HookErrors, RefuseChangesInsideOfThePass) {
  Block block;
  add_hook_to_module(*block, std::make_shared<Remover>());
  EXPECT_THAT(value_error_of([&] { block(torch::rand({1, 3})); }),
              HasSubstr("forward pass of the module is running"));
  remove_hook_from_module(*block);
  EXPECT_EQ(find_hook(*block), nullptr);
}

// ---- Kinds of forward.

struct ManyImpl : nn::Module {
  // A tree, an argument that is filled, one that is moved, and one without tensors.
  std::map<std::string, Tensor> forward(std::pair<Tensor, std::vector<Tensor>> input,
                                        std::vector<Tensor>& seen, std::unique_ptr<int> number,
                                        const std::string& name) {
    seen.push_back(input.first);
    Tensor sum = input.first * *number;
    for (const Tensor& each : input.second) sum = sum + each;
    return {{name, sum}};
  }
};
TORCH_MODULE_IMPL(Many, Hooked<ManyImpl>);

TEST(HookedModules, KeepTypesOfArguments) {
  Many module;
  std::vector<std::string> calls;
  const auto hook = spy(calls, "", 1, 10);
  add_hook_to_module(*module, hook);
  const std::pair<Tensor, std::vector<Tensor>> input = {torch::ones({1}),
                                                        {torch::ones({1}), torch::ones({1})}};
  std::vector<Tensor> seen;
  const auto output = module(input, seen, std::make_unique<int>(3), "sum");
  EXPECT_EQ(output.at("sum").item<float>(), 10 * (2 * 3 + 2 + 2));
  EXPECT_EQ(input.first.item<float>(), 1);
  // What forward fills is the caller's.
  ASSERT_EQ(seen.size(), 1);
  EXPECT_EQ(seen[0].item<float>(), 2);
  module(input, seen, std::make_unique<int>(3), "sum");
  EXPECT_EQ(seen[0].item<float>(), 3);
}

struct OverloadedImpl : nn::Module {
  Tensor forward(const Tensor& x, double scale = 2) { return x * scale; }
  void forward(std::vector<Tensor>& xs) {
    for (Tensor& x : xs) x = x * 7;
  }
};
TORCH_MODULE_IMPL(Overloaded, Hooked<OverloadedImpl>);

TEST(HookedModules, MayHaveOverloadsAndDefaultArguments) {
  Overloaded module;
  std::vector<std::string> calls;
  add_hook_to_module(*module, spy(calls, "", 1, 10));
  const Tensor x = torch::ones({1});
  EXPECT_EQ((*module)(x).item<float>(), 40);
  EXPECT_EQ(module->forward(x, 3).item<float>(), 60);
  std::vector<Tensor> xs = {torch::ones({1})};
  module->forward(xs);
  EXPECT_EQ(xs[0].item<float>(), 14);
  EXPECT_EQ(x.item<float>(), 1);
}

TEST(HookedModules, ArePartsOfSequentialAndPlainLayers) {
  nn::ModuleHolder<Hooked<nn::LinearImpl>> linear(3, 3);
  nn::Sequential net{linear, nn::ReLU(), Block()};
  const Tensor x = torch::rand({2, 3});
  const Tensor expected = net->forward(x + 1);
  std::vector<std::string> calls;
  add_hook_to_module(*linear, spy(calls, "", 1, 1));
  EXPECT_TRUE(net->forward(x).equal(expected));
  EXPECT_THAT(calls, ElementsAre("init", "pre", "post"));
  EXPECT_NE(net[0]->as<nn::Linear>(), nullptr);
}

TEST(HookedModules, HaveTheirOwnClassName) {
  EXPECT_EQ(module_class_name(*Block()), "Block");
  EXPECT_EQ(module_class_name(Hooked<nn::LinearImpl>(1, 1)), "Linear");
}

struct NetImpl : nn::Cloneable<NetImpl> {
  NetImpl() { reset(); }
  void reset() override { block = register_module("block", Block()); }
  Tensor forward(const Tensor& x) { return block(x); }
  Block block = nullptr;
};
TORCH_MODULE(Net);

TEST(HookedModules, HaveClonesWithoutHooks) {
  Net net;
  std::vector<std::string> calls;
  add_hook_to_module(*net->block, spy(calls, "", 0, 1));
  const auto clone = std::dynamic_pointer_cast<NetImpl>(net->clone());
  const auto block = std::dynamic_pointer_cast<Hooked<BlockImpl>>(net->block->clone());
  ASSERT_NE(block, nullptr);
  EXPECT_EQ(find_hook(*block), nullptr);
  EXPECT_EQ(find_hook(*clone->block), nullptr);
  EXPECT_NE(find_hook(*net->block), nullptr);
  const Tensor x = torch::rand({2, 3});
  EXPECT_TRUE((*block)(x).equal(net(x)));
  EXPECT_TRUE(clone->forward(x).equal(net(x)));
  EXPECT_FALSE(block->linear->weight.is_alias_of(net->block->linear->weight));
}

// ---- Options of hooks that bring tensors.

struct NormedImpl : nn::Module {
  NormedImpl() {
    linear = register_module("linear", nn::Linear(3, 3));
    running = register_buffer("running", torch::ones({3}));
  }
  Tensor forward(const Tensor& x) { return linear(x) + running; }
  nn::Linear linear = nullptr;
  Tensor running;
};
TORCH_MODULE_IMPL(Normed, Hooked<NormedImpl>);

// Each way in by each option: what is at rest between passes, and what passes give.
TEST(AlignHooks, HaveTheirOptionsHoweverTheyAreAttached) {
  struct Way {
    const char* name;
    std::function<void(Normed&, bool offload, bool buffers)> attach;
  };
  using Blocks = AttachAlignDeviceOnBlocksOptions;
  const std::optional<c10::Device> cpu = c10::Device(c10::kCPU);
  const std::map<std::string, bool> all = {{"", true}}, none = {{"", false}};
  const std::map<std::string, std::optional<c10::Device>> devices = {{"", cpu}};
  for (const Way& way : {
           Way{"the module",
               [&](Normed& model, bool offload, bool buffers) {
                 attach_align_device_hook(
                     *model,
                     {.execution_device = cpu, .offload = offload, .offload_buffers = buffers});
               }},
           Way{"one block",
               [&](Normed& model, bool offload, bool buffers) {
                 attach_align_device_hook_on_blocks(*model, Blocks{.execution_device = cpu,
                                                                   .offload = offload,
                                                                   .offload_buffers = buffers});
               }},
           Way{"blocks by their devices",
               [&](Normed& model, bool offload, bool buffers) {
                 attach_align_device_hook_on_blocks(*model, Blocks{.execution_device = devices,
                                                                   .offload = offload,
                                                                   .offload_buffers = buffers});
               }},
           Way{"blocks by what is offloaded",
               [&](Normed& model, bool offload, bool buffers) {
                 attach_align_device_hook_on_blocks(*model, Blocks{.execution_device = cpu,
                                                                   .offload = offload ? all : none,
                                                                   .offload_buffers = buffers});
               }},
       }) {
    for (const bool offload : {false, true}) {
      for (const bool buffers : {false, true}) {
        Normed model;
        const Tensor x = torch::rand({2, 3});
        const torch::NoGradGuard no_grad;
        const Tensor expected = model->NormedImpl::forward(x);
        way.attach(model, offload, buffers);
        for (int pass = 0; pass < 2; ++pass) {
          EXPECT_EQ(model->linear->weight.is_meta(), offload) << way.name;
          EXPECT_EQ(model->running.is_meta(), offload && buffers) << way.name;
          EXPECT_TRUE(model(x).equal(expected)) << way.name;
        }
      }
    }
  }
}

// ---- Handles.

TEST(HookedModels, RunHooksOfAnyModule) {
  nn::Linear linear(3, 3);
  const HookedModel model(linear);
  const Tensor x = torch::rand({2, 3});
  std::vector<std::string> calls;
  add_hook_to_module(model, spy(calls, "", 1, 2));
  const HookedModel<nn::LinearImpl> copy = model;
  EXPECT_TRUE(copy(x).equal(linear(x + 1) * 2));
  EXPECT_TRUE(model.forward(x).equal(linear(x + 1) * 2));
  EXPECT_EQ(model->weight.data_ptr(), linear->weight.data_ptr());
  remove_hook_from_submodules(copy);
  EXPECT_EQ(find_hook(model), nullptr);
  EXPECT_TRUE(model(x).equal(linear(x)));
  EXPECT_THAT(value_error_of([] { HookedModel<nn::LinearImpl>(nullptr); }),
              HasSubstr("there is no module"));
}

TEST(HookedModels, ShareTheHookOfAHookedModule) {
  Block block;
  const HookedModel model(block);
  std::vector<std::string> calls;
  add_hook_to_module(model, spy(calls, "", 1, 2));
  const Tensor x = torch::rand({2, 3});
  EXPECT_TRUE(model(x).equal(plain(block, x + 1) * 2));
  EXPECT_TRUE(block(x).equal(plain(block, x + 1) * 2));
  EXPECT_THAT(calls, ElementsAre("init", "pre", "post", "pre", "post"));
}

}  // namespace
}  // namespace accelerate
