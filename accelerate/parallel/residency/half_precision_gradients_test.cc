// Gradients that are reduced in half precision, whose numbers end at 65,504.
#include <functional>
#include <limits>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/parallel/residency/shards.h"
#include "accelerate/testing/fake_runtime.h"
#include "accelerate/testing/threaded_group.h"

namespace accelerate {
namespace {

namespace nn = torch::nn;
using torch::Tensor;

void on_ranks(int ranks, const std::function<void(const ProcessGroupPtr&)>& body) {
  run_ranks(ranks, [&body](const ProcessGroupPtr& group) {
    FakeRuntime runtime({.rank = group->getRank(), .world_size = group->getSize()});
    const RuntimeScope scope(runtime);
    body(group);
  });
}

TEST(HalfPrecisionGradients, AddUpBeyondTheirLargestNumber) {
  on_ranks(4, [](const ProcessGroupPtr& group) {
    nn::Linear net(nn::LinearOptions(1, 4).bias(false));
    ShardedParameters sharded(*net, {.shards = group}, c10::kCPU, {.param_dtype = torch::kHalf});
    const auto backward = [&](float gradient) {
      sharded.begin_step();
      Tensor loss;
      {
        const Residency::Pass pass(*sharded.residency());
        loss = (net(torch::full({1, 1}, gradient, torch::kHalf))).sum();
      }
      loss.backward();
    };
    backward(28672);
    const Tensor& shard = sharded.shards()[0].shard;
    EXPECT_EQ(shard.grad().item<float>(), 28672);
    // One rank's overflow is that of all.
    backward(group->getRank() == 2 ? std::numeric_limits<float>::infinity() : 1);
    EXPECT_FALSE(shard.grad().isfinite().any().item<bool>());
  });
}

// In float32 gradients have no limit of fp16: neither where passes add up before one sends their
// sum, nor where a sum in float32 becomes a gradient in fp16.
TEST(HalfPrecisionGradients, AreDividedBeforeTheyAreCast) {
  struct Row {
    ShardingOptions options;
    float gradient;  // of each of two passes
  };
  const std::vector<Row> rows = {
      {{.reduce_dtype = torch::kHalf, .gradient_predivide_factor = 16}, 65536},
      {{.reduce_dtype = torch::kFloat, .gradient_dtype = torch::kHalf}, 16384}};
  on_ranks(4, [&](const ProcessGroupPtr& group) {
    for (const Row& row : rows) {
      nn::Linear net(nn::LinearOptions(1, 4).bias(false));
      ShardedParameters sharded(*net, {.shards = group}, c10::kCPU, row.options);
      for (const bool synchronises : {false, true}) {
        sharded.set_synchronises(synchronises);
        sharded.begin_step();
        Tensor loss;
        {
          const Residency::Pass pass(*sharded.residency());
          loss = net(torch::full({1, 1}, row.gradient)).sum();
        }
        loss.backward();
      }
      EXPECT_EQ(sharded.shards()[0].shard.grad().item<float>(), 2 * row.gradient);
    }
  });
}

}  // namespace
}  // namespace accelerate
