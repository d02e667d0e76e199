// checkpoint() around a whole prepared model, of which ranks have replicas or parts: training is
// that of the model without it, bit by bit.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "absl/strings/str_cat.h"
#include "accelerate/accelerate.h"
#include "accelerate/config/fsdp_plugin.h"
#include "accelerate/config/kwargs_handlers.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/examples/lm/model.h"
#include "accelerate/operators/checkpoint.h"
#include "accelerate/testing/value_error.h"
#include "integration_tests/sharding/small_models.h"
#include "integration_tests/sharding/small_training.h"
#include "integration_tests/sharding/zero_job.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::Rank;
using ::testing::HasSubstr;
using torch::Tensor;

constexpr char kShape[] = "1x2:h100";
constexpr double kMaxNorm = 0.05;

struct Way {
  std::string name;
  Training training;
};

std::vector<Way> all_ways(int64_t accumulation) {
  std::vector<Way> ways;
  const auto add = [&](const std::string& name, const std::function<void(Training&)>& change) {
    Training training{.shape = kShape,
                      .options = {.gradient_accumulation_steps = accumulation},
                      .max_norm = kMaxNorm};
    change(training);
    ways.push_back({name, training});
  };
  add("replicas", [](Training&) {});
  add("replicas that look for unused parameters", [](Training& training) {
    training.options.kwargs_handlers = {
        DistributedDataParallelKwargs{.find_unused_parameters = true}};
  });
  add("dp_shard",
      [](Training& training) { training.parallelism = ParallelismOptions{.dp_shard_size = 2}; });
  for (const auto strategy : {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp}) {
    add(absl::StrCat("FSDP 1, ", to_string(strategy)), [strategy](Training& training) {
      training.options.fsdp_plugin = FullyShardedDataParallelPlugin{
          .fsdp_version = 1, .sharding_strategy = strategy, .use_orig_params = true};
    });
  }
  for (const int stage : {1, 2, 3}) {
    Json zero = {{"stage", stage}};
    if (stage == 3) zero["stage3_param_persistence_threshold"] = 50;
    ways.push_back(
        {absl::StrCat("ZeRO ", stage),
         training_of(
             {.shape = kShape, .zero = zero, .accumulation = accumulation, .max_norm = kMaxNorm})});
  }
  return ways;
}

template <typename Net>
void expect_training_without(int64_t accumulation) {
  for (Way& way : all_ways(accumulation)) {
    SCOPED_TRACE(way.name);
    const Outcome plain = train_on_cluster<Net>(way.training);
    way.training.recomputes = true;
    const Outcome recomputed = train_on_cluster<Net>(way.training);
    EXPECT_EQ(recomputed.losses, plain.losses);
    EXPECT_EQ(recomputed.norms.size(), static_cast<size_t>(kSteps));
    EXPECT_EQ(recomputed.norms, plain.norms);
    ASSERT_EQ(recomputed.weights.size(), plain.weights.size());
    for (size_t i = 0; i < plain.weights.size(); ++i) {
      EXPECT_TRUE(torch::equal(recomputed.weights[i], plain.weights[i])) << i;
    }
  }
}

TEST(RecomputedModel, TrainsAsWithoutACheckpoint) { expect_training_without<lm::LmImpl>(1); }

TEST(RecomputedModel, AccumulatesGradientsAsWithoutACheckpoint) {
  expect_training_without<lm::LmImpl>(2);
}

// The model has buffers, which ranks copy from rank 0.
TEST(RecomputedModel, WithBuffersTrainsAsWithoutACheckpoint) {
  expect_training_without<ConvnetImpl>(1);
}

// The first pass of a static graph reduces gradients when the backward pass of the model has ended,
// and that of a recomputation ends before there are any.
TEST(RecomputedModel, IsRefusedWithAStaticGraph) {
  Cluster(kShape).run_on_every_rank([](Rank&) {
    Accelerator accelerator(
        {.kwargs_handlers = {DistributedDataParallelKwargs{.static_graph = true}}});
    auto model = accelerator.prepare(torch::nn::Linear(3, 2));
    const Tensor x = torch::ones({4, 3}).to(accelerator.device());
    const Tensor loss = checkpoint([&](const Tensor& input) { return model(input); }, x).sum();
    EXPECT_THAT(c10_error_of([&] { accelerator.backward(loss); }),
                HasSubstr("static_graph: a backward pass computes the model again"));
  });
}

}  // namespace
}  // namespace accelerate
