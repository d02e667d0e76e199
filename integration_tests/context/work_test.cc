// What attention along cp costs: as much work on each rank, and what of the ring no kernel hides.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "absl/strings/str_cat.h"
#include "accelerate/parallel/sequence/ring_attention.h"
#include "accelerate/runtime/runtime.h"
#include "simulator/cluster/cluster.h"
#include "simulator/trace/trace.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::ClusterOptions;
using simulator::Numerics;
using simulator::Rank;
using simulator::SliceKind;
using simulator::Trace;

constexpr int64_t kHeads = 2, kSize = 16, kLength = 64;
// Two numbers for each element of the scores' and of the results' products.
constexpr double kFlopsOfAPair = 2.0 * 2 * kHeads * kSize;

// What the operators of each rank compute for causal attention of one sequence.
std::vector<double> flops_of(int ranks, SequenceOrder order, bool gathers, bool backward) {
  ClusterOptions options;
  options.record = true;
  Cluster cluster(absl::StrCat("1x", ranks, ":h100"), options);
  cluster.run_on_every_rank([&](Rank& rank) {
    const ContextRing ring{
        .group = rank.runtime().new_group({.name = "cp"}), .order = order, .gathers = gathers};
    const auto part = [&] {
      return at::ones({1, kHeads, kLength / ranks, kSize},
                      at::TensorOptions(rank.runtime().device()).dtype(at::kFloat))
          .requires_grad_(backward);
    };
    const at::Tensor output =
        ring_attention(part(), part(), part(), {.is_causal = true, .scale = 1.0}, ring);
    if (backward) output.backward(at::ones_like(output));
  });
  std::vector<double> flops;
  for (const simulator::RankSummary& each : cluster.trace().ranks) flops.push_back(each.flops);
  return flops;
}

// At two ranks each has a quarter of the scores of the whole square, up to its diagonal.
TEST(ContextWork, OfRanksIsEqualInBalancedOrder) {
  constexpr double kPairs = kLength * (kLength + 1) / 2.0;
  for (const int ranks : {2, 4}) {
    for (const bool gathers : {false, true}) {
      const std::vector<double> each(static_cast<size_t>(ranks), kFlopsOfAPair * kPairs / ranks);
      EXPECT_EQ(flops_of(ranks, SequenceOrder::kBalanced, gathers, /*backward=*/false), each);
      // Backward there are five products in place of two.
      const std::vector<double> both(static_cast<size_t>(ranks), each[0] * 3.5);
      EXPECT_EQ(flops_of(ranks, SequenceOrder::kBalanced, gathers, /*backward=*/true), both);
    }
  }
}

// The last of n ranks has 2 n - 1 times the scores of the first one, nearly.
TEST(ContextWork, OfRanksGrowsInTurn) {
  constexpr int kRanks = 4;
  constexpr double kOwn = kLength / kRanks;
  const std::vector<double> flops =
      flops_of(kRanks, SequenceOrder::kInTurn, /*gathers=*/false, /*backward=*/false);
  ASSERT_EQ(flops.size(), static_cast<size_t>(kRanks));
  for (size_t rank = 0; rank < flops.size(); ++rank) {
    const double pairs = kOwn * (kOwn + 1) / 2 + static_cast<double>(rank) * kOwn * kOwn;
    EXPECT_EQ(flops[rank], kFlopsOfAPair * pairs) << rank;
  }
}

// ---- Time.

struct Interval {
  int64_t start = 0, end = 0;
  int64_t length() const { return end - start; }
};

// One attention of a Llama with 7 billion parameters and 32,768 tokens, on the first rank.
struct RingTimes {
  std::vector<Interval> hops, kernels;  // by their starts

  int64_t total() const { return kernels.back().end - hops.front().start; }
  int64_t in_hops() const {
    int64_t sum = 0;
    for (const Interval& each : hops) sum += each.length();
    return sum;
  }
  // The time of hops in which no kernel runs.
  int64_t exposed() const {
    int64_t sum = 0;
    for (const Interval& hop : hops) {
      sum += hop.length();
      for (const Interval& kernel : kernels) {
        sum -=
            std::max<int64_t>(std::min(hop.end, kernel.end) - std::max(hop.start, kernel.start), 0);
      }
    }
    return sum;
  }
  // What it is by the closed form: while a hop is under way, a block is computed.
  int64_t longer_than_blocks() const {
    int64_t sum = 0;
    for (size_t i = 0; i < hops.size(); ++i) {
      const int64_t end = i + 1 < hops.size() ? hops[i + 1].start : hops[i].end;
      int64_t block = 0;
      for (const Interval& kernel : kernels) {
        if (hops[i].start <= kernel.start && kernel.start < end) block += kernel.length();
      }
      sum += std::max<int64_t>(hops[i].length() - block, 0);
    }
    return sum;
  }
};

RingTimes times_of_ring(const std::string& shape) {
  ClusterOptions options;
  options.record = true;
  options.numerics = Numerics::kShapes;
  Cluster cluster(shape, options);
  cluster.run_on_every_rank([&](Rank& rank) {
    const ContextRing ring{.group = rank.runtime().new_group({.name = "cp"}), .gathers = false};
    const auto part = [&] {
      return at::empty({1, 32, 32'768 / 8, 128},
                       at::TensorOptions(rank.runtime().device()).dtype(at::kBFloat16));
    };
    (void)ring_attention(part(), part(), part(), {.is_causal = true}, ring);
  });
  RingTimes times;
  const Trace& trace = cluster.trace();
  for (const simulator::Slice& each : trace.slices) {
    if (each.rank != 0) continue;
    const Interval interval{.start = each.start_ns, .end = each.end_ns};
    if (each.kind == SliceKind::kKernel) times.kernels.push_back(interval);
    // Keys and values are 64 MiB.
    if (each.kind == SliceKind::kCollective &&
        trace.operations[static_cast<size_t>(each.operation)].bytes > 1 << 20) {
      times.hops.push_back(interval);
    }
  }
  std::ranges::sort(times.hops, {}, &Interval::start);
  std::ranges::sort(times.kernels, {}, &Interval::start);
  return times;
}

// Beside NVLink, where a block takes longer than a hop, and beside NICs, where it does not.
TEST(ContextTime, OfTheRingIsExposedAsFarAsHopsTakeLongerThanBlocks) {
  for (const std::string shape : {"1x8:h100", "8x1:h100"}) {
    SCOPED_TRACE(shape);
    const RingTimes times = times_of_ring(shape);
    ASSERT_EQ(times.hops.size(), 7u);
    ASSERT_GT(times.kernels.size(), 8u);
    // The host takes a moment from the first hop to the first block.
    const double slack = 0.02 * static_cast<double>(times.total());
    EXPECT_NEAR(static_cast<double>(times.exposed()),
                static_cast<double>(times.longer_than_blocks()), slack);
    if (shape == "1x8:h100") {
      EXPECT_LT(times.exposed(), times.in_hops() / 10);
    } else {
      EXPECT_GT(times.exposed(), times.in_hops() / 3);
    }
  }
}

}  // namespace
}  // namespace accelerate
