#include "accelerate/big_model/infer_device_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "accelerate/runtime/device_cache.h"
#include "accelerate/testing/fake_runtime.h"

namespace accelerate {
namespace {

using testing::ElementsAre;
using testing::Pair;

class Machine final : public FakeRuntime {
 public:
  FreeMemory free_memory() const override {
    return {.accelerators = {{0, 200}, {1, 200}}, .host = 1000};
  }
};

torch::nn::Sequential model() {
  return torch::nn::Sequential(torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4),
                               torch::nn::Linear(4, 5));
}

TEST(ModuleTree, HasTheModulesClassesAndTies) {
  torch::nn::Sequential net(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4));
  net->ptr<torch::nn::LinearImpl>(1)->weight.set_data(
      net->ptr<torch::nn::LinearImpl>(0)->weight.data());
  const ModuleTree tree = module_tree(*net);
  EXPECT_EQ(tree.module(0).class_name, "Sequential");
  EXPECT_EQ(tree.module(1).class_name, "Linear");
  EXPECT_THAT(tree.tied_parameters(), ElementsAre(ElementsAre("0.weight", "1.weight")));
}

TEST(InferAutoDeviceMap, AsksTheRuntimeForLimits) {
  Machine machine;
  const RuntimeScope scope(machine);
  EXPECT_THAT(get_max_memory(), ElementsAre(Pair(DevicePlacement::accelerator(0), 200.0),
                                            Pair(DevicePlacement::accelerator(1), 200.0),
                                            Pair(DevicePlacement::cpu(), 1000.0)));
  EXPECT_EQ(calculate_maximum_sizes(*model()).total, 236);
  const DeviceMap map = infer_auto_device_map(*model());
  EXPECT_EQ(map.json(), R"({"0":0,"1":1,"2":1})");
  check_device_map(*model(), map);
}

// On a machine whose accelerator 1, where it answers, has the host's memory.
TEST(GetMaxMemory, HasNoHostBesideIntegratedDevices) {
  class Integrated final : public FakeRuntime {
   public:
    c10::Device device() const override { return own; }
    FreeMemory free_memory() const override { return free; }
    c10::Device own = c10::Device(c10::kXPU, 0);
    FreeMemory free = {.accelerators = {{0, 200}, {1, 300}}, .host = 1000};
  } machine;
  const RuntimeScope scope(machine);
  register_shared_memory(c10::kXPU, [](int index) { return index == 1; });
  EXPECT_THAT(get_max_memory(), ElementsAre(Pair(DevicePlacement::accelerator(0), 200.0),
                                            Pair(DevicePlacement::accelerator(1), 300.0)));
  machine.free.accelerators.pop_back();
  EXPECT_THAT(get_max_memory(), ElementsAre(Pair(DevicePlacement::accelerator(0), 200.0),
                                            Pair(DevicePlacement::cpu(), 1000.0)));
  machine.own = c10::Device(c10::kMPS, 0);
  EXPECT_THAT(get_max_memory(), ElementsAre(Pair(DevicePlacement::mps(), 1000.0)));
}

}  // namespace
}  // namespace accelerate
