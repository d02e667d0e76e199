// Attention of parts of sequences, beside attention of whole ones in float64.
#include "accelerate/parallel/sequence/ring_attention.h"

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "absl/strings/str_cat.h"
#include "accelerate/runtime/runtime.h"
#include "accelerate/testing/threaded_group.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::Rank;

constexpr int64_t kBatch = 2, kSize = 16;

struct Case {
  int64_t heads = 4, key_heads = 4, length = 24;
  at::ScalarType dtype = at::kFloat;
  AttentionRule rule = {.is_causal = true};
  double tolerance = 3e-6;
};

struct Result {
  at::Tensor output, queries, keys, values;  // and gradients of these
  std::vector<at::Tensor> all() const { return {output, queries, keys, values}; }
};

// The same on each rank.
at::Tensor drawn(uint64_t seed, const Case& c, int64_t heads) {
  return at::randn({kBatch, heads, c.length, kSize}, at::detail::createCPUGenerator(seed),
                   at::TensorOptions(at::kDouble))
      .to(c.dtype);
}

struct Inputs {
  explicit Inputs(const Case& c)
      : queries(drawn(1, c, c.heads)),
        keys(drawn(2, c, c.key_heads)),
        values(drawn(3, c, c.key_heads)),
        gradient(drawn(4, c, c.heads)) {}
  at::Tensor queries, keys, values, gradient;
};

// By the definition.
Result whole_attention(const Inputs& in, const Case& c) {
  const auto leaf = [](const at::Tensor& x) {
    return x.to(at::kDouble, /*non_blocking=*/false, /*copy=*/true).requires_grad_();
  };
  const at::Tensor queries = leaf(in.queries), keys = leaf(in.keys), values = leaf(in.values);
  const auto repeated = [&](const at::Tensor& x) {
    return x.repeat_interleave(c.heads / c.key_heads, 1);
  };
  const double scale = c.rule.scale.value_or(1 / std::sqrt(static_cast<double>(kSize)));
  at::Tensor scores = queries.matmul(repeated(keys).transpose(-1, -2)) * scale;
  if (c.rule.is_causal) {
    const at::Tensor later = at::ones({c.length, c.length}).triu(1).to(at::kBool);
    scores = scores.masked_fill(later, -INFINITY);
  }
  const at::Tensor output = scores.softmax(-1).matmul(repeated(values));
  output.backward(in.gradient.to(at::kDouble));
  return {output.detach(), queries.grad(), keys.grad(), values.grad()};
}

Result ring(const Inputs& in, const Case& c, const ContextRing& ring, const SequencePlace& place) {
  const auto part = [&place](const at::Tensor& x) { return part_of_sequence(x, 2, place); };
  const at::Tensor queries = part(in.queries).requires_grad_(),
                   keys = part(in.keys).requires_grad_(), values = part(in.values).requires_grad_();
  const at::Tensor output = ring_attention(queries, keys, values, c.rule, ring);
  output.backward(part(in.gradient));
  return {output.detach(), queries.grad(), keys.grad(), values.grad()};
}

// How far apart they are, relative to the second one.
double error_of(const at::Tensor& actual, const at::Tensor& expected) {
  return ((actual.to(at::kDouble) - expected).norm() / expected.norm()).item<double>();
}

void expect_as_whole(int ranks, const Case& c) {
  const Inputs in(c);
  const Result expected = whole_attention(in, c);
  Cluster(absl::StrCat("1x", ranks)).run_on_every_rank([&](Rank& rank) {
    const ProcessGroupPtr group = rank.runtime().new_group({.name = "cp"});
    for (const SequenceOrder order : {SequenceOrder::kBalanced, SequenceOrder::kInTurn}) {
      const SequencePlace place{.rank = rank.index(), .ranks = ranks, .order = order};
      std::vector<at::Tensor> outputs;
      for (const bool gathers : {false, true}) {
        const std::string what = absl::StrCat(
            ranks, " ranks, ", c10::toString(c.dtype), ", ", c.key_heads, " of ", c.heads,
            " heads, ", gathers ? "gathered" : "ring", ", order ", static_cast<int>(order));
        const Result actual =
            ring(in, c, {.group = group, .order = order, .gathers = gathers}, place);
        for (size_t i = 0; i < 4; ++i) {
          const at::Tensor each = actual.all()[i];
          EXPECT_EQ(each.scalar_type(), c.dtype) << what;
          EXPECT_LT(error_of(each, part_of_sequence(expected.all()[i], 2, place)), c.tolerance)
              << what << ", tensor " << i;
        }
        outputs.push_back(actual.output);
      }
      EXPECT_TRUE(at::equal(outputs[0], outputs[1])) << "both exchanges give the same bits";
    }
  });
}

TEST(RingAttention, IsAttentionOfWholeSequences) {
  for (const int ranks : {2, 3, 4}) {
    expect_as_whole(ranks, {});
    expect_as_whole(ranks, {.rule = {.is_causal = false, .scale = 0.3}});
    expect_as_whole(ranks, {.dtype = at::kDouble, .tolerance = 1e-10});
  }
}

// Heads of keys that several heads of queries share are sent once.
TEST(RingAttention, IsTheSameWhereHeadsShareKeys) {
  for (const int64_t key_heads : {1, 2}) {
    expect_as_whole(2, {.key_heads = key_heads});
    expect_as_whole(4, {.key_heads = key_heads, .length = 48});
  }
  expect_as_whole(3, {.heads = 6, .key_heads = 3});
}

// One token in each part.
TEST(RingAttention, TakesShortParts) { expect_as_whole(4, {.length = 8}); }

TEST(RingAttention, OfHalfPrecisionDoesNotDriftWithTheNumberOfRanks) {
  for (const int ranks : {2, 4, 8}) {
    expect_as_whole(ranks,
                    {.key_heads = 2, .length = 128, .dtype = at::kBFloat16, .tolerance = 1e-2});
  }
}

TEST(RingAttention, GivesTheBitsOfTheSimulationOnGloo) {
  const Case c{.key_heads = 2};
  const Inputs in(c);
  for (const bool gathers : {false, true}) {
    std::vector<Result> simulated(2), real(2);
    const auto run = [&](std::vector<Result>& results, const ProcessGroupPtr& group) {
      const int rank = group->getRank();
      results[static_cast<size_t>(rank)] =
          ring(in, c, {.group = group, .gathers = gathers}, {.rank = rank, .ranks = 2});
    };
    Cluster("1x2").run_on_every_rank(
        [&](Rank& rank) { run(simulated, rank.runtime().new_group({.name = "cp"})); });
    run_ranks(2, [&](const ProcessGroupPtr& group) { run(real, group); });
    for (size_t rank = 0; rank < 2; ++rank) {
      for (size_t i = 0; i < 4; ++i) {
        EXPECT_TRUE(at::equal(simulated[rank].all()[i], real[rank].all()[i])) << i;
      }
    }
  }
}

TEST(RingAttention, OfOneRankIsAttention) {
  const Case c;
  const Inputs in(c);
  const Result expected = whole_attention(in, c);
  for (const bool gathers : {false, true}) {
    const Result actual = ring(in, c, {.gathers = gathers}, {});
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_LT(error_of(actual.all()[i], expected.all()[i]), c.tolerance) << i;
    }
  }
}

}  // namespace
}  // namespace accelerate
