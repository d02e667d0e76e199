// A run without values takes the time and the memory of the run with values.
// One shape each: two runs are compared.
#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::ClusterError;
using simulator::Numerics;
using simulator::Rank;
using torch::Tensor;

// A perceptron whose weights are hollow, 1 MiB each, and whose biases are not.
torch::nn::Sequential perceptron() {
  return torch::nn::Sequential(torch::nn::Linear(512, 512), torch::nn::ReLU(),
                               torch::nn::Linear(512, 512), torch::nn::GELU(),
                               torch::nn::Linear(512, 10));
}

struct Case {
  const char* name;
  std::function<void(Accelerator&)> train;
  DistributedDataParallelKwargs options = {};
  PrecisionType precision = PrecisionType::kNo;
  int accumulate = 1;
};

template <typename Optimizer, typename Options>
void train_with(Accelerator& accelerator, const Options& options, double max_norm = 0) {
  torch::manual_seed(3);
  torch::nn::Sequential net = perceptron();
  Optimizer made(net->parameters(), options);
  auto [model, optimizer] = accelerator.prepare(net, made);
  for (int step = 0; step < 3; ++step) {
    const Tensor input = torch::randn({64, 512}).to(accelerator.device());
    const Tensor target = torch::randint(0, 10, {64}).to(accelerator.device());
    auto scope = accelerator.accumulate(model);
    const Tensor loss = torch::nn::functional::cross_entropy(model(input), target);
    accelerator.backward(loss);
    if (max_norm > 0) accelerator.clip_grad_norm_(net->parameters(), max_norm);
    optimizer.step();
    optimizer.zero_grad();
    loss.item<double>();
  }
}

void train_sgd(Accelerator& accelerator) {
  train_with<torch::optim::SGD>(accelerator, torch::optim::SGDOptions(0.1).momentum(0.9));
}
void train_adam(Accelerator& accelerator) {
  train_with<torch::optim::AdamW>(accelerator, torch::optim::AdamWOptions(1e-3));
}
void train_clipped(Accelerator& accelerator) {
  train_with<torch::optim::SGD>(accelerator, torch::optim::SGDOptions(0.1), 1.0);
}

class Shapes : public ::testing::TestWithParam<Case> {};

TEST_P(Shapes, CostWhatValuesCost) {
  const auto run = [](Numerics numerics) {
    Cluster cluster(
        "2x2:h100",
        {.seed = 4, .numerics = numerics, .unknown_value = [](const std::string&) { return 1; }});
    cluster.run_on_every_rank([](Rank& rank) {
      Accelerator accelerator({.mixed_precision = GetParam().precision,
                               .gradient_accumulation_steps = GetParam().accumulate,
                               .kwargs_handlers = {GetParam().options}});
      GetParam().train(accelerator);
      rank.report("ns", static_cast<double>(rank.device()->host_ns()));
      rank.report("peak", static_cast<double>(rank.device()->memory().peak()));
    });
    return cluster;
  };
  const Cluster real = run(Numerics::kReal);
  const Cluster shapes = run(Numerics::kShapes);
  EXPECT_EQ(absl::ToInt64Nanoseconds(shapes.elapsed()), absl::ToInt64Nanoseconds(real.elapsed()));
  for (const char* name : {"ns", "peak"}) {
    for (int rank = 0; rank < real.world_size(); ++rank) {
      EXPECT_EQ(shapes.reports(name)[rank].item<double>(), real.reports(name)[rank].item<double>())
          << name << " of rank " << rank;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Programs, Shapes,
    ::testing::Values(
        Case{.name = "sgd", .train = train_sgd}, Case{.name = "adam", .train = train_adam},
        Case{.name = "clipped", .train = train_clipped},
        Case{.name = "small_buckets", .train = train_sgd, .options = {.bucket_cap_mb = 0.1}},
        Case{.name = "bucket_views",
             .train = train_sgd,
             .options = {.gradient_as_bucket_view = true}},
        Case{.name = "bf16", .train = train_adam, .precision = PrecisionType::kBf16},
        Case{.name = "accumulation", .train = train_sgd, .accumulate = 2}),
    [](const ::testing::TestParamInfo<Case>& info) { return info.param.name; });

TEST(ShapesOnly, ALossThatIsReadIsAnErrorThatNamesTheStepAndTheWayToRepeatTheRun) {
  Cluster cluster("1x2:h100", {.numerics = Numerics::kShapes});
  try {
    cluster.run_on_every_rank([](Rank& rank) {
      Accelerator accelerator;
      train_sgd(accelerator);
    });
    FAIL() << "the loss was read";
  } catch (const ClusterError& error) {
    EXPECT_THAT(
        error.what(),
        ::testing::AllOf(::testing::HasSubstr("aten::_local_scalar_dense on rank "),
                         ::testing::HasSubstr("in step 0"), ::testing::HasSubstr("unknown_value"),
                         ::testing::HasSubstr("shapes only")));
  }
}

}  // namespace
}  // namespace accelerate
