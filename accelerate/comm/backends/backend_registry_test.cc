#include "accelerate/comm/backends/backend_registry.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accelerate {
namespace {

using ::testing::HasSubstr;
using Choice = std::vector<DeviceBackend>;

std::string error_of(const std::string& choice, c10::DeviceType device) {
  try {
    backends_by_device(choice, device);
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "";
}

TEST(BackendChoice, ABareNameIsTheDevicesBackend) {
  EXPECT_EQ(backends_by_device("mpi", c10::kCPU), (Choice{{c10::kCPU, "mpi"}}));
  EXPECT_EQ(backends_by_device("nccl", c10::kCUDA),
            (Choice{{c10::kCUDA, "nccl"}, {c10::kCPU, "gloo"}}));
  EXPECT_EQ(backends_by_device("mpi", c10::kCUDA),
            (Choice{{c10::kCUDA, "mpi"}, {c10::kCPU, "mpi"}}));
}

TEST(BackendChoice, AListNamesThemByDevice) {
  EXPECT_EQ(backends_by_device("cpu:gloo,cuda:nccl", c10::kCUDA),
            (Choice{{c10::kCUDA, "nccl"}, {c10::kCPU, "gloo"}}));
  EXPECT_EQ(backends_by_device("cuda:nccl, cpu:mpi", c10::kCUDA),
            (Choice{{c10::kCUDA, "nccl"}, {c10::kCPU, "mpi"}}));
  EXPECT_EQ(backends_by_device("xpu:xccl", c10::kXPU),
            (Choice{{c10::kXPU, "xccl"}, {c10::kCPU, "gloo"}}));
}

TEST(BackendChoice, PassesOverDevicesThatTheRankDoesNotUse) {
  EXPECT_EQ(backends_by_device("cpu:gloo,cuda:nccl", c10::kCPU), (Choice{{c10::kCPU, "gloo"}}));
}

TEST(BackendChoice, RefusesWhatIsNoChoice) {
  EXPECT_THAT(error_of("cpu:gloo,nccl", c10::kCPU), HasSubstr("neither a name nor a list"));
  EXPECT_THAT(error_of("cpu:", c10::kCPU), HasSubstr("neither a name nor a list"));
  EXPECT_THAT(error_of("cpu:gloo,", c10::kCPU), HasSubstr("neither a name nor a list"));
  EXPECT_THAT(error_of("cpu:gloo,cpu:mpi", c10::kCPU), HasSubstr("names two for cpu"));
  EXPECT_THAT(error_of("gpu:nccl", c10::kCPU), HasSubstr("\"gpu\" is not a device type"));
  EXPECT_THAT(error_of("cpu:gloo", c10::kCUDA), HasSubstr("names none for cuda"));
}

}  // namespace
}  // namespace accelerate
