// A slow rank: every step takes as long as the slowest rank, and all others look busy because they
// wait in the all-reduce. The trace of a run tells for whom.
#include <cstdio>
#include <map>

#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "accelerate/accelerate.h"
#include "simulator/cluster/cluster.h"

namespace {

namespace simulator = accelerate::simulator;

constexpr int kSlow = 6;

void train(bool is_slow) {
  accelerate::Accelerator accelerator;
  torch::nn::Linear net(64, 64);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  for (int step = 0; step < 8; ++step) {
    // As if this rank's disk took long to read a batch.
    if (is_slow) accelerator.runtime().sleep_for(absl::Milliseconds(3));
    const at::Tensor x = torch::ones({32, 64}, accelerator.device());
    accelerator.backward(model(x).square().mean());
    optimizer.step();
    optimizer.zero_grad();
  }
}

}  // namespace

int main() {
  simulator::Cluster cluster("2x4:h100", {.record = true});
  cluster.run_on_every_rank([](simulator::Rank& rank) { train(rank.index() == kSlow); });

  std::map<int, int64_t> waited_for;  // nanoseconds, by the rank that came last
  for (const simulator::TraceOperation& operation : cluster.trace().operations) {
    if (operation.last_rank >= 0) waited_for[operation.last_rank] += operation.spread_ns;
  }
  int slowest = -1;
  for (const auto& [rank, nanoseconds] : waited_for) {
    if (nanoseconds == 0) continue;
    std::printf("waited for rank %d: %.3f ms\n", rank, nanoseconds / 1e6);
    if (slowest < 0 || nanoseconds > waited_for[slowest]) slowest = rank;
  }
  std::printf("rank %d is the slow one of a run of %.3f ms\n", slowest,
              absl::ToDoubleMilliseconds(cluster.elapsed()));
  return slowest == kSlow ? 0 : 1;
}
