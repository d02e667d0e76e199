// How long ranks wait for the hops of a ring, which run beside the attention to the block before.
//
// A rank calls hop k, which brings block k, when it begins block k - 1: then it has the keys that
// it hands on, and its kernels so far are launched. A hop begins when all ranks have called it, and
// a rank's block k begins when its block k - 1 and hop k have ended. So a rank waits as far as hop
// k outlasts its block k - 1.
//
// n ranks whose blocks take b, but the first one a, and whose hops take h, wait forward for
//   max(h - a, 0) + (n - 2) max(h - b, 0).
// Backward a rank hands on the gradients of the keys of block k behind it, on the same links as the
// keys of block k + 2, and adds those of block k - 1 to them: two hops run beside each block but
// the first, which has one of keys, and the last, which has one of gradients; and the last
// gradients come when no block is left. So ranks wait for
//   max(h - a, 0) + (n - 2) max(2 h - b, 0) + max(h - b, 0) + h.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "accelerate/parallel/sequence/ring_attention.h"
#include "accelerate/runtime/runtime.h"
#include "simulator/cluster/cluster.h"
#include "simulator/trace/rank_sums.h"
#include "simulator/trace/trace.h"

namespace accelerate {
namespace {

using simulator::BusyTime;
using simulator::Cluster;
using simulator::ClusterOptions;
using simulator::Numerics;
using simulator::Rank;
using simulator::Slice;
using simulator::SliceKind;
using simulator::Trace;

// One sequence, of which each rank has some tokens.
struct Attention {
  int64_t heads = 8, tokens = 1024, size = 64;
  bool is_causal = true;
  bool backward = false;
};

// The times of one pass, in nanoseconds.
struct RingTimes {
  std::vector<std::vector<int64_t>> blocks;  // by rank
  std::vector<int64_t> hops;                 // in order
  std::vector<int64_t> waits;                // by rank: for hops, without a kernel

