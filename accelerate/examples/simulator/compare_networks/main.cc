// What a step of data-parallel training costs on several networks, before one is bought. Tensors
// have shapes but no values here, so the model may be larger than this machine.
#include <algorithm>
#include <cstdio>
#include <vector>

#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "accelerate/accelerate.h"
#include "simulator/cluster/cluster.h"

namespace {

namespace simulator = accelerate::simulator;

class NetImpl : public torch::nn::Module {
 public:
  at::Tensor forward(at::Tensor x) {
    for (auto& layer : layers_) x = torch::relu(layer(x));
    return x;
  }

 private:
  torch::nn::Linear layer(int number) {
    return register_module("layer" + std::to_string(number), torch::nn::Linear(2048, 2048));
  }
  std::vector<torch::nn::Linear> layers_ = {layer(0), layer(1), layer(2), layer(3)};
};
TORCH_MODULE(Net);

constexpr int kSteps = 4;

void train() {
  accelerate::Accelerator accelerator({.mixed_precision = accelerate::PrecisionType::kBf16});
  const Net net = [&] {
    const accelerate::DefaultDeviceScope on_device(accelerator.device());
    return Net();
  }();
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const at::Tensor x = torch::ones({2048, 2048}, accelerator.device());
  for (int step = 0; step < kSteps; ++step) {
    accelerator.backward(model(x).mean());
    optimizer.step();
    optimizer.zero_grad();
  }
}

}  // namespace

int main() {
  std::printf("%-34s %10s %10s\n", "cluster", "step", "waits");
  std::vector<double> steps;
  for (const char* spec :
       {"2x4:h100", "2x4:h100,nic=100Gbps", "2x4:h100,node=pcie", "2x4:h100,fabric=ethernet"}) {
    simulator::Cluster cluster(spec, {.numerics = simulator::Numerics::kShapes, .record = true});
    cluster.run_on_every_rank([](simulator::Rank& /*rank*/) { train(); });
    steps.push_back(absl::ToDoubleMilliseconds(cluster.elapsed()) / kSteps);
    const simulator::RankSummary& rank = cluster.trace().ranks[0];
    std::printf("%-34s %7.3f ms %7.1f %%\n", spec, steps.back(),
                100.0 * rank.exposed_ns / rank.end_ns);
  }
  return *std::min_element(steps.begin(), steps.end()) == steps[0] ? 0 : 1;
}
