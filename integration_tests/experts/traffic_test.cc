// What ranks along ep send each other for experts, to the byte, and what they compute meanwhile;
// and that a fixed rule for the choice of experts needs no values. On clusters of that shape.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "accelerate/accelerate.h"
#include "accelerate/config/parallelism_config.h"
#include "integration_tests/experts/expert_training.h"
#include "simulator/cluster/cluster.h"
#include "simulator/trace/trace.h"

namespace accelerate {
namespace {

// 512 tokens of 128 features for 2 of 8 experts: what leaves a rank in one direction where ep has
// two ranks, and where it has four. Bytes.
constexpr int64_t kOfTwo = 262'144;
constexpr int64_t kOfFour = 393'216;

// One layer; other axes than ep have groups of their own.
ExpertTraining balanced(int64_t ep) {
  ExpertTraining training = {.router = {.routing = Routing::kBalanced}, .clips = false};
  training.config =
      lm::model_config("tiny", {.blocks = lm::Blocks::kLlama, .layers = 1, .experts = 8});
  training.sizes = ParallelismOptions{.dp_shard_size = 2 * ep, .ep_size = ep};
  training.cluster = ep == 2 ? "1x4:h100" : "1x8:h100";
  training.rows = 4 * 2 * ep;
  return training;
}

// By all ranks, in one step more.
int64_t sent_in_a_step(ExpertTraining training) {
  training.steps = 1;
  const double one = train_experts(training).bytes["ep"];
  training.steps = 2;
  const double two = train_experts(training).bytes["ep"];
  return static_cast<int64_t>(two - one);
}

TEST(TrafficOfExperts, IsWhatOtherRanksExpertsTake) {
  // On four and on eight ranks, there and back, forward and backward.
  EXPECT_EQ(sent_in_a_step(balanced(2)), 4 * 4 * kOfTwo);
  EXPECT_EQ(sent_in_a_step(balanced(4)), 8 * 4 * kOfFour);
}

// The dispatch and the combine of the forward pass once more.
TEST(TrafficOfExperts, IsMoreWhereBlocksAreComputedAgain) {
  ExpertTraining training = balanced(2);
  training.computes_again = true;
  EXPECT_EQ(sent_in_a_step(training), 4 * 6 * kOfTwo);
}

// Beside rows of 512 bytes each rank sends 4 numbers of 8 bytes, of the rows that the other rank's
// experts get.
TEST(TrafficOfExperts, OfARouterHasItsCounts) {
  ExpertTraining training = balanced(2);
  training.router = {};
  EXPECT_EQ(sent_in_a_step(training) % 512, 4 * 4 * 8);
}

struct Span {
  int64_t start_ns = 0;
  int64_t end_ns = 0;
};

// What the first rank does in a forward pass of a mixture by itself, by the time when it begins.
struct PassOfAMixture {
  Span dispatch, combine;
  /// From the dispatch on.
  std::vector<Span> kernels = {};

