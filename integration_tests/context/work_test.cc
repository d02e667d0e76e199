// What attention along cp costs: as much work on each rank.
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
using simulator::Rank;

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

}  // namespace
}  // namespace accelerate
