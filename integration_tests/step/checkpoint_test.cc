// Activation checkpointing on simulated devices: less memory, equal values, also under DDP.
#include <string>
#include <vector>

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "accelerate/operators/checkpoint.h"
#include "simulator/cluster/cluster.h"
#include "simulator/testing/topology_suite.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::Rank;

constexpr int kBlocks = 6;

struct NetImpl : torch::nn::Module {
  explicit NetImpl(bool checkpointed) : checkpointed(checkpointed) {
    for (int i = 0; i < kBlocks; ++i) {
      blocks.push_back(
          register_module("block" + std::to_string(i),
                          torch::nn::Sequential(torch::nn::Linear(32, 64), torch::nn::GELU(),
                                                torch::nn::Dropout(0.2), torch::nn::Linear(64, 32),
                                                torch::nn::Tanh())));
    }
    unused = register_module("unused", torch::nn::Linear(2, 2));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (torch::nn::Sequential& block : blocks) {
      x = checkpointed
              ? checkpoint([block](torch::Tensor x) mutable { return block->forward(x); }, x)
              : block->forward(x);
    }
    return x;
  }

  bool checkpointed;
  std::vector<torch::nn::Sequential> blocks;
  torch::nn::Linear unused{nullptr};
};
TORCH_MODULE(Net);

// For a forward pass; the backward pass is outside.
class Autocast {
 public:
  Autocast(c10::DeviceType type, bool enabled) : type_(type) {
    at::autocast::set_autocast_enabled(type, enabled);
    at::autocast::set_autocast_dtype(type, at::kBFloat16);
    at::autocast::increment_nesting();
  }
  ~Autocast() {
    at::autocast::decrement_nesting();
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(type_, false);
  }

 private:
  const c10::DeviceType type_;
};

struct Outcome {
  std::vector<at::Tensor> losses;      // by rank
  std::vector<at::Tensor> parameters;  // by rank
  double peak = 0;
};

Outcome train(const std::string& topology, bool checkpointed, bool autocast) {
  Cluster cluster(topology, {.seed = simulator::seed_of_run(2)});
  cluster.run_on_every_rank([&](Rank& rank) {
    Accelerator accelerator(
        {.kwargs_handlers = {DistributedDataParallelKwargs{.find_unused_parameters = true}}});
    set_seed(7);
    Net net(checkpointed);
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    std::vector<at::Tensor> losses;
    for (int step = 0; step < 3; ++step) {
      const torch::Tensor x = torch::randn({256, 32}).to(accelerator.device());
      torch::Tensor loss;
      {
        const Autocast scope(accelerator.device().type(), autocast);
        loss = model(x).square().mean();
      }
      accelerator.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
      losses.push_back(loss.detach().to(c10::kCPU));
    }
    std::vector<at::Tensor> flat;
    for (const at::Tensor& parameter : net->parameters()) {
      flat.push_back(parameter.detach().to(c10::kCPU).flatten());
    }
    rank.report("losses", torch::stack(losses));
    rank.report("parameters", torch::cat(flat));
    rank.report("peak", static_cast<double>(rank.device()->memory().peak()));
  });
  return {.losses = cluster.reports("losses"),
          .parameters = cluster.reports("parameters"),
          .peak = cluster.reports("peak")[0].item<double>()};
}

void expect_equal_and_smaller(const std::string& topology, bool autocast) {
  const Outcome plain = train(topology, false, autocast);
  const Outcome checkpointed = train(topology, true, autocast);
  for (size_t rank = 0; rank < plain.losses.size(); ++rank) {
    EXPECT_TRUE(torch::equal(plain.losses[rank], checkpointed.losses[rank])) << topology;
    EXPECT_TRUE(torch::equal(plain.parameters[rank], checkpointed.parameters[rank])) << topology;
  }
  EXPECT_LT(checkpointed.peak, 0.6 * plain.peak) << topology;
}

TOPOLOGY_SUITE(Checkpoint, .also = {"1x3:h100"}, .hardware = simulator::Hardware::kGpu);

// Parameters are captured by the blocks; DDP finds those that are used, and the one that is not.
TEST_P(Checkpoint, NeedsLessMemoryForTheSameValues) {
  expect_equal_and_smaller(topology(), /*autocast=*/false);
}

TEST_P(Checkpoint, WorksWithAutocastOnADevice) {
  expect_equal_and_smaller(topology(), /*autocast=*/true);
}

}  // namespace
}  // namespace accelerate
