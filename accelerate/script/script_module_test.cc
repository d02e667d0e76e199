#include "accelerate/script/script_module.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

namespace accelerate {
namespace {

using testing::ElementsAre;

// scale.weight, scale.offset (a buffer), and a mode.
torch::jit::Module example() {
  torch::jit::Module script("net");
  torch::jit::Module scale("scale", script._ivalue()->compilation_unit());
  scale.register_parameter("weight", torch::full({2}, 3.0, torch::requires_grad()),
                           /*is_buffer=*/false);
  scale.register_buffer("offset", torch::full({2}, 1.0));
  script.register_module("scale", scale);
  script.register_attribute("training", c10::BoolType::get(), true);
  script.define(R"(
    def forward(self, x, times : int):
        if self.training:
            return x * self.scale.weight * times
        return x * self.scale.weight * times + self.scale.offset
  )");
  return script;
}

TEST(ScriptModule, HasTheTensorsUnderPyTorchsNames) {
  const torch::jit::Module script = example();
  const ScriptModule module(script);
  EXPECT_THAT(module.named_parameters().keys(), ElementsAre("scale.weight"));
  EXPECT_THAT(module.named_buffers().keys(), ElementsAre("scale.offset"));
  EXPECT_TRUE(module.parameters()[0].is_same(parameters_of(script)[0]));
  EXPECT_TRUE(module.parameters()[0].requires_grad());
  EXPECT_EQ(module.name(), "net");
}

TEST(ScriptModule, ComputesWithTheTensorsThatItHasAfterAMove) {
  ScriptModule module(example());
  module.to(torch::kDouble);
  const at::Tensor x = torch::ones({2}, torch::kDouble);
  const at::Tensor y = module.forward(x, 2).toTensor();
  EXPECT_EQ(y.scalar_type(), torch::kDouble);
  EXPECT_TRUE(torch::equal(y, torch::full({2}, 6.0, torch::kDouble)));
  y.sum().backward();
  EXPECT_TRUE(torch::equal(module.parameters()[0].grad(), torch::full({2}, 2.0, torch::kDouble)));
}

TEST(ScriptModule, HasTheModeOfTheScript) {
  torch::jit::Module script = example();
  script.eval();
  ScriptModule module(script);
  EXPECT_FALSE(module.is_training());
  EXPECT_EQ(module.forward(torch::ones({2}), 1).toTensor()[0].item<double>(), 4);
  module.train();
  EXPECT_TRUE(script.is_training());
  EXPECT_EQ(module.forward(torch::ones({2}), 1).toTensor()[0].item<double>(), 3);
  module.eval();
  EXPECT_FALSE(script.is_training());
  EXPECT_EQ(module.forward(torch::ones({2}), 1).toTensor()[0].item<double>(), 4);
}

TEST(ScriptModule, LeavesAFrozenParameterFrozen) {
  torch::jit::Module script("net");
  script.register_parameter("frozen", torch::ones({2}), /*is_buffer=*/false);
  script.register_parameter("trained", torch::ones({2}, torch::requires_grad()),
                            /*is_buffer=*/false);
  script.register_attribute("training", c10::BoolType::get(), true);
  const ScriptModule module(script);
  EXPECT_THAT(module.named_parameters().keys(), ElementsAre("frozen", "trained"));
  EXPECT_FALSE(module.parameters()[0].requires_grad());
  EXPECT_FALSE(parameters_of(script)[0].requires_grad());
  EXPECT_TRUE(module.parameters()[1].requires_grad());
}

}  // namespace
}  // namespace accelerate
