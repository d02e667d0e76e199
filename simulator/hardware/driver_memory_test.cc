#include "simulator/hardware/driver_memory.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "simulator/hardware/cluster_spec.h"
#include "simulator/hardware/presets.h"

namespace accelerate::simulator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kGiB = int64_t{1} << 30;

ClusterSpec parsed(const std::string& text) {
  const absl::StatusOr<ClusterSpec> spec = ClusterSpec::parse(text);
  EXPECT_TRUE(spec.ok()) << spec.status();
  return *spec;
}

DriverMemory of(const std::string& text) { return driver_memory_of(*parsed(text).device).value(); }

TEST(DriverMemory, IsOfMeasuredDevicesAlone) {
  for (const Preset& preset : presets()) {
    DeviceModel device = preset.device;
    EXPECT_EQ(driver_memory_of(device).has_value(), device.efficiency == Efficiency::kMeasured)
        << device.name;
    device.efficiency = Efficiency::kIdeal;
    EXPECT_FALSE(driver_memory_of(device)) << device.name;
  }
  for (const std::string device : {"a100-80", "h100", "h200", "b200"}) {
    const DriverMemory memory = of("1x1:" + device);
    const int64_t nominal = find_device(device)->memory_bytes;
    EXPECT_LT(memory.visible_bytes, nominal);
    EXPECT_GT(memory.visible_bytes, nominal / 100 * 98);
    EXPECT_GT(memory.context_bytes, 400 * kMiB);
    EXPECT_LT(memory.context_bytes, kGiB);
  }
  // Other memory than usual is what the driver shows.
  EXPECT_EQ(of("1x1:h100,mem=4GiB").visible_bytes, 4 * kGiB);
  // A device that holds no context.
  for (const char* text : {"1x1:h100,mem=80MiB", R"({"num_nodes": 1, "ranks_per_node": 1,
       "device": {"name": "h100", "memory_bytes": "80MiB"}})"}) {
    EXPECT_THAT(ClusterSpec::parse(text).status().message(),
                AllOf(HasSubstr("which the context of a process alone takes, or "
                                "\"efficiency=ideal\""),
                      HasSubstr("at")))
        << text;
  }
  EXPECT_TRUE(ClusterSpec::parse("1x1:h100,mem=80MiB,efficiency=ideal").ok());
}

TEST(DriverMemory, CountsTheBuffersOfCommunicators) {
  const DeviceModel device = *parsed("4x8:h100").device;
  EXPECT_EQ(communicator_bytes(*parsed("4x8:h100,efficiency=ideal").device,
                               {.ranks_per_node = 8, .channels = 24}),
            0)
      << "ideal";
  // 24 channels of 12 MiB, and what two devices need besides, as aiconfigurator counts them.
  EXPECT_EQ(communicator_bytes(device, {.ranks_per_node = 2, .channels = 24}), 342 * kMiB);
  // 16 channels of NVLS with 8 heads.
  EXPECT_EQ(
      communicator_bytes(
          device, {.ranks_per_node = 8, .channels = 24, .nvls_channels = 16, .nvls_heads = 8}),
      (342 + 256) * kMiB);
  // Several nodes: 16 channels, of which two leave and enter the node at each rank.
  const int64_t network = 524'288 + 2 * (4'915'200 + 4'194'304);
  EXPECT_EQ(communicator_bytes(device, {.ranks_per_node = 8, .spans_nodes = true, .channels = 16}),
            (54 + 14 * 12) * kMiB + 2 * network);
  EXPECT_EQ(communicator_bytes(device, {.ranks_per_node = 1, .spans_nodes = true, .channels = 4}),
            54 * kMiB + 4 * network);
}

TEST(DriverMemory, ReadsSettingsOfLibtorchsAllocator) {
  DeviceModel device = *parsed("1x1:h100").device;
  EXPECT_EQ(apply_allocator_settings(
                "garbage_collection_threshold:0.8, expandable_segments:True,max_split_size_mb:128",
                device),
            std::nullopt);
  EXPECT_EQ(device.expandable_segments, true);
  EXPECT_EQ(device.max_split_bytes, 128 * kMiB);
  // The least that LibTorch takes, and of two the last.
  DeviceModel least = *parsed("1x1:h100").device;
  EXPECT_EQ(apply_allocator_settings("expandable_segments:True,max_split_size_mb:64,"
                                     "expandable_segments:False,max_split_size_mb:21",
                                     least),
            std::nullopt);
  EXPECT_EQ(least.max_split_bytes, 21 * kMiB);
  EXPECT_EQ(least.expandable_segments, false);
  // The cluster's text wins.
  DeviceModel set = *parsed("1x1:h100,expandable_segments=false").device;
  EXPECT_EQ(apply_allocator_settings("expandable_segments:True", set), std::nullopt);
  EXPECT_EQ(set.expandable_segments, false);
  // Nothing is read where no allocator is modelled.
  DeviceModel ideal = *parsed("1x1:h100,efficiency=ideal").device;
  EXPECT_EQ(apply_allocator_settings("expandable_segments:maybe", ideal), std::nullopt);
  EXPECT_EQ(ideal.expandable_segments, std::nullopt);

  const auto error = [&](const std::string& settings) {
    return apply_allocator_settings(settings, device).value_or("");
  };
  EXPECT_THAT(error("expandable_segments:1"),
              HasSubstr("expected True or False for expandable_segments, got \"1\""));
  EXPECT_THAT(error("max_split_size_mb:20"), HasSubstr("a number of MiB above 20"));
  EXPECT_THAT(error("backend:cudaMallocAsync"), HasSubstr("expected native"));
  EXPECT_THAT(error("roundup_power2_divisions:4"), HasSubstr("is not modelled"));
}

}  // namespace
}  // namespace accelerate::simulator
