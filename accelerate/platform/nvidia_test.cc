#include "accelerate/platform/nvidia.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

NvidiaGpus gpus(const char* driver, std::vector<std::string> names) {
  return {.driver_version = driver, .names = std::move(names)};
}

const char kRtx4090[] = "NVIDIA GeForce RTX 4090";

TEST(Nvidia, KnowsTheDriverFromWhichRtx40sTalkDirectly) {
  EXPECT_FALSE(cuda_p2p_ib_supported(gpus("545.23.08", {kRtx4090, kRtx4090})));
  EXPECT_FALSE(cuda_p2p_ib_supported(gpus("550.40.06", {kRtx4090, kRtx4090})));
  EXPECT_TRUE(cuda_p2p_ib_supported(gpus("550.40.07", {kRtx4090, kRtx4090})));
  EXPECT_TRUE(cuda_p2p_ib_supported(gpus("550.54.15", {kRtx4090, kRtx4090})));
  EXPECT_TRUE(cuda_p2p_ib_supported(gpus("1000.1", {kRtx4090, kRtx4090})));
}

TEST(Nvidia, KeepsOtherGpusOutOfIt) {
  EXPECT_TRUE(cuda_p2p_ib_supported(gpus("", {})));
  EXPECT_TRUE(cuda_p2p_ib_supported(gpus("545.23.08", {kRtx4090})));
  EXPECT_TRUE(cuda_p2p_ib_supported(gpus("545.23.08", {"NVIDIA H100", "NVIDIA H100"})));
  EXPECT_TRUE(cuda_p2p_ib_supported(gpus("", {kRtx4090, kRtx4090})));
}

// One of them is enough, wherever it stands.
TEST(Nvidia, LooksAtEveryGpu) {
  EXPECT_FALSE(cuda_p2p_ib_supported(gpus("545.23.08", {"NVIDIA H100", kRtx4090})));
  EXPECT_FALSE(cuda_p2p_ib_supported(gpus("545.23.08", {kRtx4090, "NVIDIA H100"})));
  EXPECT_FALSE(cuda_p2p_ib_supported(gpus("545.23.08", {"", "NVIDIA H100", kRtx4090})));
}

TEST(Nvidia, AsksForWhatNcclNeeds) {
  Environment environment;
  environment.unset("NCCL_P2P_DISABLE");
  environment.unset("NCCL_IB_DISABLE");
  const NvidiaGpus old = gpus("545.23.08", {kRtx4090, kRtx4090});
  environment.set("NCCL_P2P_DISABLE", "1");
  EXPECT_THAT(check_nccl_environment(old, environment).message(),
              AllOf(HasSubstr("545.23.08"), HasSubstr("NCCL_IB_DISABLE")));
  environment.set("NCCL_IB_DISABLE", "1");
  EXPECT_TRUE(check_nccl_environment(old, environment).ok());
  environment.unset("NCCL_P2P_DISABLE");
  EXPECT_FALSE(check_nccl_environment(old, environment).ok()) << "it takes both";
}

TEST(Nvidia, AnswersOnEveryMachine) {
  const NvidiaGpus here = query_nvidia_gpus();
  EXPECT_TRUE(has_nvml() || (here.driver_version.empty() && here.names.empty()));
}

}  // namespace
}  // namespace accelerate
