#include "accelerate/comm/random.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/runtime/runtime.h"
#include "accelerate/testing/fake_runtime.h"
#include "accelerate/testing/threaded_group.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

// Rank `rank` of four, on a CPU or what takes its place.
class DeviceRuntime : public FakeRuntime {
 public:
  explicit DeviceRuntime(int rank, c10::Device device = c10::kCPU, std::string family = "cpu")
      : FakeRuntime(Topology::uniform(rank, 1, 4)), device_(device), family_(std::move(family)) {}

  c10::Device device() const override { return device_; }
  std::string device_family() const override { return family_; }

 private:
  c10::Device device_;
  std::string family_;
};

at::Generator default_generator() { return at::detail::getDefaultCPUGenerator(); }

int64_t draw(at::Generator generator) {
  return at::randint(1 << 30, {}, generator, at::kLong).item<int64_t>();
}

TEST(DefaultGenerator, GoesByTheKindOfDevice) {
  const c10::Device device(c10::kPrivateUse1, 0);
  EXPECT_EQ(device_rng_type(DeviceRuntime(0)), RNGType::kTorch);
  EXPECT_EQ(device_rng_type(DeviceRuntime(0, device, "gpu")), RNGType::kCuda);
  EXPECT_EQ(device_rng_type(DeviceRuntime(0, device, "tpu")), RNGType::kXla);
  EXPECT_EQ(device_rng_type(DeviceRuntime(0, device, "npu")), RNGType::kNpu);
  EXPECT_EQ(device_rng_type(DeviceRuntime(0, device, "mps")), RNGType::kDevice);
  // A rank on the CPU of a machine with devices.
  EXPECT_EQ(device_rng_type(DeviceRuntime(0, c10::kCPU, "gpu")), RNGType::kTorch);
}

TEST(DefaultGenerator, IsThereForTheRanksOwnDeviceOnly) {
  const DeviceRuntime runtime(2);
  EXPECT_EQ(default_generator(RNGType::kTorch, runtime), default_generator());
  EXPECT_EQ(default_generator(RNGType::kDevice, runtime), default_generator());
  EXPECT_THROW(default_generator(RNGType::kGenerator, runtime), c10::ValueError);
  try {
    default_generator(RNGType::kNpu, DeviceRuntime(2, c10::Device(c10::kPrivateUse1, 2), "gpu"));
    FAIL() << "no exception";
  } catch (const c10::ValueError& error) {
    EXPECT_THAT(error.what_without_backtrace(),
                AllOf(HasSubstr("rank 2"), HasSubstr("\"npu\""), HasSubstr("\"cuda\"")));
  }
}

TEST(SynchronizeRngState, GivesEveryRankTheStateOfRankZero) {
  std::vector<int64_t> drawn(3);
  std::vector<at::Generator> generators;
  for (uint64_t rank = 0; rank < 3; ++rank) {
    generators.push_back(at::detail::createCPUGenerator(rank));
    // Not at their beginning, and not all equally far.
    for (uint64_t i = 0; i <= rank; ++i) draw(generators.back());
  }
  at::Generator expected = generators[0].clone();
  run_ranks(3, [&](const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
    const auto rank = static_cast<size_t>(group->getRank());
    synchronize_rng_states(group, {RNGType::kGenerator}, generators[rank]);
    drawn[rank] = draw(generators[rank]);
  });
  EXPECT_THAT(drawn, Each(draw(expected)));
}

TEST(SynchronizeRngState, LeavesARankAloneAsItIs) {
  DeviceRuntime runtime(0);
  RuntimeScope scope(runtime);
  at::manual_seed(5);
  const int64_t first = draw(default_generator());
  at::manual_seed(5);
  at::Generator own = at::detail::createCPUGenerator(5);
  synchronize_rng_states({}, {RNGType::kTorch, RNGType::kDevice, RNGType::kGenerator}, own);
  EXPECT_EQ(draw(default_generator()), first);
  EXPECT_EQ(draw(own), first);
}

TEST(SynchronizeRngState, NeedsTheGeneratorThatIsGivenByHand) {
  EXPECT_THROW(synchronize_rng_state({}, RNGType::kGenerator), c10::ValueError);
}

}  // namespace
}  // namespace accelerate
