#include "launch/settings/machine.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace accelerate::launch::settings {
namespace {

namespace fs = std::filesystem;

// A system with these device files, and render nodes of these vendors.
std::string system_with(const std::string& name, const std::vector<std::string>& files,
                        const std::vector<std::string>& vendors = {}) {
  const fs::path root = fs::path(::testing::TempDir()) / name;
  fs::remove_all(root);
  fs::create_directories(root / "dev/dri");
  for (const std::string& file : files) std::ofstream(root / "dev" / file);
  int number = 128;
  for (const std::string& vendor : vendors) {
    const std::string node = "renderD" + std::to_string(number++);
    std::ofstream(root / "dev/dri" / node);
    fs::create_directories(root / "sys/class/drm" / node / "device");
    std::ofstream(root / "sys/class/drm" / node / "device/vendor") << vendor << "\n";
  }
  return root.string();
}

TEST(Devices, AreCountedByTheirFiles) {
  const std::string root = system_with("two_gpus", {"nvidia0", "nvidia1", "nvidiactl", "null"});
  const Devices devices = find_devices(root, {});
  EXPECT_EQ(devices.kind, "gpu");
  EXPECT_EQ(devices.installed, 2);
  EXPECT_EQ(devices.visible, 2);
}

TEST(Devices, OfIntelAreRenderNodesOfItsVendor) {
  const std::string root = system_with("intel", {}, {"0x8086", "0x1a03", "0x8086"});
  const Devices devices = find_devices(root, {"CUDA_VISIBLE_DEVICES=0", "ZE_AFFINITY_MASK=1"});
  EXPECT_EQ(devices.kind, "xpu");
  EXPECT_EQ(devices.installed, 2);
  EXPECT_EQ(devices.visible, 1);
  // The display of a machine with others.
  EXPECT_EQ(find_devices(system_with("mixed", {"nvidia0"}, {"0x8086"}), {}).kind, "gpu");
}

TEST(Devices, OfAmdAreRenderNodesOfItsVendorWithTheComputeDriver) {
  const std::string root = system_with("amd", {"kfd"}, {"0x1002", "0x8086", "0x1002"});
  const Devices devices = find_devices(root, {});
  EXPECT_EQ(devices.kind, "gpu");
  EXPECT_EQ(devices.installed, 2);
  EXPECT_EQ(devices.visible, 2);
  EXPECT_EQ(find_devices(root, {"CUDA_VISIBLE_DEVICES=1"}).visible, 1);
  EXPECT_EQ(find_devices(system_with("display", {}, {"0x1002"}), {}).kind, "cpu");
  EXPECT_EQ(find_devices(system_with("intel_with_kfd", {"kfd"}, {"0x8086"}), {}).kind, "xpu");
}

// ROCm's runtime hides devices first; HIP, whose variable wins over CUDA's, some of the rest.
TEST(Devices, OfAmdAreHiddenByTheVariablesOfRocm) {
  const std::string root = system_with("rocm", {"kfd"}, {"0x1002", "0x1002", "0x1002", "0x1002"});
  const auto found = [&](const std::vector<std::string>& environment) {
    return find_devices(root, environment);
  };
  EXPECT_TRUE(found({}).are_amd);
  EXPECT_EQ(found({"HIP_VISIBLE_DEVICES=0,2"}).visible, 2);
  EXPECT_EQ(found({"HIP_VISIBLE_DEVICES=0,2"}).installed, 4);
  EXPECT_EQ(found({"HIP_VISIBLE_DEVICES=0,2,3", "CUDA_VISIBLE_DEVICES=1"}).visible, 3);
  EXPECT_EQ(found({"ROCR_VISIBLE_DEVICES=2,3"}).visible, 2);
  // The second is beyond those that are left.
  const Devices both = found({"ROCR_VISIBLE_DEVICES=2,3", "HIP_VISIBLE_DEVICES=1,2"});
  EXPECT_EQ(both.installed, 2);
  EXPECT_EQ(both.visible, 1);
  EXPECT_EQ(found({"ROCR_VISIBLE_DEVICES=GPU-a,GPU-b", "CUDA_VISIBLE_DEVICES=0"}).visible, 1);
  EXPECT_EQ(found({"ROCR_VISIBLE_DEVICES="}).kind, "cpu");
  EXPECT_EQ(found({"HIP_VISIBLE_DEVICES=-1"}).kind, "cpu");
  const std::string nvidia = system_with("cuda", {"nvidia0", "nvidia1"});
  EXPECT_EQ(find_devices(nvidia, {"HIP_VISIBLE_DEVICES=0", "ROCR_VISIBLE_DEVICES=0"}).visible, 2);
}

TEST(Devices, ThatAreHiddenAreNone) {
  const std::string root = system_with("hidden", {"nvidia0"});
  for (const char* word : {"CUDA_VISIBLE_DEVICES=", "CUDA_VISIBLE_DEVICES=-1"}) {
    const Devices devices = find_devices(root, {word});
    EXPECT_EQ(devices.kind, "cpu");
    EXPECT_EQ(devices.visible, 0);
    EXPECT_EQ(devices.installed, 1);
  }
  EXPECT_EQ(find_devices(system_with("none", {"null"}), {}).kind, "cpu");
}

TEST(Devices, AreVisibleUpToTheFirstThatIsNotThere) {
  EXPECT_EQ(count_visible(4, "0, 2"), 2);
  EXPECT_EQ(count_visible(4, "0,-1,2"), 1);
  EXPECT_EQ(count_visible(4, "3,4,1"), 1);
  EXPECT_EQ(count_visible(4, "1,1"), 1);
  EXPECT_EQ(count_visible(4, "GPU-abc,GPU-def"), 2);
  EXPECT_EQ(count_visible(0, "GPU-abc"), 0);
}

}  // namespace
}  // namespace accelerate::launch::settings
