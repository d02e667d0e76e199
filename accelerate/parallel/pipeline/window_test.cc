#include "accelerate/parallel/pipeline/window.h"

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include "accelerate/operators/operator_mode.h"
#include "accelerate/parallel/pipeline/late_gradients.h"
#include "accelerate/parallel/pipeline/model_stages.h"
#include "accelerate/pipeline/schedule.h"

namespace accelerate {
namespace {

using pipeline::Action;
using pipeline::Pass;
using ::testing::Each;
using torch::Tensor;
using enum pipeline::ScheduleKind;

constexpr int kMicroBatches = 3;

// Two stages on one rank, where each stage gets the results of the other stage.
struct TwoStages {
  TwoStages() {
    torch::manual_seed(3);
    for (int i = 0; i < 2; ++i) layers.emplace_back(torch::nn::LinearOptions(4, 4).bias(i == 0));
    inputs = torch::randn({kMicroBatches, 5, 2, 4});
  }

  Tensor loss_of(const Tensor& output, int i) const { return output.square().sum() * (i + 1); }

  std::vector<Tensor> gradients() const {
    std::vector<Tensor> gradients;
    for (const torch::nn::Linear& layer : layers) {
      for (const Tensor& each : layer->parameters()) gradients.push_back(each.grad());
    }
    return gradients;
  }

  std::vector<torch::nn::Linear> layers;
  Tensor inputs;
};

// The gradients after a window.
std::vector<Tensor> after_window(pipeline::ScheduleKind kind, std::vector<bool>* last = nullptr) {
  const TwoStages model;
  const auto late = std::make_shared<LateGradients>();
  StageWork work;
  work.input = [&](int i) { return model.inputs[i]; };
  work.forward = [&](int stage, int /*micro_batch*/, Tensor x) {
    const OperatorModeScope products(late);
    return torch::nn::Linear(model.layers[static_cast<size_t>(stage)])->forward(x).tanh();
  };
  work.loss = [&](const Tensor& output, int i) { return model.loss_of(output, i); };
  work.backward = [&](const Action& action, const Tensor& root, const Tensor& gradient,
                      bool is_last) {
    if (last != nullptr) last->push_back(is_last);
    if (action.pass == Pass::kInputGradient) late->begin({action.stage, action.micro_batch});
    root.backward(gradient);
    late->end();
  };
  work.late_gradients = [&](const Action& action) {
    late->run({action.stage, action.micro_batch});
  };
  const pipeline::Schedule schedule = checked_value(
      make_schedule(kind, {.ranks = 1, .stages_per_rank = 2, .micro_batches = kMicroBatches}));
  run_window(schedule, /*rank=*/0, /*messages=*/nullptr, work);
  return model.gradients();
}

// The same without stages.
std::vector<Tensor> after_whole_passes() {
  const TwoStages model;
  for (int i = 0; i < kMicroBatches; ++i) {
    Tensor x = model.inputs[i];
    for (torch::nn::Linear layer : model.layers) x = layer->forward(x).tanh();
    model.loss_of(x, i).backward();
  }
  return model.gradients();
}

TEST(Windows, GiveTheGradientsOfWholePasses) {
  const std::vector<Tensor> expected = after_whole_passes();
  for (const pipeline::ScheduleKind kind : {kInterleaved, kLoopedBreadthFirst, kZeroBubbleV}) {
    const std::vector<Tensor> gradients = after_window(kind);
    ASSERT_EQ(gradients.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(gradients[i].allclose(expected[i], 1e-5, 1e-6)) << to_string(kind) << i;
    }
  }
}

TEST(Windows, SayWhichBackwardPassIsTheLast) {
  std::vector<bool> last;
  after_window(kLoopedBreadthFirst, &last);
  ASSERT_EQ(last.size(), 2 * kMicroBatches);
  EXPECT_TRUE(last.back());
  last.pop_back();
  EXPECT_THAT(last, Each(false));
  // Weights' gradients come behind it.
  last.clear();
  after_window(kZeroBubbleV, &last);
  EXPECT_THAT(last, Each(false));
}

TEST(LateGradients, OfWeightsAreThereWhenTheyAreAskedFor) {
  torch::nn::Linear layer(4, 3);
  const Tensor x = torch::ones({2, 5, 4}, torch::requires_grad());
  const auto late = std::make_shared<LateGradients>();
  Tensor output;
  {
    const OperatorModeScope products(late);
    output = layer(layer(x).narrow(-1, 0, 3).repeat({1, 1, 2}).narrow(-1, 0, 4));
  }
  late->begin({0, 0});
  output.sum().backward();
  late->end();
  EXPECT_TRUE(x.grad().defined());
  EXPECT_TRUE(layer->bias.grad().defined());
  EXPECT_FALSE(layer->weight.grad().defined());
  late->run({0, 1});
  EXPECT_FALSE(layer->weight.grad().defined()) << "those of another micro-batch";
  late->run({0, 0});
  const Tensor gradient = layer->weight.grad().clone();
  layer->zero_grad();
  layer(layer(x).narrow(-1, 0, 3).repeat({1, 1, 2}).narrow(-1, 0, 4)).sum().backward();
  EXPECT_TRUE(gradient.allclose(layer->weight.grad()));
}

}  // namespace
}  // namespace accelerate
