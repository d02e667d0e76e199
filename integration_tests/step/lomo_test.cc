// Fused backward-and-update on many ranks: gradients are averaged, and a device never holds them
// all.
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "accelerate/optim/lomo.h"
#include "simulator/cluster/cluster.h"
#include "simulator/testing/topology_suite.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::Rank;
using torch::Tensor;

constexpr int64_t kWidth = 64;
constexpr int kLayers = 6;

torch::nn::Sequential make_net(c10::Device device) {
  torch::manual_seed(3);
  torch::nn::Sequential net;
  for (int i = 0; i < kLayers; ++i) net->push_back(torch::nn::Linear(kWidth, kWidth));
  net->to(device);
  return net;
}

// A rank's share of 12 samples.
Tensor loss_of(torch::nn::Sequential& net, c10::Device device, int rank, int ranks) {
  torch::manual_seed(8);
  const Tensor samples = torch::randn({12, kWidth});
  const int64_t share = 12 / ranks;
  return net->forward(samples.slice(0, rank * share, (rank + 1) * share).to(device))
      .square()
      .mean();
}

Tensor flat(const torch::nn::Sequential& net) {
  std::vector<Tensor> parts;
  for (const Tensor& parameter : net->parameters()) {
    parts.push_back(parameter.detach().to(c10::kCPU).flatten());
  }
  return torch::cat(parts);
}

template <typename Optimizer, typename Options>
std::vector<Tensor> trained_on(const std::string& topology, const Options& options) {
  Cluster cluster(topology, {.seed = simulator::seed_of_run(1)});
  cluster.run_on_every_rank([&](Rank& rank) {
    Accelerator accelerator;
    torch::nn::Sequential net = make_net(accelerator.device());
    Optimizer optimizer(net->parameters(), options);
    optimizer.set_process_group(accelerator.state().group());
    for (int step = 0; step < 3; ++step) {
      const Tensor loss =
          loss_of(net, accelerator.device(), rank.index(), accelerator.num_processes());
      if (options.clip_grad_norm() > 0) optimizer.grad_norm(loss);
      optimizer.fused_backward(loss, 0.1);
    }
    rank.report("parameters", flat(net));
  });
  return cluster.reports("parameters");
}

template <typename Optimizer, typename Options>
void expect_follows_one_rank(const Options& options) {
  if (12 % simulator::TopologyTest::world_size() != 0) return;  // Shares must be whole.
  const Tensor expected = trained_on<Optimizer>("1x1:h100", options)[0];
  const std::vector<Tensor> all =
      trained_on<Optimizer>(simulator::TopologyTest::topology(), options);
  for (const Tensor& parameters : all) {
    EXPECT_TRUE(torch::equal(parameters, all[0]));
    // Sums in another order.
    EXPECT_TRUE(torch::allclose(parameters, expected, 1e-4, 1e-6));
  }
}

TOPOLOGY_SUITE(LomoOnDevices, .hardware = simulator::Hardware::kGpu);

TEST_P(LomoOnDevices, LomoFollowsOneRankWithTheSameGlobalBatch) {
  expect_follows_one_rank<optim::Lomo>(optim::LomoOptions());
  expect_follows_one_rank<optim::Lomo>(optim::LomoOptions().clip_grad_norm(0.01));
}

TEST_P(LomoOnDevices, AdaLomoFollowsOneRankWithTheSameGlobalBatch) {
  expect_follows_one_rank<optim::AdaLomo>(optim::AdaLomoOptions().clip_grad_norm(0.01));
}

// One shape: the memory of one device.
TEST(Lomo, ADeviceNeverHoldsAllGradients) {
  auto peak_over_parameters = [](bool fused) {
    Cluster cluster("1x1:h100", {.seed = 1});
    cluster.run_on_every_rank([&](Rank& rank) {
      const c10::Device device = rank.runtime().device();
      torch::nn::Sequential net = make_net(device);
      const int64_t parameters = rank.device()->memory().in_use();
      const Tensor loss = loss_of(net, device, 0, 1);
      if (fused) {
        optim::Lomo(net->parameters()).fused_backward(loss, 0.1);
      } else {
        loss.backward();
      }
      rank.report("bytes", static_cast<double>(rank.device()->memory().peak() - parameters));
    });
    return cluster.reports("bytes")[0].item<double>();
  };
  const double all_gradients = kLayers * (kWidth + 1) * kWidth * 4.0;
  EXPECT_GT(peak_over_parameters(false), all_gradients);
  EXPECT_LT(peak_over_parameters(true), 0.7 * all_gradients);
}

}  // namespace
}  // namespace accelerate
