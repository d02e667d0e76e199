// The topology and devices that a simulated rank reports.
// One shape each: what is reported of a kind of hardware.
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/platform/topology.h"
#include "accelerate/report/availability.h"
#include "accelerate/report/environment_report.h"
#include "accelerate/runtime/numa_affinity.h"
#include "accelerate/runtime/runtime.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(SimulatedPlace, IsWhatTheResolverReads) {
  // As if mpirun had started the simulation.
  Environment environment;
  environment.set("OMPI_COMM_WORLD_RANK", "1");
  environment.set("OMPI_COMM_WORLD_SIZE", "2");
  environment.set("OMPI_COMM_WORLD_LOCAL_RANK", "1");
  environment.set("OMPI_COMM_WORLD_LOCAL_SIZE", "2");
  simulator::Cluster cluster("2x4", {.environment = environment});
  cluster.run_on_every_rank([](simulator::Rank& rank) {
    auto read = topology_from_environment(rank.runtime().environment());
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(*read, rank.runtime().topology());
  });
}

TEST(SimulatedPlace, HasTheSimulatedDevices) {
  simulator::Cluster npus("2x4:ascend910b");
  npus.run_on_every_rank([](simulator::Rank&) {
    EXPECT_TRUE(is_npu_available());
    EXPECT_TRUE(is_npu_available(/*check_device=*/true));
    EXPECT_FALSE(is_cuda_available());
    EXPECT_FALSE(is_torch_xla_available());
    EXPECT_EQ(Runtime::current().device_has(DeviceTrait::kFp8Products), false);
    EXPECT_TRUE(get_gpu_info().names.empty());
  });
  simulator::Cluster gpus("1x2:h100");
  gpus.run_on_every_rank([](simulator::Rank&) {
    EXPECT_TRUE(is_cuda_available(/*check_device=*/true));
    EXPECT_FALSE(is_rocm_available());
    EXPECT_FALSE(is_npu_available());
    EXPECT_EQ(Runtime::current().device_has(DeviceTrait::kFp8Products), true);
    EXPECT_THAT(get_gpu_info().names, testing::ElementsAre("h100", "h100"));
    EXPECT_EQ(get_driver_version(), "");
    EXPECT_TRUE(check_cuda_p2p_ib_support());
    EXPECT_FALSE(is_pynvml_available());
    EXPECT_THAT(initialized_devices(), testing::Contains(Runtime::current().device()));
  });
  simulator::Cluster amd("1x1:mi300x");
  amd.run_on_every_rank([](simulator::Rank&) {
    EXPECT_TRUE(is_cuda_available());
    EXPECT_TRUE(is_rocm_available());
    EXPECT_TRUE(get_gpu_info().names.empty());
  });
}

// A question without an answer would go on to the drivers of the machine.
TEST(SimulatedPlace, KnowsThatARankWithoutADeviceHasNoTraits) {
  simulator::Cluster cpus("1x1");
  cpus.run_on_every_rank([](simulator::Rank&) {
    for (const DeviceTrait trait :
         {DeviceTrait::kFp8Products, DeviceTrait::kRocm, DeviceTrait::kFirstGaudi}) {
      EXPECT_EQ(Runtime::current().device_has(trait), false);
    }
  });
}

TEST(SimulatedPlace, KnowsTpusAndTheirFormats) {
  simulator::Cluster tpus("tpu-v4:2x2x1");
  tpus.run_on_every_rank([](simulator::Rank& rank) {
    EXPECT_TRUE(is_torch_xla_available(/*check_is_tpu=*/true));
    EXPECT_FALSE(is_torch_xla_available(/*check_is_tpu=*/false, /*check_is_gpu=*/true));
    EXPECT_TRUE(is_bf16_available());
    EXPECT_FALSE(is_bf16_available(/*ignore_tpu=*/true));
    rank.runtime().environment().set("USE_TORCH_XLA", "false");
    EXPECT_FALSE(is_torch_xla_available());
  });
}

TEST(SimulatedPlace, HasNoDevicesWithoutAHardwareModel) {
  simulator::Cluster cluster("1x2");
  cluster.run_on_every_rank([](simulator::Rank&) {
    EXPECT_FALSE(is_cuda_available());
    EXPECT_FALSE(is_npu_available());
  });
}

TEST(SimulatedPlace, LeavesTheProcessWhereItRuns) {
  simulator::Cluster cluster("1x2:h100");
  cluster.run_on_every_rank([](simulator::Rank& rank) {
    const NumaAffinity affinity = set_numa_affinity(rank.index());
    EXPECT_FALSE(affinity.bound);
    EXPECT_THAT(affinity.reason, HasSubstr("shares its process"));
  });
}

TEST(SimulatedPlace, IsReported) {
  simulator::Cluster cluster("1x2:h100");
  cluster.run_on_every_rank([](simulator::Rank& rank) {
    EXPECT_THAT(
        environment_report().to_string(),
        AllOf(HasSubstr("- LibTorch CUDA available: True\n"), HasSubstr("- GPU type: 2 x h100\n"),
              HasSubstr("- Rank: " + std::to_string(rank.index()) + " of 2 (1x2)"),
              HasSubstr("(gpu h100)")));
  });
}

}  // namespace
}  // namespace accelerate
