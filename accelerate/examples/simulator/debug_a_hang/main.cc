// A job that hangs: the main process evaluates with a collective that the other ranks never join.
// Real ranks would wait for each other until a time-out; the simulator names them at once.
#include <cstdio>
#include <string>

#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "accelerate/accelerate.h"
#include "simulator/cluster/cluster.h"

namespace {

namespace simulator = accelerate::simulator;

void train(bool all_ranks_evaluate) {
  accelerate::Accelerator accelerator;
  torch::nn::Linear net(4, 1);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  for (int step = 0; step < 4; ++step) {
    const at::Tensor loss = model(torch::randn({8, 4}, accelerator.device())).square().mean();
    accelerator.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
    // The mistake: all ranks have to call reduce.
    if (step == 3 && (all_ranks_evaluate || accelerator.is_main_process())) {
      const at::Tensor mean = accelerator.reduce(loss.detach(), accelerate::Reduction::kMean);
      accelerator.print("loss ", mean.item<float>());
    }
  }
}

// The report of a run; empty for one that ends well.
std::string report(bool all_ranks_evaluate) {
  simulator::Cluster cluster("2x4:h100", {.seed = 7});
  try {
    cluster.run_on_every_rank([&](simulator::Rank& /*rank*/) { train(all_ranks_evaluate); });
  } catch (const simulator::ClusterError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

int main() {
  const std::string hang = report(/*all_ranks_evaluate=*/false);
  std::printf("%s\n", hang.c_str());
  const bool is_named = hang.find("rank 0") != std::string::npos;
  const bool is_mended = report(/*all_ranks_evaluate=*/true).empty();
  std::printf("%s\n",
              is_mended ? "with all ranks it ends well" : "with all ranks it fails as well");
  return is_named && is_mended ? 0 : 1;
}
