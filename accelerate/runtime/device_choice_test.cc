#include "accelerate/runtime/device_choice.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const DeviceKind kGpus{"gpu", c10::kCUDA, 4};
const DeviceKind kXpus{"xpu", c10::kXPU, 2};
const DeviceKind kMps{"mps", c10::kMPS, 1};

// The device, or why there is none.
std::string choose(std::initializer_list<std::pair<const char*, const char*>> variables, int rank,
                   const std::vector<DeviceKind>& present, int world_size = 8) {
  Environment environment;
  for (const char* name : {"ACCELERATE_TORCH_DEVICE", "ACCELERATE_USE_CPU"}) {
    environment.unset(name);
  }
  for (auto [name, value] : variables) environment.set(name, value);
  auto device = choose_device(environment, Topology::uniform(rank, 1, world_size), present);
  return device.ok() ? device->str() : std::string(device.status().message());
}

TEST(DeviceChoice, GivesRanksTheDevicesInTurn) {
  EXPECT_EQ(choose({}, 0, {kGpus}), "cuda:0");
  EXPECT_EQ(choose({}, 3, {kGpus}), "cuda:3");
  EXPECT_EQ(choose({}, 5, {kGpus}), "cuda:1");
}

// Devices are counted on each node: the second rank of the second node has its second device.
TEST(DeviceChoice, GoesByTheRankOnTheNode) {
  Environment environment;
  environment.unset("ACCELERATE_USE_CPU");
  const Topology topology = Topology::uniform(/*rank=*/4, /*num_nodes=*/2, /*ranks_per_node=*/3);
  for (const char* named : {"", "cuda"}) {
    environment.set("ACCELERATE_TORCH_DEVICE", named);
    const auto device = choose_device(environment, topology, {kGpus});
    ASSERT_TRUE(device.ok()) << device.status();
    EXPECT_EQ(device->str(), "cuda:1") << named;
  }
}

TEST(DeviceChoice, TakesTheFirstPresentKindAndTheCpuWithoutAny) {
  EXPECT_EQ(choose({}, 1, {kGpus, kXpus}), "cuda:1");
  EXPECT_EQ(choose({}, 1, {kXpus}), "xpu:1");
  EXPECT_EQ(choose({}, 1, {}), "cpu");
  EXPECT_EQ(choose({}, 0, {kMps}, 1), "mps:0");
  EXPECT_EQ(choose({}, 0, {kMps}, 2), "cpu");
}

TEST(DeviceChoice, ObeysTheEnvironment) {
  EXPECT_EQ(choose({{"ACCELERATE_USE_CPU", "yes"}}, 1, {kGpus}), "cpu");
  EXPECT_EQ(choose({{"ACCELERATE_USE_CPU", "false"}}, 1, {kGpus}), "cuda:1");
  EXPECT_EQ(choose({{"ACCELERATE_TORCH_DEVICE", "cpu"}}, 1, {kGpus}), "cpu");
  EXPECT_EQ(choose({{"ACCELERATE_TORCH_DEVICE", "xpu"}}, 3, {kGpus, kXpus}), "xpu:1");
  EXPECT_EQ(
      choose({{"ACCELERATE_TORCH_DEVICE", "cuda:2"}, {"ACCELERATE_USE_CPU", "1"}}, 0, {kGpus}),
      "cuda:2");
}

TEST(DeviceChoice, NamesTheVariableThatAsksForTheImpossible) {
  EXPECT_THAT(choose({{"ACCELERATE_TORCH_DEVICE", "toaster"}}, 0, {kGpus}),
              AllOf(HasSubstr("ACCELERATE_TORCH_DEVICE=\"toaster\" is not a device"),
                    HasSubstr("4 x cuda")));
  EXPECT_THAT(choose({{"ACCELERATE_TORCH_DEVICE", "cuda:4"}}, 0, {kGpus}),
              HasSubstr("ACCELERATE_TORCH_DEVICE=\"cuda:4\" is not on this machine"));
  EXPECT_THAT(choose({{"ACCELERATE_TORCH_DEVICE", "cuda"}}, 0, {}),
              HasSubstr("is not on this machine; present: cpu"));
  EXPECT_THAT(choose({{"ACCELERATE_USE_CPU", "maybe"}}, 0, {}), HasSubstr("ACCELERATE_USE_CPU"));
}

TEST(DeviceChoice, KnowsEachFamilysBackend) {
  const std::pair<const char*, const char*> expected[] = {
      {"cpu", "gloo"},      {"gpu", "nccl"},  {"npu", "hccl"},  {"hpu", "hccl"},
      {"mlu", "cncl"},      {"sdaa", "tccl"}, {"musa", "mccl"}, {"xpu", "xccl"},
      {"neuron", "neuron"}, {"tpu", "xla"},   {"mps", "gloo"}};
  for (auto [family, backend] : expected) EXPECT_EQ(default_backend(family), backend) << family;
}

TEST(DeviceChoice, TakesTheDefaultBackendOnlyIfItIsThere) {
  EXPECT_EQ(choose_backend("", "cpu", {"gloo"}), "gloo");
  EXPECT_EQ(choose_backend("", "gpu", {"gloo", "nccl"}), "nccl");
  EXPECT_EQ(choose_backend("gloo", "gpu", {"gloo"}), "gloo");
  try {
    choose_backend("", "gpu", {"gloo"});
    FAIL() << "no backend \"nccl\" is there";
  } catch (const c10::ValueError& error) {
    EXPECT_THAT(error.what_without_backtrace(),
                AllOf(HasSubstr("\"nccl\""), HasSubstr("gloo"), HasSubstr("ACCELERATE_USE_CPU")));
  }
}

TEST(DeviceChoice, FindsNoAcceleratorThatCannotBeUsed) {
  for (const DeviceKind& kind : present_devices()) EXPECT_GT(kind.count, 0) << kind.family;
}

}  // namespace
}  // namespace accelerate
