// How much of a disk's time buffers hide: virtual times of a training step with both tiers on a
// disk of 1 GB/s, beside the step with a disk that takes no time.
//
//   disk_offload_benchmark
//
// The device is so slow that forward and backward passes take about as long as the disk.
#include <cstdio>
#include <memory>
#include <string>

#include <torch/torch.h>

#include "absl/time/time.h"
#include "integration_tests/offload/layers_on_disk.h"
#include "simulator/cluster/cluster.h"
#include "simulator/disk/sim_disk.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::Rank;
using simulator::SimDisk;
using simulator::Slice;
using simulator::SliceKind;

struct Measured {
  double step_ms = 0, disk_ms = 0;
};

Measured measure(const std::string& disk, const LayersJob& job) {
  constexpr int kSteps = 2;
  Measured measured;
  int64_t begin_ns = 0, end_ns = 0;
  Cluster cluster("1x1:h100,flops=100GFLOPS," + disk,
                  {.record = true, .disk = std::make_shared<SimDisk>()});
  cluster.run_on_every_rank([&](Rank& rank) {
    Runtime& runtime = rank.runtime();
    const absl::Time start = runtime.now();
    TrainedLayers trained(rank, job);
    const auto now_ns = [&] {
      runtime.synchronize_device();
      return absl::ToInt64Nanoseconds(runtime.now() - start);
    };
    // States are made, and the order of groups is known after these.
    for (int step = 0; step < 3; ++step) trained.step(step);
    begin_ns = now_ns();
    for (int step = 0; step < kSteps; ++step) trained.step(step);
    end_ns = now_ns();
  });
  for (const Slice& slice : cluster.trace().slices) {
    if (slice.kind != SliceKind::kDisk || slice.start_ns < begin_ns || slice.end_ns > end_ns)
      continue;
    measured.disk_ms += static_cast<double>(slice.end_ns - slice.start_ns) / 1e6 / kSteps;
  }
  measured.step_ms = static_cast<double>(end_ns - begin_ns) / 1e6 / kSteps;
  return measured;
}

void print_table(const char* what, int64_t part_elements, bool rows, int micro_steps = 1) {
  std::printf(
      "\n%s\n\n| buffers | step, ms | without the disk, ms | the disk works, ms | hidden |\n"
      "| ---: | ---: | ---: | ---: | ---: |\n",
      what);
  for (const int buffers : {1, 2, 4, 8}) {
    LayersJob job{.layers = 8,
                  .width = 512,
                  .rows = 512,
                  .micro_steps = micro_steps,
                  .part_elements = part_elements,
                  .dtype = at::kBFloat16};
    const SwapOptions options{.folder = "/sim/swap", .buffer_count = buffers};
    job.shards_on_disk = options;
    if (rows) job.rows_on_disk = options;
    const Measured with = measure("disk=1GB/s,disk_latency=10us", job);
    const Measured without = measure("disk=off", job);
    std::printf("| %d | %.1f | %.1f | %.1f | %.0f %% |\n", buffers, with.step_ms, without.step_ms,
                with.disk_ms, 100 * (1 - (with.step_ms - without.step_ms) / with.disk_ms));
  }
}

void measure() {
  print_table("Optimizer on the disk, in 8 parts", 1 << 18, false);
  print_table("Optimizer on the disk, in 4 parts", 1 << 19, false);
  print_table("Both, the optimizer in 4 parts", 1 << 19, true);
  print_table("Both, the optimizer in 4 parts, 4 micro-steps before a step", 1 << 19, true, 4);
  print_table("Both, the optimizer in 8 parts, 32 micro-steps before a step", 1 << 18, true, 32);
}

}  // namespace
}  // namespace accelerate

int main() { accelerate::measure(); }
