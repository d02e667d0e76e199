#include "accelerate/platform/host_files.h"
#include "launch/settings/machine.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace accelerate::launcher::settings {
namespace {

namespace fs = std::filesystem;

// A system with these device files, and render nodes of these vendors.
class System {
 public:
  explicit System(const std::vector<std::string>& files,
                  const std::vector<std::string>& vendors = {}) {
    const fs::path root = folder_.path();
    fs::create_directories(root / "dev/dri");
    for (const std::string& file : files) std::ofstream(root / "dev" / file);
    int number = 128;
    for (const std::string& vendor : vendors) {
      const std::string node = "renderD" + std::to_string(number++);
      std::ofstream(root / "dev/dri" / node);
      fs::create_directories(root / "sys/class/drm" / node / "device");
      std::ofstream(root / "sys/class/drm" / node / "device/vendor") << vendor << "\n";
    }
  }

  Devices devices(const std::vector<std::string>& environment = {}) const {
    return find_devices(folder_.path(), environment);
  }

 private:
  const TemporaryFolder folder_;
};

TEST(Devices, AreCountedByTheirFiles) {
  const System system({"nvidia0", "nvidia1", "nvidiactl", "null"});
  const Devices devices = system.devices();
  EXPECT_EQ(devices.kind, "gpu");
  EXPECT_EQ(devices.installed, 2);
  EXPECT_EQ(devices.visible, 2);
}

TEST(Devices, AreHiddenByTheVariableOfTheirKindAlone) {
  const System tpu({"accel0", "accel1"});
  EXPECT_EQ(tpu.devices({"CUDA_VISIBLE_DEVICES="}).visible, 2);
  EXPECT_EQ(tpu.devices({"TPU_VISIBLE_CHIPS=1"}).visible, 1);
  const System neuron({"neuron0", "neuron1"});
  EXPECT_EQ(neuron.devices({"TPU_VISIBLE_CHIPS="}).visible, 2);
  EXPECT_EQ(neuron.devices({"NEURON_RT_VISIBLE_CORES=0"}).visible, 1);
}

TEST(Devices, OfIntelAreRenderNodesOfItsVendor) {
  const System system({}, {"0x8086", "0x1a03", "0x8086"});
  const Devices devices = system.devices({"CUDA_VISIBLE_DEVICES=0", "ZE_AFFINITY_MASK=1"});
  EXPECT_EQ(devices.kind, "xpu");
  EXPECT_EQ(devices.installed, 2);
  EXPECT_EQ(devices.visible, 1);
  // The display of a machine with others.
  EXPECT_EQ(System({"nvidia0"}, {"0x8086"}).devices().kind, "gpu");
}

TEST(Devices, OfAmdAreRenderNodesOfItsVendorWithTheComputeDriver) {
  const System system({"kfd"}, {"0x1002", "0x8086", "0x1002"});
  const Devices devices = system.devices();
  EXPECT_EQ(devices.kind, "gpu");
  EXPECT_EQ(devices.installed, 2);
  EXPECT_EQ(devices.visible, 2);
  EXPECT_EQ(system.devices({"CUDA_VISIBLE_DEVICES=1"}).visible, 1);
  EXPECT_EQ(System({}, {"0x1002"}).devices().kind, "cpu");
  EXPECT_EQ(System({"kfd"}, {"0x8086"}).devices().kind, "xpu");
}

// ROCm's runtime hides devices first; HIP, whose variable wins over CUDA's, some of the rest.
TEST(Devices, OfAmdAreHiddenByTheVariablesOfRocm) {
  const System rocm({"kfd"}, {"0x1002", "0x1002", "0x1002", "0x1002"});
  const auto found = [&](const std::vector<std::string>& environment) {
    return rocm.devices(environment);
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
  const System cuda({"nvidia0", "nvidia1"});
  EXPECT_EQ(cuda.devices({"HIP_VISIBLE_DEVICES=0", "ROCR_VISIBLE_DEVICES=0"}).visible, 2);
}

TEST(Devices, ThatAreHiddenAreNone) {
  const System system({"nvidia0"});
  for (const char* word : {"CUDA_VISIBLE_DEVICES=", "CUDA_VISIBLE_DEVICES=-1"}) {
    const Devices devices = system.devices({word});
    EXPECT_EQ(devices.kind, "cpu");
    EXPECT_EQ(devices.visible, 0);
    EXPECT_EQ(devices.installed, 1);
  }
  EXPECT_EQ(System({"null"}).devices().kind, "cpu");
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
}  // namespace accelerate::launcher::settings
