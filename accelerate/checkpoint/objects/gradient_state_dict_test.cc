#include "accelerate/checkpoint/objects/training_state_dict.h"

#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "accelerate/testing/value_error.h"

namespace accelerate {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using torch::Tensor;

// A sparse embedding, a weight with two names, a frozen one, and one that is never used.
struct NetImpl : torch::nn::Module {
  NetImpl()
      : table(register_module(
            "table", torch::nn::Embedding(torch::nn::EmbeddingOptions(6, 3).sparse(true)))),
        body(register_module("body", torch::nn::Linear(3, 3))) {
    register_parameter("tied", body->weight);
    register_parameter("frozen", torch::ones({3}), /*requires_grad=*/false);
    register_parameter("unused", torch::ones({2}));
  }
  Tensor forward(const Tensor& x) { return body(table(x)); }
  torch::nn::Embedding table;
  torch::nn::Linear body;
};
TORCH_MODULE(Net);

StateDict filed(const StateDict& state) {
  StateDict result;
  result.values = nlohmann::ordered_json::parse(state.values.dump());
  for (const auto& [name, tensor] : state.tensors) {
    result.tensors.emplace_back(name, tensor.clone(at::MemoryFormat::Contiguous));
  }
  return result;
}

class GradientStateDictTest : public ::testing::Test {
 protected:
  static Net made_net() {
    torch::manual_seed(1);
    return {};
  }
  static void accumulate(Net& net, int64_t step) {
    const Tensor rows = torch::tensor({step % 6, int64_t{2}, step % 6});
    net(rows).square().sum().backward();
  }
  std::string error_with(StateDict state) {
    const StateDict before = filed(gradient_state_dict(*net_));
    const std::string error =
        value_error_of([&] { load_gradient_state_dict(*net_, std::move(state)); });
    EXPECT_EQ(gradient_state_dict(*net_).values, before.values);
    EXPECT_EQ(gradient_state_dict(*net_).tensors.size(), before.tensors.size());
    return error;
  }

  Net net_ = made_net();
};

TEST_F(GradientStateDictTest, GoesOnBitEqual) {
  accumulate(net_, 0);
  accumulate(net_, 3);
  const StateDict saved = filed(gradient_state_dict(*net_));
  std::vector<std::string> names;
  for (const auto& [name, tensor] : saved.tensors) names.push_back(name);
  EXPECT_THAT(names,
              ElementsAre("tied", "table.weight.indices", "table.weight.values", "body.bias"));
  Net other = made_net();
  accumulate(other, 1);
  other->named_parameters()["unused"].mutable_grad() = torch::ones({2});
  load_gradient_state_dict(*other, saved);
  EXPECT_FALSE(other->named_parameters()["unused"].grad().defined());
  accumulate(net_, 4);
  accumulate(other, 4);
  EXPECT_TRUE(torch::equal(net_->body->weight.grad(), other->body->weight.grad()));
  EXPECT_TRUE(torch::equal(net_->body->bias.grad(), other->body->bias.grad()));
  const Tensor mine = net_->table->weight.grad(), others = other->table->weight.grad();
  EXPECT_EQ(mine.is_coalesced(), others.is_coalesced());
  EXPECT_TRUE(torch::equal(mine._indices(), others._indices()));
  EXPECT_TRUE(torch::equal(mine._values(), others._values()));
}

TEST_F(GradientStateDictTest, WithoutGradientsTakesThemAway) {
  const StateDict saved = filed(gradient_state_dict(*net_));
  EXPECT_TRUE(saved.tensors.empty());
  accumulate(net_, 0);
  load_gradient_state_dict(*net_, saved);
  for (const Tensor& parameter : net_->parameters()) EXPECT_FALSE(parameter.grad().defined());
}

TEST_F(GradientStateDictTest, AdoptsWhatNobodyElseHolds) {
  accumulate(net_, 0);
  StateDict mine = filed(gradient_state_dict(*net_));
  const void* data = mine.tensors[0].second.data_ptr();
  load_gradient_state_dict(*net_, std::move(mine));
  EXPECT_EQ(net_->body->weight.grad().data_ptr(), data);
  // Gradients that the model itself still holds are copied.
  const void* before = net_->body->weight.grad().data_ptr();
  load_gradient_state_dict(*net_, gradient_state_dict(*net_));
  EXPECT_NE(net_->body->weight.grad().data_ptr(), before);
}

TEST_F(GradientStateDictTest, SaysWhatIsWrongAndChangesNothing) {
  accumulate(net_, 0);
  const StateDict saved = filed(gradient_state_dict(*net_));
  StateDict bad = saved;
  bad.tensors.emplace_back("nothing", torch::ones({1}));
  EXPECT_THAT(error_with(bad), HasSubstr("\"nothing\", which is not a parameter"));
  bad = saved;
  bad.tensors[0].second = torch::ones({3, 2});
  EXPECT_THAT(error_with(bad), HasSubstr("\"tied\" has shape [3, 2]"));
  bad.tensors[0].second = torch::ones({3, 3}, torch::kLong);
  EXPECT_THAT(error_with(bad), HasSubstr("\"tied\" has shape [3, 3] and dtype Long"));
  bad.tensors[0].second = Tensor();
  EXPECT_THAT(error_with(bad), HasSubstr("\"tied\" is not a dense tensor"));
  bad = saved;
  bad.tensors.push_back(bad.tensors[0]);
  EXPECT_THAT(error_with(bad), HasSubstr("two \"tied\""));
  bad = saved;
  bad.tensors[1].second = bad.tensors[1].second + 4;
  EXPECT_THAT(error_with(bad), HasSubstr("\"table.weight.indices\" points outside"));
  bad.tensors[1].second = -torch::ones_like(bad.tensors[1].second);
  EXPECT_THAT(error_with(bad), HasSubstr("points outside"));
  bad.tensors[1].second = torch::ones({1});
  EXPECT_THAT(error_with(bad), HasSubstr("\"table.weight.indices\" has shape [1]"));
  bad = saved;
  bad.tensors[2].second = torch::ones({1, 3});
  EXPECT_THAT(error_with(bad), HasSubstr("\"table.weight.values\" has shape [1, 3]"));
  bad = saved;
  bad.tensors.erase(bad.tensors.begin() + 2);
  EXPECT_THAT(error_with(bad), HasSubstr("lacks the indices or values of \"table.weight\""));
  bad = saved;
  bad.values = {{"sparse", {{"table.weight", {{"is_coalesced", 1}}}}}};
  EXPECT_THAT(error_with(bad), HasSubstr("\"is_coalesced\" is 1"));
  bad.values = {{"sparse", 3}};
  EXPECT_THAT(error_with(bad), HasSubstr("not an object"));
  bad.values = nullptr;
  EXPECT_THAT(error_with(bad), HasSubstr("which is not a parameter"));
}

}  // namespace
}  // namespace accelerate
