// What a simulated run tells of a pipeline: how long each stage waits, and the critical path of a
// step, which goes through all stages.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "accelerate/config/pipeline_plan.h"
#include "accelerate/operators/default_device.h"
#include "integration_tests/pipeline/small_pipeline.h"
#include "simulator/cluster/cluster.h"
#include "simulator/trace/critical_path.h"
#include "simulator/trace/step_shares.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::ClusterOptions;
using simulator::CriticalPath;
using simulator::Rank;
using simulator::StageShare;
using simulator::Trace;
using ::testing::ElementsAre;
using torch::Tensor;

constexpr int64_t kWidth = 8192, kRows = 4096;
constexpr int kMicroBatches = 4;

// Each of four stages is a product of matrices, next to which messages take little time. Without
// values, which nothing needs.
void train(Rank& /*rank*/) {
  Accelerator accelerator(with_stages({.pp_size = 4}, {.micro_batches = kMicroBatches}));
  torch::nn::Sequential made;
  for (int i = 0; i < 4; ++i) {
    const DefaultDeviceScope on_device(accelerator.device());
    made->push_back(torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWidth).bias(false)));
  }
  const std::shared_ptr<torch::optim::Optimizer> sgd =
      std::make_shared<torch::optim::SGD>(made->parameters(), torch::optim::SGDOptions(0.1));
  auto [model, optimizer] = accelerator.prepare(made.ptr(), sgd);
  const Tensor inputs = torch::zeros({kRows, kWidth}, accelerator.device());
  for (int step = 0; step < 3; ++step) {
    accelerator.train_batch(
        model, std::pair(inputs, inputs),
        [](const Tensor& output, const Tensor& labels) { return (output * labels).mean(); });
    optimizer.step();
    optimizer.zero_grad();
  }
}

TEST(ReportOfStages, HasTheBubbleOfEachAndAPathThroughAll) {
  ClusterOptions options;
  options.record = true;
  options.numerics = simulator::Numerics::kShapes;
  options.unknown_value = [](const std::string&) { return std::nan(""); };
  Cluster cluster("1x4:h100,efficiency=ideal", options);
  cluster.run_on_every_rank(&train);
  const Trace& trace = cluster.trace();
  const auto times = simulator::step_times(trace);
  ASSERT_TRUE(times.has_value());
  const std::vector<StageShare> shares = simulator::stage_shares(trace);
  ASSERT_EQ(shares.size(), 4U);
  for (int stage = 0; stage < 4; ++stage) {
    const StageShare& share = shares[static_cast<size_t>(stage)];
    EXPECT_EQ(share.stage, stage);
    EXPECT_EQ(share.ranks, 1);
    EXPECT_EQ(share.busy_ns + share.bubble_ns, times->median_ns);
    // In units of a product: 4 x 3 of 7 x 3 - 1, and the first stage has no gradient of an input.
    EXPECT_NEAR(static_cast<double>(share.bubble_ns) / static_cast<double>(times->median_ns),
                stage == 0 ? 0.6 : 0.4, 0.1)
        << stage;
  }
  const std::optional<CriticalPath> path = simulator::critical_path(trace);
  ASSERT_TRUE(path.has_value());
  EXPECT_THAT(path->ranks, ElementsAre(0, 1, 2, 3));
}

}  // namespace
}  // namespace accelerate
