// The host's time for a data-parallel training step, by the simulated cluster: a perceptron with
// two layers, detectors on.
#include <chrono>
#include <string>

#include <benchmark/benchmark.h>
#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

constexpr int kSteps = 10;

void BM_Steps(benchmark::State& state, const std::string& spec, bool record = false) {
  double seconds = 0;
  simulator::Cluster cluster(spec, {.record = record});
  for (auto _ : state) {
    cluster.run_on_every_rank([&](simulator::Rank& rank) {
      Accelerator accelerator;
      torch::manual_seed(0);
      torch::nn::Sequential net(torch::nn::Linear(16, 32), torch::nn::ReLU(),
                                torch::nn::Linear(32, 4));
      torch::optim::SGD sgd(net->parameters(), 0.1);
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      const torch::Tensor input = torch::ones({8, 16}).to(accelerator.device());
      accelerator.wait_for_everyone();
      const auto start = std::chrono::steady_clock::now();
      for (int step = 0; step < kSteps; ++step) {
        torch::Tensor loss = model(input).square().mean();
        accelerator.backward(loss);
        optimizer.step();
        optimizer.zero_grad();
      }
      if (rank.index() != 0) return;
      seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    });
    state.SetIterationTime(seconds);
  }
  state.counters["ms_per_step"] = seconds * 1e3 / kSteps;
}

BENCHMARK_CAPTURE(BM_Steps, devices_8, "2x4:h100")->UseManualTime()->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_Steps, devices_8_recorded, "2x4:h100", /*record=*/true)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_Steps, devices_64, "8x8:h100")->UseManualTime()->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_Steps, devices_127, "1x127:h100")
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_Steps, devices_512, "64x8:h100")
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_Steps, cpu_1024, "128x8")->UseManualTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace accelerate

BENCHMARK_MAIN();
