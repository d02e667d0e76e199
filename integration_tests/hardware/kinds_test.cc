// The device and type that ranks report on each kind of hardware.
// One shape each: each kind of hardware by name.
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::Rank;

TEST(Kinds, DecideTheDistributedType) {
  const std::vector<std::pair<std::string, std::string>> expected{
      {"v100", "MULTI_GPU"},    {"a100-40", "MULTI_GPU"},    {"a100-80", "MULTI_GPU"},
      {"h100", "MULTI_GPU"},    {"h200", "MULTI_GPU"},       {"b200", "MULTI_GPU"},
      {"mi300x", "MULTI_GPU"},  {"ascend910b", "MULTI_NPU"}, {"gaudi2", "MULTI_HPU"},
      {"max1550", "MULTI_XPU"}, {"mlu", "MULTI_MLU"},        {"sdaa", "MULTI_SDAA"},
      {"musa", "MULTI_MUSA"},   {"neuron", "MULTI_NEURON"},  {"cpu", "MULTI_CPU"}};
  for (const auto& [kind, type] : expected) {
    Cluster cluster("1x2:" + kind);
    cluster.run_on_every_rank([&](Rank& rank) {
      Accelerator accelerator;
      EXPECT_EQ(std::string(to_string(accelerator.distributed_type())), type) << kind;
      EXPECT_EQ(accelerator.device(), c10::Device("sim:" + std::to_string(rank.index())));
    });
  }
}

TEST(Kinds, TpusAreXlaOnOneChipAsOnMany) {
  for (const char* spec : {"tpu-v4:2x2x1", "1x1:tpu-v5e", "tpu-v5p:1x1x2"}) {
    Cluster cluster(spec);
    cluster.run_on_every_rank(
        [](Rank& rank) { EXPECT_EQ(Accelerator().distributed_type(), DistributedType::kXla); });
  }
}

TEST(Kinds, OneAcceleratorIsNotDistributed) {
  Cluster cluster("1x1:h100");
  cluster.run_on_every_rank(
      [](Rank& rank) { EXPECT_EQ(Accelerator().distributed_type(), DistributedType::kNo); });
}

TEST(Kinds, ARankMayComputeOnTheCpuWhateverItsDevice) {
  Cluster cluster("1x2:h100");
  cluster.run_on_every_rank([](Rank& rank) {
    Accelerator accelerator({.cpu = true});
    EXPECT_EQ(accelerator.distributed_type(), DistributedType::kMultiCpu);
    EXPECT_TRUE(accelerator.device().is_cpu());
  });
}

TEST(Kinds, WithoutHardwareRanksAreOnTheCpu) {
  Cluster cluster("1x2");
  cluster.run_on_every_rank([](Rank& rank) {
    EXPECT_EQ(Accelerator().distributed_type(), DistributedType::kMultiCpu);
    EXPECT_EQ(rank.device(), nullptr);
    EXPECT_FALSE(rank.runtime().device_memory().has_value());
  });
}

TEST(Kinds, CountDevicesOnEveryNodeFromZero) {
  Cluster cluster("16x8:h100");
  cluster.run_on_every_rank([](Rank& rank) {
    Accelerator accelerator;
    EXPECT_EQ(accelerator.distributed_type(), DistributedType::kMultiGpu);
    EXPECT_EQ(accelerator.device(), c10::Device("sim:" + std::to_string(rank.index() % 8)));
  });
}

}  // namespace
}  // namespace accelerate
