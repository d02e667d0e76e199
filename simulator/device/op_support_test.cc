// Sweeps the operator registry: operators run on a simulated device or fail with a clear error.
#include "simulator/device/op_info.h"

#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/version.h>

#include "absl/strings/match.h"
#include "simulator/device/install.h"
#include "simulator/device/sim_device.h"
#include "simulator/hardware/cluster_spec.h"

namespace accelerate::simulator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class OpSupportTest : public ::testing::Test {
 protected:
  OpSupportTest() {
    install_sim_device();
    SimDevice::numbered(0).reset(*ClusterSpec::parse("1x1:h100"), &clock_ns_, nullptr);
  }
  ~OpSupportTest() override { SimDevice::numbered(0).detach(); }

  int64_t clock_ns_ = 0;
};

std::vector<std::string> checked_in() {
  std::ifstream file("simulator/device/supported_ops.txt");
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

// The list is that of LibTorch 2.6. Other releases have other operators too, and more that the CPU
// runs: what 2.6 has and runs is run alike, but for what is cuDNN's.
TEST_F(OpSupportTest, IsTheCheckedInList) {
  const std::vector<std::string> listed = list_op_support();
  if (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR == 6) {
    EXPECT_EQ(listed, checked_in())
        << "if LibTorch changed: tools/dev bazel run //simulator/device:list_ops > "
           "simulator/device/supported_ops.txt";
    return;
  }
  std::map<std::string, std::string> here;
  for (const std::string& line : listed) here[line.substr(0, line.find(' '))] = line;
  int found = 0;
  for (const std::string& line : checked_in()) {
    const auto known = here.find(line.substr(0, line.find(' ')));
    if (known == here.end() || absl::EndsWith(line, " unsupported") ||
        absl::StartsWith(line, "aten::cudnn_")) {
      continue;
    }
    EXPECT_EQ(known->second, line);
    ++found;
  }
  EXPECT_GT(found, 1000);
}

TEST_F(OpSupportTest, LeavesNothingOutThatTheCpuHasAKernelFor) {
  auto& dispatcher = c10::Dispatcher::singleton();
  int supported = 0;
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    auto op = dispatcher.findSchema(name);
    if (!op || !absl::StartsWith(name.name, "aten::")) continue;
    if (!op->hasKernelForDispatchKey(c10::DispatchKey::CPU)) continue;
    EXPECT_NE(op_support(*op), OpSupport::kUnsupported) << name;
    ++supported;
  }
  EXPECT_GT(supported, 1000);
}

TEST_F(OpSupportTest, AnUnsupportedOperatorIsAnErrorThatNamesIt) {
  const at::Tensor image = at::ones({1, 1, 4, 4}, at::device(c10::Device("sim:0")));
  const at::Tensor grid = at::zeros({1, 4, 4, 2}, at::device(c10::Device("sim:0")));
  try {
    at::cudnn_grid_sampler(image, grid);
    FAIL() << "cuDNN ran";
  } catch (const c10::NotImplementedError& error) {
    EXPECT_THAT(std::string(error.what_without_backtrace()),
                AllOf(HasSubstr("device sim does not support aten::cudnn_grid_sampler"),
                      HasSubstr("no CPU kernel")));
  }
}

}  // namespace
}  // namespace accelerate::simulator
