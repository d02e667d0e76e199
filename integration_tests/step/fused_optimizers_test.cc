// The multi-tensor optimizers on simulated devices: the values of torch::optim there, and of a CPU.
// One shape each: kernels of one device, whatever the number of ranks.
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "accelerate/optim/clip_grad.h"
#include "accelerate/optim/fused_optimizers.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::Rank;
using Tensors = std::vector<torch::Tensor>;

// Parameters after some steps, flattened, on the CPU. `mixed`: one of them stays on the CPU.
template <typename Optimizer, typename Options>
torch::Tensor trained(c10::Device device, const Options& options, bool mixed = false) {
  torch::manual_seed(3);
  Tensors parameters;
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{3}, {40}, {}, {8, 5}, {0}, {700}}) {
    const c10::Device at = mixed && parameters.size() == 1 ? c10::Device(c10::kCPU) : device;
    parameters.push_back(torch::randn(shape).to(at).requires_grad_());
  }
  Optimizer optimizer(parameters, options);
  for (int step = 0; step < 5; ++step) {
    for (torch::Tensor& parameter : parameters) {
      parameter.mutable_grad() = torch::randn(parameter.sizes()).to(parameter.device());
    }
    if (step == 2) parameters[3].mutable_grad().reset();
    clip_grad_norm_(parameters, 10.0);
    optimizer.step();
  }
  Tensors flat;
  for (const torch::Tensor& parameter : parameters) {
    flat.push_back(parameter.detach().to(c10::kCPU).flatten());
  }
  return torch::cat(flat);
}

template <typename Ours, typename Theirs, typename Options>
void expect_equal(const Options& options) {
  for (const bool mixed : {false, true}) {
    Cluster cluster("1x2:h100", {.seed = 1});
    cluster.run_on_every_rank([&](Rank& rank) {
      const c10::Device device = rank.runtime().device();
      const torch::Tensor ours = trained<Ours>(device, options, mixed);
      EXPECT_TRUE(torch::allclose(ours, trained<Theirs>(device, options, mixed), 1e-6, 1e-6));
      // One kernel runs on both.
      EXPECT_TRUE(torch::equal(ours, trained<Ours>(c10::kCPU, options)));
    });
  }
}

TEST(FusedOptimizers, EqualTorchOnASimulatedDevice) {
  expect_equal<optim::SGD, torch::optim::SGD>(
      torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.1).nesterov(true));
  expect_equal<optim::Adam, torch::optim::Adam>(torch::optim::AdamOptions(0.01).amsgrad(true));
  expect_equal<optim::AdamW, torch::optim::AdamW>(torch::optim::AdamWOptions(0.01));
}

// The kernel runs there as one, not an operator for each parameter.
TEST(FusedOptimizers, AreFusedOnASimulatedDevice) {
  auto virtual_seconds = [](auto make) {
    Cluster cluster("1x1:h100", {.seed = 1});
    cluster.run_on_every_rank([&](Rank& rank) {
      Tensors parameters;
      for (int i = 0; i < 50; ++i) {
        parameters.push_back(torch::ones({16}, rank.runtime().device()).requires_grad_());
        parameters.back().mutable_grad() = torch::ones_like(parameters.back());
      }
      auto optimizer = make(parameters);
      optimizer->step();
      rank.runtime().synchronize_device();
      const absl::Time start = rank.runtime().now();
      optimizer->step();
      rank.runtime().synchronize_device();
      rank.report("seconds", absl::ToDoubleSeconds(rank.runtime().now() - start));
    });
    return cluster.reports("seconds")[0].template item<double>();
  };
  const double ours = virtual_seconds(
      [](Tensors parameters) { return std::make_unique<optim::AdamW>(std::move(parameters)); });
  const double theirs = virtual_seconds([](Tensors parameters) {
    return std::make_unique<torch::optim::AdamW>(std::move(parameters));
  });
  EXPECT_LT(ours, theirs / 4);
}

TEST(ClipGrad, TakesSeveralDevices) {
  Cluster cluster("1x1:h100", {.seed = 1});
  cluster.run_on_every_rank([](Rank& rank) {
    const c10::Device device = rank.runtime().device();
    Tensors parameters{torch::zeros({4}, device).requires_grad_(),
                       torch::zeros({5}).requires_grad_()};
    for (torch::Tensor& parameter : parameters) {
      parameter.mutable_grad() = torch::full_like(parameter, 2.0);
    }
    const torch::Tensor norm = clip_grad_norm_(parameters, 3.0);
    EXPECT_EQ(norm.device(), device);
    EXPECT_FLOAT_EQ(norm.item<float>(), 6.0f);
    for (torch::Tensor& parameter : parameters) {
      EXPECT_TRUE(torch::allclose(parameter.grad(), torch::ones_like(parameter)));
    }
    EXPECT_FLOAT_EQ(get_total_norm(parameters, {.norm_type = 1}).item<float>(), 9.0f);
    clip_grad_value_(parameters, 0.5);
    EXPECT_FLOAT_EQ(parameters[0].grad().sum().item<float>(), 2.0f);
  });
}

}  // namespace
}  // namespace accelerate