  int64_t duration_ns() const { return kernels.back().end_ns - dispatch.start_ns; }
};

PassOfAMixture pass_of_a_mixture(int64_t shared_intermediate) {
  using simulator::SliceKind;
  simulator::ClusterOptions options;
  options.record = true;
  options.numerics = simulator::Numerics::kShapes;
  options.unknown_value = [](const std::string&) { return std::nan(""); };
  simulator::Cluster cluster("1x2:h100", options);
  cluster.run_on_every_rank([shared_intermediate](simulator::Rank&) {
    const ParallelismOptions sizes{.dp_shard_size = 2, .ep_size = 2};
    Accelerator accelerator({.parallelism_config = ParallelismConfig(sizes)});
    MixtureOfExperts mixture(MixtureOptions{.hidden = 1024,
                                            .intermediate = 1024,
                                            .router = {.experts = 4, .routing = Routing::kBalanced},
                                            .shared_intermediate = shared_intermediate});
    auto model = accelerator.prepare(mixture.ptr());
    const at::NoGradGuard no_grad;
    model(at::zeros({16'384, 1024}).to(accelerator.device()));
  });
  const simulator::Trace& trace = cluster.trace();
  std::vector<Span> exchanges, kernels;
  for (const simulator::Slice& slice : trace.slices) {
    if (slice.rank != 0) continue;
    const bool is_exchange =
        slice.kind == SliceKind::kCollective && trace.names[slice.name] == "all_to_all_single";
    if (is_exchange) exchanges.push_back({slice.start_ns, slice.end_ns});
    if (slice.kind == SliceKind::kKernel) kernels.push_back({slice.start_ns, slice.end_ns});
  }
  std::ranges::sort(exchanges, {}, &Span::start_ns);
  std::ranges::sort(kernels, {}, &Span::start_ns);
  EXPECT_EQ(exchanges.size(), 2) << "there and back";
  PassOfAMixture pass{.dispatch = exchanges.front(), .combine = exchanges.back()};
  for (const Span& kernel : kernels) {
    if (kernel.start_ns >= pass.dispatch.start_ns) pass.kernels.push_back(kernel);
  }
  return pass;
}

// How many kernels run while tokens or their results travel.
int64_t kernels_beside_messages(const PassOfAMixture& pass) {
  return std::ranges::count_if(pass.kernels, [&pass](const Span& kernel) {
    const auto is_beside = [&kernel](const Span& exchange) {
      return kernel.start_ns < exchange.end_ns && exchange.start_ns < kernel.end_ns;
    };
    return is_beside(pass.dispatch) || is_beside(pass.combine);
  });
}

TEST(ASharedExpert, IsComputedWhileTokensTravel) {
  EXPECT_EQ(kernels_beside_messages(pass_of_a_mixture(/*shared_intermediate=*/0)), 0);
  EXPECT_GT(kernels_beside_messages(pass_of_a_mixture(/*shared_intermediate=*/4096)), 0);
}

// The experts begin when both the tokens and the shared expert's result are there, so that the pass
// takes longer by what the shared expert takes beyond the dispatch, and by the sum of both results.
TEST(ASharedExpert, TakesTheTimeBeyondTheDispatchAlone) {
  const PassOfAMixture without = pass_of_a_mixture(/*shared_intermediate=*/0);
  for (const int64_t size : {32, 4096}) {
    SCOPED_TRACE(size);
    const PassOfAMixture with = pass_of_a_mixture(size);
    ASSERT_GT(with.kernels.size(), without.kernels.size() + 1);
    const size_t of_shared = with.kernels.size() - without.kernels.size() - 1;
    const int64_t shared_end = with.kernels[of_shared - 1].end_ns;
    const int64_t both_there = std::max(with.dispatch.end_ns, shared_end);
    EXPECT_GE(with.kernels[of_shared].start_ns, both_there);
    const Span& sum = with.kernels.back();
    const double expected = static_cast<double>(without.duration_ns() + both_there -
                                                with.dispatch.end_ns + sum.end_ns - sum.start_ns);
    EXPECT_NEAR(static_cast<double>(with.duration_ns()), expected, 0.02 * expected);
  }
}

TEST(BalancedRouting, NeedsNoValues) {
  ExpertTraining training = balanced(2);
  training.steps = 2;
  const ExpertOutcome real = train_experts(training);
  training.numerics = simulator::Numerics::kShapes;
  const ExpertOutcome shapes = train_experts(training);
  EXPECT_EQ(real.taken,
            (std::vector<std::vector<int64_t>>{{128, 128, 128, 128, 128, 128, 128, 128}}));
  EXPECT_EQ(shapes.taken, real.taken);
  EXPECT_EQ(shapes.bytes, real.bytes);
  EXPECT_EQ(shapes.elapsed, real.elapsed);
}

// The slowest rank decides, which has more rows.
TEST(SkewedRouting, TakesLongerThanBalancedRouting) {
  const auto outcome = [](Routing routing) {
    ExpertTraining training = balanced(2);
    training.config = lm::model_config(
        "125m", {.blocks = lm::Blocks::kLlama, .layers = 1, .vocabulary = 256, .experts = 8});
    training.router = {.routing = routing, .skew = 4};
    training.steps = 2;
    training.numerics = simulator::Numerics::kShapes;
    return train_experts(training);
  };
  const ExpertOutcome skewed = outcome(Routing::kSkewed);
  EXPECT_EQ(skewed.taken[0][0], 4 * 2048) << "every token";
  EXPECT_GT(skewed.elapsed, outcome(Routing::kBalanced).elapsed);
}

}  // namespace
}  // namespace accelerate
