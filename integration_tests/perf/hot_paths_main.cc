// Runs hot paths for ci/perf_counts.py, which counts the instructions of each call of hot_path().
// What a call runs, and how many iterations of it, is a line of the output. One process runs all:
// under callgrind, LibTorch takes long to start.
#include <cstdint>
#include <iostream>
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

// Callgrind writes its counts at the entry and the exit of this function.
extern "C" [[gnu::noinline]] void hot_path(void (*path)(int64_t), int64_t times) {
  path(times);
  // Not a tail call, which would end before the path does.
  asm volatile("");
}

int main(int argc, char** argv) {
  struct Path {
    const char* name;
    void (*run)(int64_t);
    int64_t times;
  };
  const std::vector<Path> paths = {{"step", step, 20},
                                   {"gather", gather, 50},
                                   {"collective", collective, 50},
                                   {"operator", one_operator, 200}};
  return accelerate::run(argc, argv, [&](int, char**) {
    for (const Path& path : paths) {
      // What is done once only is in the first call, which does not count.
      for (const int64_t times : {int64_t{1}, path.times, 6 * path.times}) {
        std::cout << path.name << ' ' << times << '\n';
        hot_path(path.run, times);
      }
    }
    return 0;
  });
}
