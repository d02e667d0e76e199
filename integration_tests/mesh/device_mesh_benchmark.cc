// Making the groups of a mesh, all ranks of a simulated cluster together.
//
//   tools/dev bazel run -c opt //integration_tests/mesh:device_mesh_benchmark
#include <chrono>
#include <optional>
#include <string>

#include <benchmark/benchmark.h>

#include "absl/strings/str_cat.h"
#include "accelerate/mesh/device_mesh.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRanksPerNode = 8;

// From the first rank's beginning to the last rank's end. Ranks run one at a time.
double seconds_to_make(const Mesh& mesh) {
  std::optional<Clock::time_point> first;
  Clock::time_point last;
  simulator::Cluster(absl::StrCat(mesh.num_ranks() / kRanksPerNode, "x", kRanksPerNode))
      .run_on_every_rank([&](simulator::Rank& rank) {
        const auto all = rank.runtime().new_group({.name = "world"});
        all->barrier()->wait();
        if (!first) first = Clock::now();
        const DeviceMesh made(mesh, rank.runtime());
        last = Clock::now();
        all->barrier()->wait();
      });
  return std::chrono::duration<double>(last - *first).count();
}

void BM_DeviceMesh(benchmark::State& state, const MeshSizes& sizes) {
  const Mesh mesh(sizes);
  for (auto _ : state) state.SetIterationTime(seconds_to_make(mesh));
  state.counters["ranks"] = mesh.num_ranks();
}
BENCHMARK_CAPTURE(BM_DeviceMesh, 64_ranks,
                  MeshSizes{.pp = 2, .dp_replicate = 2, .dp_shard = 2, .cp = 2, .sp = 2, .tp = 2})
    ->Unit(benchmark::kMillisecond)
    ->UseManualTime();
BENCHMARK_CAPTURE(BM_DeviceMesh, 512_ranks,
                  MeshSizes{.pp = 2, .dp_replicate = 4, .dp_shard = 4, .cp = 2, .sp = 2, .tp = 4})
    ->Unit(benchmark::kMillisecond)
    ->UseManualTime();

}  // namespace
}  // namespace accelerate

BENCHMARK_MAIN();
