// A rank that dies anywhere in a backward pass, while the hooks of what divides its model are under
// way: the run ends with the death named, and nothing is left behind.
#include <array>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "accelerate/accelerate.h"
#include "accelerate/base/enum_text.h"
#include "accelerate/config/deepspeed_plugin.h"
#include "accelerate/config/parallelism_config.h"
#include "simulator/cluster/cluster.h"
#include "simulator/core/random.h"
#include "simulator/faults/fault_run.h"
#include "simulator/faults/rules.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::ClusterError;
using simulator::DeterministicRandom;
using simulator::FaultRules;
using simulator::Rank;
using simulator::Site;
using simulator::SiteCounts;
using ::testing::HasSubstr;

constexpr char kShape[] = "2x2:h100";
constexpr int kRanks = 4;

// How ranks divide a model.
enum class Division : uint8_t { kReplicas, kShards, kZero2, kZero3 };

AcceleratorOptions options_of(Division division) {
  AcceleratorOptions options;
  if (division == Division::kShards) {
    options.parallelism_config = ParallelismConfig(ParallelismOptions{.dp_shard_size = kRanks});
  } else if (division != Division::kReplicas) {
    nlohmann::ordered_json zero = {{"stage", division == Division::kZero2 ? 2 : 3}};
    if (division == Division::kZero3) zero["stage3_param_persistence_threshold"] = 0;
    const nlohmann::ordered_json config = {{"train_micro_batch_size_per_gpu", 2},
                                           {"gradient_accumulation_steps", 1},
                                           {"zero_allow_untested_optimizer", true},
                                           {"zero_optimization", zero}};
    options.deepspeed_plugin = DeepSpeedPlugin{.hf_ds_config = config};
  }
  return options;
}

struct NetImpl : torch::nn::Module {
  NetImpl()
      : first(register_module("first", torch::nn::Linear(16, 32))),
        second(register_module("second", torch::nn::Linear(32, 32))),
        third(register_module("third", torch::nn::Linear(32, 1))) {}
  torch::Tensor forward(const torch::Tensor& x) {
    return third(torch::relu(second(torch::relu(first(x)))));
  }
  torch::nn::Linear first, second, third;
};

// Where the ranks' program ends: at the backward pass of its second step, behind it, or when it has
// trained.
enum class End : uint8_t { kBefore, kBehind, kTrained };

void train(Division division, End end) {
  Accelerator accelerator(options_of(division));
  torch::manual_seed(3);
  const std::shared_ptr<NetImpl> net = std::make_shared<NetImpl>();
  const std::shared_ptr<torch::optim::Optimizer> base =
      std::make_shared<torch::optim::SGD>(net->parameters(), 0.01);
  auto [model, optimizer] = accelerator.prepare(net, base);
  for (int step = 0; step < 3; ++step) {
    const auto scope = accelerator.accumulate(model);
    const torch::Tensor x =
        torch::full({2, 16}, 0.1 * (accelerator.process_index() + 1)).to(accelerator.device());
    const torch::Tensor loss = model(x).square().mean();
    if (step == 1 && end == End::kBefore) return;
    accelerator.backward(loss);
    if (step == 1 && end == End::kBehind) return;
    optimizer.step();
    optimizer.zero_grad();
  }
}

// What each rank comes to until its program ends.
std::vector<SiteCounts> sites_until(Division division, End end) {
  Cluster cluster(kShape, {.seed = 4, .count_sites = true});
  cluster.run_on_every_rank([&](Rank& /*rank*/) { train(division, end); });
  return cluster.sites();
}

// As many as ci/faults.sh says, else a few, over all divisions.
int num_sites() {
  int sites = 0;
  const char* const given = std::getenv("ACCELERATE_CRASH_SITES");
  return given != nullptr && absl::SimpleAtoi(given, &sites) ? sites : 48;
}

class CrashSites : public ::testing::TestWithParam<Division> {};

TEST_P(CrashSites, InBackwardPassesEndTheRunWithTheDeathNamed) {
  const Division division = GetParam();
  const std::vector<SiteCounts> before = sites_until(division, End::kBefore);
  const std::vector<SiteCounts> behind = sites_until(division, End::kBehind);
  DeterministicRandom random(static_cast<uint64_t>(division) + 1);
  for (int i = 0; i < num_sites() / 4; ++i) {
    const auto rank = static_cast<size_t>(random.below(kRanks));
    constexpr std::array kSites = {Site::kOp, Site::kAlloc, Site::kCollective};
    const Site site = kSites[random.below(kSites.size())];
    const int64_t first = before[rank].of(site);
    const int64_t count = behind[rank].of(site) - first;
    ASSERT_GT(count, 0) << to_string(site);
    const int64_t number = first + static_cast<int64_t>(random.below(static_cast<uint64_t>(count)));
    const std::string rule =
        absl::StrCat("rank ", rank, " at ", to_string(site), "#", number, ": crash");
    Cluster cluster(kShape, {.seed = 4, .faults = FaultRules::parse(rule).value()});
    try {
      cluster.run_on_every_rank([&](Rank& /*rank*/) { train(division, End::kTrained); });
      ADD_FAILURE() << rule << ": the run succeeded";
    } catch (const ClusterError& error) {
      EXPECT_THAT(error.what(),
                  HasSubstr(absl::StrCat("rank ", rank, " failed: rank ", rank, " was killed at ",
                                         to_string(site), "#", number)));
    }
    EXPECT_EQ(cluster.fault_outcomes().at(0).touched, 1) << rule;
  }
}

INSTANTIATE_TEST_SUITE_P(Of, CrashSites,
                         ::testing::Values(Division::kReplicas, Division::kShards, Division::kZero2,
                                           Division::kZero3));

}  // namespace
}  // namespace accelerate
