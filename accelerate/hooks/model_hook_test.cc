#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/hooks/align_devices.h"
#include "accelerate/hooks/cpu_offload.h"
#include "accelerate/hooks/hooked.h"
#include "accelerate/hooks/layerwise_casting.h"
#include "accelerate/hooks/model_hook.h"
#include "accelerate/testing/fake_runtime.h"
#include "accelerate/testing/value_error.h"
#include "accelerate/values/module_class.h"

namespace accelerate {
namespace {

namespace nn = torch::nn;

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using torch::Tensor;

struct BlockImpl : nn::Module {
  BlockImpl() : linear(register_module("linear", nn::Linear(3, 3))) {}
  Tensor forward(const Tensor& x) { return linear(x) + x; }
  nn::Linear linear;
};
TORCH_MODULE_IMPL(Block, Hooked<BlockImpl>);

// Says what it was asked, and adds a number before and multiplies by one after.
class Spy : public ModelHook {
 public:
  explicit Spy(std::vector<std::string>& calls, std::string name = "")
      : calls_(calls), name_(std::move(name)) {}

  void init_hook(nn::Module&) override { note("init"); }
  void pre_forward(nn::Module&, ForwardValues& arguments) override {
    note("pre");
    arguments.for_each_tensor([this](Tensor& tensor) { tensor = tensor + add; });
  }
  void post_forward(nn::Module&, ForwardValues& output) override {
    note("post");
    output.for_each_tensor([this](Tensor& tensor) { tensor = tensor * times; });
  }
  void forward_failed(nn::Module&) noexcept override { note("failed"); }
  void detach_hook(nn::Module&) override { note("detach"); }

  double add = 0, times = 1;
  std::string throws_in;

 private:
  void note(const std::string& what) {
    calls_.push_back(name_ + what);
    if (what == throws_in) throw std::runtime_error(what);
  }

  std::vector<std::string>& calls_;
  const std::string name_;
};

TEST(Hooks, ChangeArgumentsAndOutputs) {
  Block block;
  const Tensor x = torch::rand({2, 3});
  const Tensor expected = (static_cast<BlockImpl&>(*block).forward(x + 2)) * 3;
  std::vector<std::string> calls;
  const auto spy = std::make_shared<Spy>(calls);
  spy->add = 2;
  spy->times = 3;
  add_hook_to_module(*block, spy);
  const Tensor before = x.clone();
  EXPECT_TRUE(block(x).equal(expected));
  EXPECT_TRUE((*block)(x).equal(expected));
  EXPECT_TRUE(block->forward(x).equal(expected));
  EXPECT_TRUE(x.equal(before));
  remove_hook_from_module(*block);
  EXPECT_TRUE(block(x).equal(block->BlockImpl::forward(x)));
  EXPECT_THAT(calls, ElementsAre("init", "pre", "post", "pre", "post", "pre", "post", "detach"));
}

}  // namespace
}  // namespace accelerate
