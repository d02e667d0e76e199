// The example's model by itself: its size, what it looks at, and its checkpointed blocks.
#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/examples/gpt/model.h"
#include "accelerate/operators/default_device.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

using ::testing::HasSubstr;
using torch::Tensor;

int64_t elements(const torch::nn::Module& module) {
  int64_t sum = 0;
  for (const Tensor& parameter : module.parameters()) sum += parameter.numel();
  return sum;
}

TEST(GptModel, HasAsManyParametersAsTheFormulaSays) {
  const DefaultDeviceScope without_memory(c10::kMeta);
  for (const bool tied : {true, false}) {
    gpt::Shape tiny{.layers = 2, .heads = 3, .width = 6, .context = 5, .vocabulary = 7};
    tiny.tied_head = tied;
    EXPECT_EQ(elements(*gpt::Gpt(tiny)), tiny.num_parameters());
    for (const std::string& name : gpt::size_names()) {
      gpt::Shape shape = gpt::shape_of_size(name);
      shape.tied_head = tied;
      EXPECT_EQ(elements(*gpt::Gpt(shape)), shape.num_parameters()) << name;
    }
  }
}

TEST(GptModel, HasSizesThatAreNearTheirNames) {
  for (const std::string& name : gpt::size_names()) {
    const double unit = name.ends_with("B") ? 1e9 : 1e6;
    const double named = std::stod(name) * unit;
    const auto parameters = static_cast<double>(gpt::shape_of_size(name).num_parameters());
    EXPECT_NEAR(parameters / named, 1, 0.1) << name;
  }
  EXPECT_THROW(gpt::shape_of_size("8B"), std::invalid_argument);
}

TEST(GptModel, LooksAtEarlierTokensOnly) {
  torch::manual_seed(3);
  const gpt::Shape shape{.layers = 2, .heads = 2, .width = 8, .context = 6, .vocabulary = 11};
  gpt::Gpt model(shape);
  const Tensor tokens = torch::tensor({{1, 2, 3, 4, 5, 6}});
  const Tensor other = torch::tensor({{1, 2, 3, 9, 5, 6}});
  const Tensor before = model(tokens), after = model(other);
  EXPECT_EQ(before.sizes(), (std::vector<int64_t>{1, 6, 11}));
  EXPECT_TRUE(torch::allclose(before.narrow(1, 0, 3), after.narrow(1, 0, 3)));
  for (int position = 3; position < 6; ++position) {
    EXPECT_FALSE(torch::allclose(before.select(1, position), after.select(1, position)))
        << position;
  }
  // A shorter sequence is the beginning of a longer one.
  EXPECT_TRUE(torch::allclose(model(tokens.narrow(1, 0, 4)), before.narrow(1, 0, 4), 1e-4, 1e-6));
}

TEST(GptModel, RefusesAShapeOrASequenceThatDoesNotFit) {
  try {
    gpt::Gpt model(gpt::Shape{.heads = 3, .width = 8});
    FAIL() << "three heads share a width of 8";
  } catch (const c10::ValueError& error) {
    EXPECT_THAT(error.what_without_backtrace(), HasSubstr("3 heads cannot share a width of 8"));
  }
  gpt::Gpt model(gpt::Shape{.layers = 1, .width = 8, .context = 4});
  EXPECT_THROW(model(torch::zeros({1, 5}, torch::kLong)), c10::ValueError);
}

TEST(GptModel, HasTheSameGradientsWithCheckpointedBlocks) {
  simulator::Cluster("1x1").run_on_every_rank([](simulator::Rank&) {
    const gpt::Shape shape{.layers = 2, .heads = 2, .width = 8, .context = 6, .vocabulary = 11};
    std::vector<Tensor> gradients[2];
    for (const bool checkpointed : {false, true}) {
      torch::manual_seed(3);
      gpt::Gpt model(shape, checkpointed);
      model(torch::tensor({{1, 2, 3, 4, 5, 6}})).logsumexp(-1).sum().backward();
      for (const Tensor& parameter : model->parameters()) {
        gradients[checkpointed].push_back(parameter.grad());
      }
    }
    for (size_t i = 0; i < gradients[0].size(); ++i) {
      EXPECT_TRUE(gradients[0][i].equal(gradients[1][i])) << i;
    }
  });
}

}  // namespace
}  // namespace accelerate
