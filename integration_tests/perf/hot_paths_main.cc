// Runs a hot path so many times, for ci/perf.sh, which counts its instructions:
//
//   hot_paths step|gather|collective|operator TIMES
#include <cstdlib>
#include <string>
#include <vector>

#include <ATen/ops/ones.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "accelerate/accelerate.h"
#include "simulator/cluster/cluster.h"

namespace {

using accelerate::simulator::Cluster;
using accelerate::simulator::Rank;

// The loop of a process alone, around a model that computes next to nothing.
void step(int64_t times) {
  accelerate::Accelerator accelerator;
  torch::nn::Linear line(1, 1);
  torch::optim::SGD sgd(line->parameters(), 0.1);
  const at::Tensor x = at::ones({times, 1});
  accelerate::DataLoader data(accelerate::make_tensor_dataset(x, x), {.batch_size = 1});
  auto [model, optimizer, loader] = accelerator.prepare(line, sgd, data);
  for (auto& [inputs, targets] : loader) {
    accelerator.backward(torch::nn::functional::mse_loss(model(inputs), targets));
    optimizer.step();
    optimizer.zero_grad();
  }
}

void gather(int64_t times) {
  Cluster("1x2").run_on_every_rank([times](Rank&) {
    accelerate::Accelerator accelerator;
    const at::Tensor x = at::ones({16});
    for (int64_t i = 0; i < times; ++i) accelerator.gather(x);
  });
}

void collective(int64_t times) {
  Cluster("1x2").run_on_every_rank([times](Rank& rank) {
    auto group = rank.runtime().new_group({.name = "world"});
    std::vector<at::Tensor> tensors{at::ones({16})};
    for (int64_t i = 0; i < times; ++i) group->allreduce(tensors)->wait();
  });
}

// An operator on a simulated device, with its recording.
void one_operator(int64_t times) {
  Cluster("1x1:h100").run_on_every_rank([times](Rank& rank) {
    const at::Tensor x = at::ones({16}, rank.runtime().device());
    for (int64_t i = 0; i < times; ++i) x.relu();
  });
}

}  // namespace

int main(int argc, char** argv) {
  const std::string path = argc == 3 ? argv[1] : "";
  const int64_t times = argc == 3 ? std::atoll(argv[2]) : 0;
  if (times < 1) return 2;
  if (path == "step") {
    return accelerate::run(argc, argv, [times](int, char**) {
      step(times);
      return 0;
    });
  } else if (path == "gather") {
    gather(times);
  } else if (path == "collective") {
    collective(times);
  } else if (path == "operator") {
    one_operator(times);
  } else {
    return 2;
  }
  return 0;
}
