#include "accelerate/comm/backends/backend_registry.h"

#include <chrono>
#include <string>
#include <vector>

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
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

// As a bare name does: MPI carries CPU tensors as well.
TEST(BackendChoice, AListWithoutTheCpuLeavesItToABackendThatCarriesItsTensors) {
  EXPECT_EQ(backends_by_device("cuda:mpi", c10::kCUDA),
            (Choice{{c10::kCUDA, "mpi"}, {c10::kCPU, "mpi"}}));
  EXPECT_EQ(backends_by_device("cuda:nccl,xpu:xccl", c10::kCUDA),
            (Choice{{c10::kCUDA, "nccl"}, {c10::kCPU, "gloo"}}));
}

TEST(BackendRegistry, MakesTheOneOfTheNameAndListsThoseThereAre) {
  std::vector<std::string> made;
  for (const char* name : {"test_b", "test_a"}) {
    register_backend(name, [&made, name](const BackendOptions& given) {
      made.push_back(absl::StrCat(name, " ", given.rank, " of ", given.size));
      return c10::intrusive_ptr<c10d::Backend>();
    });
  }
  BackendOptions options;
  options.rank = 2;
  options.size = 3;
  make_backend("test_a", options);
  EXPECT_THAT(made, ElementsAre("test_a 2 of 3"));
  try {
    make_backend("test_c", options);
    ADD_FAILURE() << "not refused";
  } catch (const c10::ValueError& error) {
    EXPECT_THAT(
        error.what_without_backtrace(),
        AllOf(HasSubstr("unknown backend \"test_c\"; linked in: "), HasSubstr("test_a, test_b")));
  }
  EXPECT_THAT(made, ElementsAre("test_a 2 of 3"));
}

TEST(Rendezvous, IsThatOfTheLauncher) {
  EXPECT_EQ(find_rendezvous("test_launcher"), nullptr);
  register_rendezvous("test_launcher", [](const std::string& text, int, int,
                                          std::chrono::milliseconds) { return text + "!"; });
  const RendezvousExchange* found = find_rendezvous("test_launcher");
  ASSERT_NE(found, nullptr);
  EXPECT_EQ((*found)("address", 0, 1, std::chrono::seconds(1)), "address!");
  EXPECT_EQ(find_rendezvous("test"), nullptr);
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
