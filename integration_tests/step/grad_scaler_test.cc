// A gradient scaler by itself on simulated devices: where its state is, and what counts of
// parameters on several devices.
#include <limits>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "accelerate/precision/grad_scaler.h"
#include "simulator/cluster/cluster.h"
#include "simulator/testing/topology_suite.h"

namespace accelerate {
namespace {

using simulator::Rank;
using torch::Tensor;

constexpr double kInf = std::numeric_limits<double>::infinity();

Tensor parameter(c10::Device device) {
  return torch::ones({2}, torch::TensorOptions(device)).requires_grad_(true);
}

TOPOLOGY_SUITE(GradScalerOnDevices, .also = {"1x2:ascend910b"}, .min_ranks = 2,
               .hardware = simulator::Hardware::kGpu);

TEST_P(GradScalerOnDevices, UnscalesOnEachDeviceAndSkipsForAnInfiniteGradientOnAny) {
  for (const bool on_host : {false, true}) {
    make_cluster().run_on_every_rank([&](Rank& rank) {
      Accelerator accelerator;
      const Tensor on_device = parameter(accelerator.device());
      const Tensor beside = parameter(c10::kCPU);
      torch::optim::SGD optimizer(std::vector<Tensor>{on_device, beside},
                                  torch::optim::SGDOptions(1.0));
      GradScaler scaler({.init_scale = 8}, accelerator.state().group());
      const auto backward = [&] {
        optimizer.zero_grad();
        const std::vector<Tensor> losses =
            scaler.scale(std::vector<Tensor>{on_device.sum(), beside.sum()});
        EXPECT_EQ(losses[0].device(), accelerator.device());
        EXPECT_TRUE(losses[1].is_cpu());
        for (const Tensor& loss : losses) loss.backward();
      };
      backward();
      if (rank.index() == 1) (on_host ? beside : on_device).mutable_grad()[0] = kInf;
      EXPECT_FALSE(scaler.step(optimizer));
      scaler.update();
      EXPECT_EQ(scaler.get_scale(), 4);
      for (const Tensor& each : {on_device, beside}) {
        EXPECT_TRUE(each.cpu().equal(torch::ones({2})));
      }
      backward();
      scaler.unscale_(optimizer);
      for (const Tensor& each : {on_device, beside}) {
        EXPECT_TRUE(each.grad().cpu().equal(torch::ones({2})));
      }
      EXPECT_TRUE(scaler.step(optimizer));
      for (const Tensor& each : {on_device, beside}) {
        EXPECT_TRUE(each.cpu().equal(torch::zeros({2})));
      }
    });
  }
}

// The scale moves to the device with the first loss; its state reads the same before and after.
TEST_P(GradScalerOnDevices, AdoptsAStateThatAnotherRankHas) {
  make_cluster().run_on_every_rank([](Rank& rank) {
    Accelerator accelerator;
    GradScaler scaler({.init_scale = 8}, accelerator.state().group());
    scaler.scale(torch::ones({}, torch::TensorOptions(accelerator.device())));
    scaler.update(rank.index() == 1 ? 32.0 : 16.0);
    scaler.broadcast_state(/*source=*/1);
    EXPECT_EQ(scaler.get_scale(), 32);
    const Tensor scaled = scaler.scale(torch::ones({}, torch::TensorOptions(accelerator.device())));
    EXPECT_EQ(scaled.item<float>(), 32);
  });
}

}  // namespace
}  // namespace accelerate
