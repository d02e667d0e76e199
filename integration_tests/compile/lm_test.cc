// Every model of the example: its blocks are recorded, with values and by shapes alone, and train
// as without; and what simulated devices predict of compiled blocks.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "absl/time/time.h"
#include "accelerate/accelerate.h"
#include "accelerate/compile/compile_regions.h"
#include "accelerate/examples/lm/model.h"
#include "accelerate/operators/default_device.h"
#include "accelerate/runtime/runtime.h"
#include "simulator/cluster/cluster.h"
#include "simulator/trace/trace.h"

namespace accelerate {
namespace {

using lm::Blocks;
using simulator::Cluster;
using simulator::ClusterOptions;
using simulator::Numerics;
using simulator::Rank;
using ::testing::IsEmpty;

constexpr Blocks kBothBlocks[] = {Blocks::kGpt, Blocks::kLlama};
constexpr int kPasses = 4;

struct Training {
  lm::Config config;
  DynamoBackend backend = DynamoBackend::kNo;
  PrecisionType precision = PrecisionType::kNo;
};

struct Trained {
  torch::Tensor parameters;
  std::optional<CompileReport> report;
  /// The time of the last pass, forward and backward.
  int64_t ns = 0;
};

Trained train(const Training& training, bool has_values) {
  Accelerator accelerator(
      {.mixed_precision = training.precision,
       .dynamo_plugin = TorchDynamoPlugin{
           .backend = training.backend, .fullgraph = true, .use_regional_compilation = true}});
  torch::manual_seed(5);
  lm::Lm net = [&] {
    const DefaultDeviceScope scope(accelerator.device());
    return lm::Lm(training.config);
  }();
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const torch::Tensor tokens = torch::arange(training.config.sequence_length)
                                   .remainder(7)
                                   .view({1, -1})
                                   .to(accelerator.device());
  Runtime& runtime = accelerator.runtime();
  Trained result;
  for (int pass = 0; pass < kPasses; ++pass) {
    runtime.synchronize_device();
    const absl::Time start = runtime.now();
    accelerator.backward(model(tokens).square().mean());
    runtime.synchronize_device();
    result.ns = absl::ToInt64Nanoseconds(runtime.now() - start);
    optimizer.step();
    optimizer.zero_grad();
  }
  result.report = compile_report(model);
  if (!has_values) return result;
  std::vector<torch::Tensor> flat;
  for (const torch::Tensor& each : net->parameters()) flat.push_back(each.detach().flatten());
  result.parameters = torch::cat(flat).cpu();
  return result;
}

// On the cluster's only rank.
Trained trained(Cluster& cluster, const Training& training, bool has_values) {
  Trained result;
  cluster.run_on_every_rank([&](Rank&) { result = train(training, has_values); });
  return result;
}

void expect_compiled(const Trained& trained, int64_t layers) {
  ASSERT_TRUE(trained.report.has_value());
  EXPECT_THAT(trained.report->not_compiled, IsEmpty());
  EXPECT_EQ(trained.report->regions, layers);
  EXPECT_EQ(trained.report->programs, 1) << "the blocks are equal";
  EXPECT_EQ(trained.report->compiled_calls, layers * (kPasses - 2));
}

lm::Config small(Blocks blocks) {
  return lm::model_config(
      "tiny", {.blocks = blocks, .layers = 3, .hidden = 32, .heads = 2, .sequence_length = 16});
}

void expect_equal_training(const char* topology, DynamoBackend backend) {
  for (const Blocks blocks : kBothBlocks) {
    for (const PrecisionType precision : {PrecisionType::kNo, PrecisionType::kBf16}) {
      Cluster plain(topology, {.seed = 3});
      const Trained expected =
          trained(plain, {.config = small(blocks), .precision = precision}, /*has_values=*/true);
      Cluster compiled(topology, {.seed = 3});
      const Trained got =
          trained(compiled, {.config = small(blocks), .backend = backend, .precision = precision},
                  /*has_values=*/true);
      expect_compiled(got, 3);
      EXPECT_FALSE(expected.report.has_value());
      EXPECT_TRUE(torch::equal(got.parameters, expected.parameters)) << to_string(precision);
    }
  }
}

TEST(CompiledLm, TrainsAsWithoutThePluginOnCpus) {
  expect_equal_training("1x1", DynamoBackend::kAotEager);
}

TEST(CompiledLm, TrainsAsWithoutThePluginOnSimulatedDevices) {
  expect_equal_training("1x1:h100", DynamoBackend::kInductor);
}

TEST(CompiledLm, IsRecordedByShapesAlone) {
  for (const Blocks blocks : kBothBlocks) {
    for (const std::string& name : lm::model_names()) {
      // Blocks are equal, so that two of each size stand for all.
      const lm::Config config = lm::model_config(name, {.blocks = blocks, .layers = 2});
      Cluster cluster("1x1:h100,mem=400GiB", {.numerics = Numerics::kShapes});
      expect_compiled(trained(cluster, {.config = config, .backend = DynamoBackend::kAotEager},
                              /*has_values=*/false),
                      2);
    }
  }
}

TEST(CompiledLm, TakesThePredictedTimeOfFusedKernels) {
  const auto run = [](const std::string& topology, DynamoBackend backend, int64_t& predicted_ns) {
    ClusterOptions options{.numerics = Numerics::kShapes, .record = true};
    Cluster cluster(topology, options);
    const lm::Config config = lm::model_config("125m", {.layers = 2});
    const Trained result =
        trained(cluster, {.config = config, .backend = backend, .precision = PrecisionType::kBf16},
                /*has_values=*/false);
    predicted_ns = cluster.trace().predicted_ns;
    return result.ns;
  };
  int64_t predicted_ns = 0;
  const int64_t eager = run("1x1:h100", DynamoBackend::kNo, predicted_ns);
  EXPECT_EQ(predicted_ns, 0);
  run("1x1:h100", DynamoBackend::kAotEager, predicted_ns);
  EXPECT_EQ(predicted_ns, 0) << "operators take their own time";
  const int64_t compiled = run("1x1:h100", DynamoBackend::kInductor, predicted_ns);
  EXPECT_LT(compiled, eager);
  EXPECT_GT(predicted_ns, 0);
}

}  // namespace
}  // namespace accelerate
