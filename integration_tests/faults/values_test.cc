// Wrong values by what a tensor is for: parameters, gradients and activations of a training on a
// device, and buffers of the host.
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "accelerate/runtime/runtime.h"
#include "simulator/cluster/cluster.h"
#include "simulator/faults/fault_run.h"
#include "simulator/faults/rules.h"

namespace accelerate::simulator {
namespace {

using ::testing::SizeIs;
using ::testing::StartsWith;

ClusterOptions under(const std::string& plan) {
  ClusterOptions options{.seed = 3};
  options.faults = FaultRules::parse(plan).value();
  return options;
}

// Trains a layer for three steps. Each has one aten::addmm, forward, and two aten::add_, of the
// weight and of the bias, in its update.
void train(Rank& rank) {
  const at::TensorOptions here(rank.runtime().device());
  at::Tensor weight = at::full({4, 3}, 0.5, here).requires_grad_();
  at::Tensor bias = at::full({3}, 0.25, here).requires_grad_();
  const at::Tensor x = at::ones({2, 4}, here);
  for (int step = 0; step < 3; ++step) {
    at::addmm(bias, x, weight).square().sum().backward();
    const at::NoGradGuard no_grad;
    for (at::Tensor* each : {&weight, &bias}) {
      each->add_(each->grad(), -0.01);
      each->mutable_grad().reset();
    }
  }
  rank.report("weight", weight.detach());
}

struct Trained {
  at::Tensor weight;
  std::vector<FaultOutcome> faults;
};

Trained trained_under(const std::string& plan) {
  Cluster cluster("1x1:h100", under(plan));
  cluster.run_on_every_rank(train);
  return {.weight = cluster.reports("weight").at(0), .faults = cluster.fault_outcomes()};
}

TEST(FaultsOfValues, StrikeWhatATensorIsFor) {
  const Trained plain = trained_under("");
  EXPECT_TRUE(plain.weight.isfinite().all().item<bool>());
  for (const char* rule : {"rank 0 at op#1 of aten::addmm: flip(parameter, bit 22, element 0)",
                           "rank 0 at op#2 of aten::add_: flip(gradient, bit 22, element 0)",
                           "rank 0 at op#1 of aten::addmm: flip(activation, bit 22, element 0)"}) {
    const Trained struck = trained_under(rule);
    ASSERT_THAT(struck.faults, SizeIs(1)) << rule;
    EXPECT_EQ(struck.faults[0].touched, 1) << rule;
    EXPECT_THAT(struck.faults[0].struck.at(0), StartsWith("rank 0 at op#")) << rule;
    EXPECT_TRUE(struck.weight.isfinite().all().item<bool>()) << rule;
    EXPECT_FALSE(at::equal(struck.weight, plain.weight)) << rule;
  }
  const Trained nan = trained_under("rank 0 at op#2 of aten::add_: nan(gradient, element 5)");
  EXPECT_EQ(nan.faults.at(0).touched, 1);
  EXPECT_TRUE(nan.weight.flatten()[5].isnan().item<bool>());
}

// What an operator does not have is not struck in the place of something else.
TEST(FaultsOfValues, LeaveOtherTensorsAlone) {
  const Trained plain = trained_under("");
  for (const char* rule : {"rank 0 at op#0 of aten::addmm: flip(gradient, bit 22)",
                           "rank 0 at op#0 of aten::mm: flip(activation, bit 22)"}) {
    const Trained missed = trained_under(rule);
    ASSERT_THAT(missed.faults, SizeIs(1)) << rule;
    EXPECT_EQ(missed.faults[0].fired, 1) << missed.faults[0].to_string();
    EXPECT_EQ(missed.faults[0].touched, 0) << rule;
    EXPECT_TRUE(at::equal(missed.weight, plain.weight)) << rule;
  }
}

// The sum of ones of two ranks, by rank.
std::vector<at::Tensor> sums_under(const std::string& plan, const std::string& spec,
                                   int64_t touched) {
  Cluster cluster(spec, under(plan));
  cluster.run_on_every_rank([](Rank& rank) {
    const auto group = rank.runtime().new_group({.name = "all"});
    std::vector<at::Tensor> tensors{at::ones({2}, at::TensorOptions(rank.runtime().device()))};
    group->allreduce(tensors)->wait();
    rank.report("sum", tensors[0]);
  });
  EXPECT_EQ(cluster.fault_outcomes().at(0).touched, touched) << spec;
  return cluster.reports("sum");
}

TEST(FaultsOfValues, StrikeBuffersOfTheHostAlone) {
  const std::string plan = "rank 1 at collective#0: flip(buffer, bit 30, element 1)";
  for (const at::Tensor& sum : sums_under(plan, "1x2", /*touched=*/1)) {
    EXPECT_EQ(sum[0].item<float>(), 2);
    // With that bit 1 is infinite.
    EXPECT_TRUE(std::isinf(sum[1].item<float>()));
  }
  for (const at::Tensor& sum : sums_under(plan, "1x2:h100", /*touched=*/0)) {
    EXPECT_TRUE(at::equal(sum, at::full({2}, 2.0F)));
  }
}

}  // namespace
}  // namespace accelerate::simulator
