// The cost of a hand-over of the baton from one task to another.
//
//   tools/dev bazel run //simulator/core:scheduler_benchmark
#include <algorithm>

#include <benchmark/benchmark.h>

#include "simulator/core/scheduler.h"

namespace accelerate::simulator {
namespace {

constexpr int kTurns = 20'000;

// Includes the start and the end of the tasks' threads, a small part of the turns' cost.
void BM_HandOver(benchmark::State& state) {
  const int tasks = static_cast<int>(state.range(0));
  const int rounds = std::max(1, kTurns / tasks);
  for (auto _ : state) {
    Scheduler scheduler(tasks, /*seed=*/1);
    scheduler.run([&](int) {
      for (int round = 0; round < rounds; ++round) scheduler.yield();
    });
  }
  state.counters["per_hand_over"] = benchmark::Counter(
      static_cast<double>(tasks) * rounds,
      benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}
BENCHMARK(BM_HandOver)->Arg(8)->Arg(512)->Arg(1024)->Unit(benchmark::kMillisecond)->UseRealTime();

}  // namespace
}  // namespace accelerate::simulator

BENCHMARK_MAIN();
