// Finds out which rank runs out of memory, and what fills it, before a job with real devices does.
// One rank of eight gets a batch of longer texts than the others; the longest that fits is found.
#include <cstdio>
#include <string>

#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>

#include "accelerate/accelerate.h"
#include "simulator/cluster/cluster.h"

namespace {

namespace simulator = accelerate::simulator;

constexpr int kUnlucky = 5;

class NetImpl : public torch::nn::Module {
 public:
  at::Tensor forward(const at::Tensor& x) { return output_(torch::relu(hidden_(x))); }

 private:
  torch::nn::Linear hidden_ = register_module("hidden", torch::nn::Linear(64, 256));
  torch::nn::Linear output_ = register_module("output", torch::nn::Linear(256, 64));
};
TORCH_MODULE(Net);

void train(int64_t tokens) {
  accelerate::Accelerator accelerator;
  Net net;
  torch::optim::Adam adam(net->parameters(), 0.001);
  auto [model, optimizer] = accelerator.prepare(net, adam);
  for (int step = 0; step < 2; ++step) {
    const at::Tensor loss = model(torch::ones({tokens, 64}, accelerator.device())).square().mean();
    accelerator.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
  }
}

// What the simulator says about a run in which the unlucky rank has so many tokens; empty if it
// says nothing.
std::string complaint(int64_t tokens, int& rank) {
  simulator::Cluster cluster("2x4:h100,mem=16MiB,efficiency=ideal");
  try {
    cluster.run_on_every_rank(
        [&](simulator::Rank& rank) { train(rank.index() == kUnlucky ? tokens : 512); });
  } catch (const simulator::ClusterError& error) {
    rank = error.failures().front().rank;
    return error.failures().front().message;
  }
  return "";
}

}  // namespace

int main() {
  int rank = -1;
  const std::string first = complaint(8192, rank);
  std::printf("8192 tokens: %s\n", first.c_str());
  int64_t fits = 8192;
  int other = -1;
  while (!complaint(fits, other).empty()) fits -= 512;
  std::printf("rank %d ran out of memory; %ld tokens fit\n", rank, static_cast<long>(fits));
  return rank == kUnlucky && first.find("activations") != std::string::npos ? 0 : 1;
}