  int64_t in_hops() const { return std::accumulate(hops.begin(), hops.end(), int64_t{0}); }
};

constexpr int64_t kSecond = 1'000'000'000;
// The allocator of a measured device takes time for segments that it does not have yet.
constexpr int64_t kPasses = 5;

// Each pass begins at a second of its own, on all ranks at once.
Trace run_passes(const std::string& shape, const Attention& attention) {
  ClusterOptions options;
  options.record = true;
  options.numerics = Numerics::kShapes;
  Cluster cluster(shape, options);
  cluster.run_on_every_rank([&](Rank& rank) {
    auto& device = *rank.device();
    const ContextRing ring{.group = rank.runtime().new_group({.name = "cp"}), .gathers = false};
    const auto part = [&] {
      return at::empty({1, attention.heads, attention.tokens, attention.size},
                       at::TensorOptions(rank.runtime().device()).dtype(at::kBFloat16))
          .requires_grad_(attention.backward);
    };
    const at::Tensor queries = part(), keys = part(), values = part();
    const at::Tensor gradient = at::ones_like(queries.detach());
    const auto wait_until = [&](int64_t ns) {
      device.synchronize();
      rank.runtime().sleep_for(absl::Nanoseconds(ns - device.host_ns()));
    };
    for (int64_t pass = 0; pass < kPasses; ++pass) {
      wait_until((2 * pass + 1) * kSecond);
      const at::Tensor output =
          ring_attention(queries, keys, values, {.is_causal = attention.is_causal}, ring);
      wait_until((2 * pass + 2) * kSecond);
      if (attention.backward) output.backward(gradient);
    }
  });
  return cluster.trace();
}

// Those of the last pass.
RingTimes ring_times(const std::string& shape, const Attention& attention) {
  const Trace trace = run_passes(shape, attention);
  const int64_t begin_ns = (2 * kPasses - (attention.backward ? 0 : 1)) * kSecond;
  std::vector<Slice> slices;
  for (const Slice& each : trace.slices) {
    if (each.start_ns >= begin_ns && each.start_ns < begin_ns + kSecond) slices.push_back(each);
  }
  std::ranges::stable_sort(slices, {}, &Slice::start_ns);
  RingTimes times;
  times.blocks.resize(trace.ranks.size());
  std::vector<BusyTime> busy(trace.ranks.size(), BusyTime(trace.slices.size()));
  for (const Slice& each : slices) {
    const auto rank = static_cast<size_t>(each.rank);
    const int64_t length_ns = each.end_ns - each.start_ns;
    if (each.kind == SliceKind::kKernel) {
      busy[rank].add_kernel({.start_ns = each.start_ns, .end_ns = each.end_ns});
      // A block is attention and the kernels behind it.
      if (absl::StrContains(trace.names[each.name], "attention")) times.blocks[rank].push_back(0);
      if (!times.blocks[rank].empty()) times.blocks[rank].back() += length_ns;
    } else if (each.operation >= 0) {
      busy[rank].add_communication({.start_ns = each.start_ns, .end_ns = each.end_ns});
      if (rank == 0 && each.kind == SliceKind::kCollective) times.hops.push_back(length_ns);
    }
  }
  for (const BusyTime& each : busy) times.waits.push_back(each.totals().exposed_ns);
  return times;
}

// ---- Devices on which attention and hops alone take time.

constexpr int64_t kRanks = 4;
constexpr int64_t kBlock = 100'000;  // all of a rank's queries with all keys of another

std::string plain_devices(const Attention& attention, int64_t hop_ns) {
  const int64_t products = 4 * attention.tokens * attention.tokens * attention.heads;
  const int64_t sent = int64_t{2} * 2 * attention.tokens * attention.heads * attention.size;
  return absl::StrCat(R"({"num_nodes": 1, "ranks_per_node": )", kRanks, R"(,
      "device": {"name": "plain", "family": "gpu", "memory_bytes": "1GiB",
                 "memory_bytes_per_second": 1e18, "flops_per_second": {"fp32": )",
                      products * attention.size * (kSecond / kBlock), R"(},
                 "launch_ns": 0, "kernel_ns_min": 0},
      "node_fabric": "switch", "node_link": {"bytes_per_second": )",
                      sent * kSecond / hop_ns, R"(, "latency_ns": 0}})");
}

// Where attention is causal a block has half of the pairs, and the first one its diagonal as well.
std::vector<int64_t> expected_blocks(const Attention& attention) {
  const double whole = static_cast<double>(kBlock) * (attention.backward ? 2.5 : 1);
  std::vector<int64_t> blocks(kRanks, std::llround(attention.is_causal ? whole / 2 : whole));
  if (attention.is_causal) {
    blocks[0] = std::llround(whole / 2 * (1 + 1.0 / static_cast<double>(attention.tokens)));
  }
  return blocks;
}

int64_t expected_wait(const std::vector<int64_t>& blocks, int64_t hop, bool backward) {
  const auto outlasts = [](int64_t hops, int64_t block) {
    return std::max<int64_t>(hops - block, 0);
  };
  if (!backward) return outlasts(hop, blocks[0]) + (kRanks - 2) * outlasts(hop, blocks[1]);
  return outlasts(hop, blocks[0]) + (kRanks - 2) * outlasts(2 * hop, blocks[1]) +
         outlasts(hop, blocks[1]) + hop;
}

void expect_closed_form(bool backward) {
  for (const bool is_causal : {false, true}) {
    for (const int64_t hop : {20'000, 80'000, 160'000, 400'000}) {
      SCOPED_TRACE(absl::StrCat(is_causal ? "causal" : "all pairs", ", hops of ", hop, " ns"));
      const Attention attention{.is_causal = is_causal, .backward = backward};
      const RingTimes times = ring_times(plain_devices(attention, hop), attention);
      const std::vector<int64_t> blocks = expected_blocks(attention);
      const int64_t num_hops = backward ? 2 * kRanks - 1 : kRanks - 1;
      EXPECT_EQ(times.hops, std::vector<int64_t>(static_cast<size_t>(num_hops), hop));
      EXPECT_EQ(times.blocks, std::vector<std::vector<int64_t>>(kRanks, blocks));
      EXPECT_EQ(times.waits, std::vector<int64_t>(kRanks, expected_wait(blocks, hop, backward)));
    }
  }
}

TEST(RingTime, IsAWaitAsFarAsHopsOutlastBlocks) { expect_closed_form(/*backward=*/false); }

TEST(RingTime, IsBackwardAWaitAsFarAsTwoHopsOutlastABlock) {
  expect_closed_form(/*backward=*/true);
}

// ---- Devices as they are.

// What ranks wait forward whose blocks take what they take.
std::vector<int64_t> waits_by_blocks(const RingTimes& times) {
  const size_t ranks = times.blocks.size();
  std::vector<int64_t> waits(ranks), ends(ranks);  // ends of the blocks so far
  int64_t came = 0;                                // the end of the hop that brings the block
  for (size_t block = 0; block + 1 < ranks; ++block) {
    int64_t called = 0;
    for (size_t rank = 0; rank < ranks; ++rank) {
      const int64_t begin = std::max(ends[rank], came);
      called = std::max(called, begin);
      ends[rank] = begin + times.blocks[rank][block];
    }
    came = called + times.hops[block];
    for (size_t rank = 0; rank < ranks; ++rank) {
      waits[rank] += std::max<int64_t>(came - ends[rank], 0);
    }
  }
  return waits;
}

// 32,768 tokens of a Llama with 7 billion parameters. The first rank has the shortest blocks: its
// tail alone sees the keys of others, so that it joins half as many results as the last rank, for
// which it waits.
TEST(RingTime, OfTokensOfALlamaFollowsFromItsBlocks) {
  // What the host takes for some launches.
  constexpr double kSlack = 20'000;
  for (const std::string shape : {"1x8:h100", "8x1:h100"}) {
    SCOPED_TRACE(shape);
    const RingTimes times = ring_times(shape, {.heads = 32, .tokens = 32'768 / 8, .size = 128});
    ASSERT_EQ(times.hops.size(), 7u);
    ASSERT_EQ(times.blocks.size(), 8u);
    for (const std::vector<int64_t>& each : times.blocks) ASSERT_EQ(each.size(), 8u);
    const std::vector<int64_t> expected = waits_by_blocks(times);
    for (size_t rank = 0; rank < times.waits.size(); ++rank) {
      EXPECT_NEAR(static_cast<double>(times.waits[rank]), static_cast<double>(expected[rank]),
                  kSlack)
          << rank;
    }
    EXPECT_GE(times.waits.front(), times.waits.back());
    // Beside NVLink a block takes longer than a hop, beside a NIC it does not.
    if (shape == "1x8:h100") {
      RecordProperty("waits_of_rank_0_ns", absl::StrCat(times.waits.front()));
      EXPECT_LT(times.waits.back(), times.in_hops() / 10);
    } else {
      EXPECT_GT(times.waits.back(), times.in_hops() / 4);
    }
  }
}

}  // namespace
}  // namespace accelerate
