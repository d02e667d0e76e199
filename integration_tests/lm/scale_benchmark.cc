// What simulating a training step of a large GPT costs on this machine, with shapes alone.
//
//   tools/dev bazel run //integration_tests/lm:scale_benchmark -- \
//       SPEC MODEL OPTIMIZER [STEPS [SPOT_CHECKS]]
//
// As in `1x8:h100 7b sgd`, or `128x8:h100 1b sgd 1 1`, which folds all replicas into one and
// executes one more rank to compare it. A rank trains on one sequence of 2,048 tokens in bf16 with
// activation checkpointing. The rows are the wall time from one step's end to the next, the virtual
// time of the step, the largest use of a device, and the most memory that this process ever had.
#include <sys/resource.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/zeros.h>

#include "accelerate/accelerator.h"
#include "accelerate/examples/lm/model.h"
#include "accelerate/operators/default_device.h"
#include "accelerate/optim/fused_optimizers.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kTokens = 2048;

struct StepEnd {
  Clock::time_point wall;
  int64_t virtual_ns = 0;
};

std::shared_ptr<torch::optim::Optimizer> optimizer_of(const std::string& name,
                                                      std::vector<at::Tensor> parameters) {
  if (name == "adamw") {
    return std::make_shared<optim::AdamW>(std::move(parameters), torch::optim::AdamWOptions(1e-3));
  }
  return std::make_shared<optim::SGD>(std::move(parameters), torch::optim::SGDOptions(1e-3));
}

void train(simulator::Rank& rank, const lm::Config& config, const std::string& optimizer_name,
           int steps, std::vector<StepEnd>& ends) {
  Accelerator accelerator(
      {.mixed_precision = PrecisionType::kBf16,
       .kwargs_handlers = {DistributedDataParallelKwargs{.gradient_as_bucket_view = true}}});
  lm::Lm net{nullptr};
  {
    const DefaultDeviceScope scope(accelerator.device());
    net = lm::Lm(config, /*activation_checkpointing=*/true);
  }
  auto [model, optimizer] =
      accelerator.prepare(net, optimizer_of(optimizer_name, net->parameters()));
  const at::Tensor tokens =
      at::zeros({1, kTokens}, at::TensorOptions(at::kLong).device(accelerator.device()));
  if (rank.index() == 0) ends.push_back({Clock::now(), rank.device()->host_ns()});
  for (int step = 0; step < steps; ++step) {
    const at::Tensor loss = at::cross_entropy_loss(model(tokens).flatten(0, 1), tokens.flatten());
    accelerator.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
    accelerator.runtime().synchronize_device();
    accelerator.wait_for_everyone();
    if (rank.index() == 0) ends.push_back({Clock::now(), rank.device()->host_ns()});
  }
}

int measure(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: %s SPEC MODEL sgd|adamw [STEPS [SPOT_CHECKS]]\n", argv[0]);
    return 2;
  }
  const lm::Config config = lm::model_config(argv[2], {.sequence_length = kTokens});
  const std::string optimizer = argv[3];
  const int steps = argc > 4 ? std::atoi(argv[4]) : 2;
  simulator::ClusterOptions options;
  options.numerics = simulator::Numerics::kShapes;
  if (argc > 5) options.fold = simulator::Folding{.spot_checks = std::atoi(argv[5])};
  simulator::Cluster cluster(argv[1], options);
  std::vector<StepEnd> ends;
  int64_t peak = 0;
  const Clock::time_point start = Clock::now();
  cluster.run_on_every_rank([&](simulator::Rank& rank) {
    train(rank, config, optimizer, steps, ends);
    if (rank.index() == 0) peak = rank.device()->memory().peak();
  });
  const auto seconds = [](Clock::time_point from, Clock::time_point to) {
    return std::chrono::duration<double>(to - from).count();
  };
  std::printf("%s, GPT of %.2f billion parameters, %s\n", argv[1],
              static_cast<double>(lm::parameter_count(config)) / 1e9, optimizer.c_str());
  std::printf("  before the first step  %8.2f s of wall time\n", seconds(start, ends[0].wall));
  for (size_t step = 1; step < ends.size(); ++step) {
    std::printf("  step %-3zu               %8.2f s of wall time, %.6f s of virtual time\n", step,
                seconds(ends[step - 1].wall, ends[step].wall),
                1e-9 * static_cast<double>(ends[step].virtual_ns - ends[step - 1].virtual_ns));
  }
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  std::printf("  whole run              %8.2f s of wall time, %.9f s of virtual time\n",
              seconds(start, Clock::now()), absl::ToDoubleSeconds(cluster.elapsed()));
  std::printf("  device's peak          %8.2f GiB\n", static_cast<double>(peak) / (1 << 30));
  std::printf("  this process           %8.2f GiB at most\n",
              static_cast<double>(usage.ru_maxrss) / (1 << 20));
  return 0;
}

}  // namespace
}  // namespace accelerate

int main(int argc, char** argv) { return accelerate::measure(argc, argv); }
