// The cost of a collective in the simulator: ranks as threads, one baton, results in rank order.
//
//   tools/dev bazel run //simulator/cluster:all_reduce_benchmark
#include <string>
#include <vector>

#include <ATen/ops/ones.h>
#include <benchmark/benchmark.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "simulator/cluster/cluster.h"

namespace accelerate::simulator {
namespace {

constexpr int kRounds = 100;

// Includes the start of the ranks, 100 all-reduces of 1,000 floats, and the end of the ranks.
void BM_HundredAllReduces(benchmark::State& state) {
  const int ranks = static_cast<int>(state.range(0));
  for (auto _ : state) {
    Cluster cluster("1x" + std::to_string(ranks));
    cluster.run_on_every_rank([](Rank& rank) {
      auto group = rank.runtime().new_group({.name = "world"});
      std::vector<at::Tensor> tensors{at::ones({1000})};
      for (int round = 0; round < kRounds; ++round) group->allreduce(tensors)->wait();
    });
  }
  state.counters["per_rank_and_op"] = benchmark::Counter(
      static_cast<double>(ranks) * kRounds,
      benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}
BENCHMARK(BM_HundredAllReduces)
    ->Arg(2)
    ->Arg(8)
    ->Arg(64)
    ->Arg(512)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

}  // namespace
}  // namespace accelerate::simulator

BENCHMARK_MAIN();
