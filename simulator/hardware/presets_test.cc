#include "simulator/hardware/presets.h"

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accelerate::simulator {
namespace {

using ::testing::IsSupersetOf;

TEST(Presets, HaveTheDevicesThatWeDocument) {
  EXPECT_THAT(device_names(),
              IsSupersetOf({"v100", "a100-40", "a100-80", "h100", "h200", "b200", "mi300x",
                            "ascend910b", "gaudi2", "max1550", "tpu-v4", "tpu-v5e", "tpu-v5p",
                            "mlu", "sdaa", "musa", "neuron", "cpu"}));
}

TEST(Presets, CoverEveryFamily) {
  std::set<std::string> families;
  for (const Preset& preset : presets()) families.insert(preset.device.family);
  EXPECT_EQ(families, (std::set<std::string>{"gpu", "npu", "hpu", "xpu", "mlu", "sdaa", "musa",
                                             "neuron", "tpu", "cpu"}));
}

TEST(Presets, StateEveryConstant) {
  for (const Preset& preset : presets()) {
    const DeviceModel& device = preset.device;
    SCOPED_TRACE(device.name);
    EXPECT_GT(device.memory_bytes, 0);
    EXPECT_GT(device.memory_bytes_per_second, 0);
    for (double flops : device.flops_per_second) EXPECT_GT(flops, 0);
    EXPECT_GT(device.launch_ns, 0);
    EXPECT_GT(device.kernel_ns_min, 0);
    EXPECT_GT(device.host_bytes_per_second, 0);
    EXPECT_GT(preset.devices_per_node, 0);
    EXPECT_GT(preset.node_link.bytes_per_second, 0);
    EXPECT_GT(preset.node_link.latency_ns, 0);
    EXPECT_EQ(preset.node_fabric == NodeFabric::kTorus, preset.torus_axes > 0);
    if (preset.torus_axes > 0) continue;
    EXPECT_GT(preset.nic.bytes_per_second, 0);
    EXPECT_GT(preset.nic.latency_ns, 0);
    EXPECT_GT(preset.nics_per_node, 0);
  }
}

TEST(Presets, AreNoSlowerInFewerBits) {
  for (const Preset& preset : presets()) {
    const DeviceModel& device = preset.device;
    SCOPED_TRACE(device.name);
    EXPECT_LE(device.flops(MathType::kFp64), device.flops(MathType::kFp32));
    EXPECT_LE(device.flops(MathType::kFp32), device.flops(MathType::kFp16));
    EXPECT_LE(device.flops(MathType::kBf16), device.flops(MathType::kFp8));
  }
}

TEST(Presets, MultiplyFp8WhereItHasARateOfItsOwn) {
  std::set<std::string> names;
  for (const Preset& preset : presets()) {
    if (multiplies_fp8(preset.device)) names.insert(preset.device.name);
  }
  EXPECT_EQ(names, (std::set<std::string>{"h100", "h200", "b200", "mi300x", "gaudi2"}));
  EXPECT_FALSE(multiplies_fp8({.name = "another"}));
}

TEST(Presets, TellMakersAndGenerationsByTheirNames) {
  for (const Preset& preset : presets()) {
    EXPECT_EQ(is_amd(preset.device), preset.device.name == "mi300x") << preset.device.name;
    EXPECT_FALSE(is_first_gaudi(preset.device)) << preset.device.name;
  }
  EXPECT_TRUE(is_amd({.name = "mi250x"}));
  EXPECT_TRUE(is_first_gaudi({.name = "gaudi"}));
  EXPECT_TRUE(is_first_gaudi({.name = "gaudi1"}));
}

TEST(Presets, AnswerToTheirAliasesInAnyCase) {
  EXPECT_EQ(find_device("a100"), find_device("a100-80"));
  EXPECT_EQ(find_device("910b")->name, "ascend910b");
  EXPECT_EQ(find_device("H100")->name, "h100");
  EXPECT_EQ(find_device("h1000"), nullptr);
  EXPECT_EQ(find_device(""), nullptr);
}

TEST(Presets, HaveNoNameTwice) {
  std::set<std::string> names;
  for (const Preset& preset : presets()) {
    EXPECT_TRUE(names.insert(preset.device.name).second) << preset.device.name;
    for (const std::string& alias : preset.aliases)
      EXPECT_TRUE(names.insert(alias).second) << alias;
  }
}

TEST(Presets, AgreeWithTheDataSheetOfAnH100) {
  const DeviceModel& h100 = *find_device("h100");
  EXPECT_EQ(h100.memory_bytes, int64_t{80} << 30);
  EXPECT_EQ(h100.memory_bytes_per_second, 3.35e12);
  EXPECT_EQ(h100.flops(MathType::kFp32), 67e12);
  EXPECT_EQ(h100.flops(MathType::kBf16), 989.5e12);
  EXPECT_EQ(find_preset("h100")->node_link.bytes_per_second, 450e9);
  EXPECT_EQ(find_preset("h100")->nic.bytes_per_second, 50e9);
}

}  // namespace
}  // namespace accelerate::simulator
