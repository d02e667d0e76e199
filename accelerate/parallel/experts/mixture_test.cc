#include "accelerate/parallel/experts/mixture.h"

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include "accelerate/testing/threaded_group.h"
#include "accelerate/testing/value_error.h"

namespace accelerate {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kHidden = 6, kInside = 5;

MixtureOptions small(const RouterOptions& router) {
  return {.hidden = kHidden, .intermediate = kInside, .router = router};
}

at::Tensor parameter(MixtureOfExpertsImpl& mixture, const std::string& name) {
  return mixture.named_parameters()[name];
}

at::Tensor by_hand(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& up,
                   const at::Tensor& down) {
  return at::linear(at::silu(at::linear(x, gate)) * at::linear(x, up), down);
}

// Token after token, choice after choice.
at::Tensor by_hand(MixtureOfExpertsImpl& mixture, const at::Tensor& input, int64_t capacity) {
  const RouterOptions& options = mixture.options().router;
  const at::Tensor gate = parameter(mixture, "experts.gate");
  const at::Tensor up = parameter(mixture, "experts.up");
  const at::Tensor down = parameter(mixture, "experts.down");
  const at::Tensor x = input.reshape({-1, kHidden});
  std::vector<int64_t> taken(static_cast<size_t>(options.experts));
  std::vector<at::Tensor> results;
  for (int64_t token = 0; token < x.size(0); ++token) {
    at::Tensor p = at::linear(x[token], parameter(mixture, "router.weight")).softmax(-1);
    auto [weights, chosen] = p.topk(options.top_k);
    if (options.renormalises) weights = weights / weights.sum();
    at::Tensor sum = at::zeros({kHidden});
    for (int64_t slot = 0; slot < options.top_k; ++slot) {
      const auto expert = chosen[slot].item<int64_t>();
      if (++taken[static_cast<size_t>(expert)] > capacity) continue;
      sum = sum + weights[slot] * by_hand(x[token], gate[expert], up[expert], down[expert]);
    }
    results.push_back(sum);
  }
  return at::stack(results).view(input.sizes());
}

std::vector<at::Tensor> gradients_of(MixtureOfExpertsImpl& mixture, const at::Tensor& result) {
  for (const at::Tensor& each : mixture.parameters()) each.mutable_grad() = at::Tensor();
  result.square().sum().backward();
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& each : mixture.parameters()) gradients.push_back(each.grad().clone());
  return gradients;
}

TEST(MixtureOfExperts, IsTheSumOfTheExpertsOfEachToken) {
  torch::manual_seed(1);
  for (const bool renormalises : {true, false}) {
    MixtureOfExperts mixture(small({.experts = 4, .renormalises = renormalises}));
    const at::Tensor x = at::randn({3, 7, kHidden});
    const at::Tensor result = mixture(x);
    const at::Tensor expected = by_hand(*mixture, x, std::numeric_limits<int64_t>::max());
    EXPECT_TRUE(at::allclose(result, expected, 1e-5, 1e-6));
    const auto gradients = gradients_of(*mixture, result);
    const auto of_hand = gradients_of(*mixture, expected);
    for (size_t i = 0; i < gradients.size(); ++i) {
      EXPECT_TRUE(at::allclose(gradients[i], of_hand[i], 1e-4, 1e-6)) << i;
    }
    int64_t choices = 0;
    for (const int64_t count : mixture->taken()) choices += count;
    EXPECT_EQ(choices, 3 * 7 * 2);
    EXPECT_FALSE(mixture->take_router_loss().defined());
  }
}

TEST(MixtureOfExperts, DropsWhatIsBeyondTheCapacityInTheOrderOfTokens) {
  torch::manual_seed(2);
  MixtureOfExperts mixture(small({.experts = 4, .capacity_factor = 0.75}));
  const at::Tensor x = at::randn({20, kHidden});
  const at::Tensor result = mixture(x);
  const int64_t capacity = capacity_of(20, mixture->options().router);
  EXPECT_EQ(capacity, 8);  // 40 / 4 * 0.75, rounded up
  EXPECT_TRUE(at::allclose(result, by_hand(*mixture, x, capacity), 1e-5, 1e-6));
  int64_t choices = 0, dropped = 0;
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_LE(mixture->taken()[i], capacity);
    choices += mixture->taken()[i] + mixture->dropped()[i];
    dropped += mixture->dropped()[i];
  }
  EXPECT_EQ(choices, 40);
  EXPECT_GE(dropped, 40 - 4 * capacity);
}

TEST(MixtureOfExperts, HaveACapacityThatIsRoundedUpWhereItIsNotWhole) {
  const RouterOptions options{.experts = 4, .capacity_factor = 1};
  EXPECT_EQ(capacity_of(16, options), 8);
  EXPECT_EQ(capacity_of(17, options), 9);
  EXPECT_EQ(capacity_of(0, options), 0);
  EXPECT_EQ(capacity_of(16, {.experts = 4}), 32) << "every choice";
}

TEST(MixtureOfExperts, AddsASharedExpertForAllTokens) {
  torch::manual_seed(3);
  MixtureOptions options = small({.experts = 4});
  options.shared_intermediate = 3;
  options.gates_shared = true;
  MixtureOfExperts mixture(options);
  const at::Tensor x = at::randn({9, kHidden});
  const at::Tensor shared =
      by_hand(x, parameter(*mixture, "shared.gate.weight"), parameter(*mixture, "shared.up.weight"),
              parameter(*mixture, "shared.down.weight")) *
      at::linear(x, parameter(*mixture, "shared_gate.weight")).sigmoid();
  const at::Tensor of_experts = by_hand(*mixture, x, std::numeric_limits<int64_t>::max());
  EXPECT_TRUE(at::allclose(mixture(x), of_experts + shared, 1e-5, 1e-6));
}

TEST(MixtureOfExperts, HasTheLossesOfItsRouter) {
  torch::manual_seed(4);
  MixtureOfExperts mixture(small({.experts = 4, .balance_loss = 0.5, .z_loss = 0.25}));
  const at::Tensor x = at::randn({16, kHidden});
  mixture(x);
  const at::Tensor logits = at::linear(x, parameter(*mixture, "router.weight"));
  const at::Tensor p = logits.softmax(-1);
  at::Tensor sum = at::zeros({});
  for (int64_t i = 0; i < 4; ++i) {
    const double share = static_cast<double>(mixture->taken()[static_cast<size_t>(i)]) / 32;
    sum = sum + share * p.select(1, i).mean();
  }
  const at::Tensor expected = 0.5 * 4 * sum + 0.25 * logits.logsumexp(-1).square().mean();
  const at::Tensor loss = mixture->take_router_loss();
  EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-6);
  EXPECT_TRUE(loss.requires_grad());
  EXPECT_FALSE(mixture->take_router_loss().defined());
}

// A router without a difference between experts has a balance loss of its factor.
TEST(MixtureOfExperts, HasALossOfOneWhereAllIsEqual) {
  MixtureOfExperts mixture(small({.experts = 4, .balance_loss = 1, .routing = Routing::kBalanced}));
  const at::NoGradGuard no_grad;
  parameter(*mixture, "router.weight").zero_();
  mixture(at::ones({8, kHidden}));
  EXPECT_NEAR(mixture->take_router_loss().item<double>(), 1, 1e-6);
}

TEST(FixedRouting, GivesExpertsAsManyTokensAsItSays) {
  MixtureOfExperts balanced(small({.experts = 4, .routing = Routing::kBalanced}));
  balanced(at::ones({5, kHidden}));
  EXPECT_THAT(balanced->taken(), ElementsAre(3, 3, 2, 2));
  MixtureOfExperts skewed(small({.experts = 4, .routing = Routing::kSkewed, .skew = 1.5}));
  skewed(at::ones({8, kHidden}));
  EXPECT_THAT(skewed->taken(), ElementsAre(6, 4, 3, 3));
  MixtureOfExperts all(small({.experts = 4, .routing = Routing::kSkewed, .skew = 100}));
  all(at::ones({6, kHidden}));
  EXPECT_THAT(all->taken(), ElementsAre(6, 2, 2, 2)) << "a token goes to an expert once";
}

// Its logits would tie in bfloat16.
TEST(MixtureOfExperts, RoutesInFloat32) {
  MixtureOfExperts mixture(small({.experts = 2, .top_k = 1}));
  const at::NoGradGuard no_grad;
  const at::Tensor router = parameter(*mixture, "router.weight");
  router.fill_(1);
  router[1][0] = 1.001;
  mixture(at::ones({4, kHidden}).to(at::kBFloat16));
  EXPECT_THAT(mixture->taken(), ElementsAre(0, 4));
}

// Operators that choose their precision would choose bfloat16 for the router's product.
TEST(MixtureOfExperts, RoutesInFloat32UnderMixedPrecision) {
  torch::manual_seed(8);
  const RouterOptions options{.experts = 4, .z_loss = 0.25};
  const at::Tensor x = at::randn({9, kHidden}), weight = at::randn({4, kHidden});
  const Routed expected = route(x, weight, options);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  const Routed routed = route(x, weight, options);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
  EXPECT_TRUE(at::equal(routed.weights, expected.weights));
  EXPECT_TRUE(at::equal(routed.order, expected.order));
  EXPECT_TRUE(at::equal(routed.loss, expected.loss));
}

TEST(MixtureOfExperts, ComputesInTheDtypeOfItsInput) {
  torch::manual_seed(5);
  MixtureOfExperts mixture(small({.experts = 4}));
  const at::Tensor x = at::randn({9, kHidden}).to(at::kBFloat16);
  const at::Tensor result = mixture(x);
  EXPECT_EQ(result.scalar_type(), at::kBFloat16);
  result.sum().backward();
  EXPECT_EQ(parameter(*mixture, "experts.gate").grad().scalar_type(), at::kFloat);
}

TEST(MixtureOfExperts, TakesNoTokens) {
  MixtureOfExperts mixture(small({.experts = 4, .capacity_factor = 1.25}));
  const at::Tensor result = mixture(at::ones({0, 3, kHidden}));
  EXPECT_EQ(result.sizes(), (std::vector<int64_t>{0, 3, kHidden}));
  result.sum().backward();
  EXPECT_EQ(parameter(*mixture, "experts.up").grad().abs().max().item<double>(), 0);
}

// A rank may have none in a pass, and adds its loss to those of others.
TEST(MixtureOfExperts, HasALossOfZeroWithoutTokens) {
  for (const Routing routing : {Routing::kLearned, Routing::kBalanced}) {
    MixtureOfExperts mixture(
        small({.experts = 4, .balance_loss = 0.5, .z_loss = 0.25, .routing = routing}));
    const at::Tensor result = mixture(at::ones({0, kHidden}));
    const at::Tensor loss = mixture->take_router_loss();
    EXPECT_EQ(loss.item<double>(), 0);
    (result.sum() + loss).backward();
    EXPECT_EQ(parameter(*mixture, "router.weight").grad().abs().max().item<double>(), 0);
  }
}

// Ranks with halves of the experts, and other tokens, have the results and gradients of one with
// all. `each` is how many a rank has: tables of as many rows as columns look alike transposed.
void expect_same_on_two_ranks(int64_t each) {
  for (const Routing routing : {Routing::kLearned, Routing::kBalanced}) {
    const RouterOptions router{.experts = 2 * each, .capacity_factor = 1, .routing = routing};
    torch::manual_seed(6);
    MixtureOfExperts whole(small(router));
    const at::Tensor inputs = at::randn({2, 9, kHidden});
    at::Tensor sum;
    std::vector<at::Tensor> results;
    for (int64_t rank = 0; rank < 2; ++rank) {
      results.push_back(whole->forward(inputs[rank]));
      const at::Tensor loss = results.back().square().sum();
      sum = sum.defined() ? sum + loss : loss;
    }
    sum.backward();
    const auto expected = whole->named_parameters();
    run_ranks(2, [&](const ProcessGroupPtr& group) {
      const int64_t rank = group->getRank();
      MixtureOfExperts part(small(router));
      {
        const at::NoGradGuard no_grad;
        for (const auto& item : part->named_parameters()) {
          const at::Tensor& all = expected[item.key()];
          const bool is_expert = item.key().starts_with("experts.");
          item.value().set_data(is_expert ? all.detach().narrow(0, each * rank, each).clone()
                                          : all.detach().clone());
        }
      }
      part->divide(group);
      const at::Tensor result = part->forward(inputs[rank]);
      EXPECT_TRUE(at::allclose(result, results[static_cast<size_t>(rank)], 1e-5, 1e-6));
      result.square().sum().backward();
      for (const auto& item : part->experts()->named_parameters()) {
        const at::Tensor all =
            expected["experts." + item.key()].grad().narrow(0, each * rank, each);
        EXPECT_TRUE(at::allclose(item.value().grad(), all, 1e-4, 1e-6)) << item.key();
      }
    });
  }
}

TEST(MixtureOfExperts, IsTheSameOnRanksThatHaveAPartOfTheExperts) {
  for (const int64_t each : {1, 2, 3}) {
    SCOPED_TRACE(each);
    expect_same_on_two_ranks(each);
  }
}

TEST(MixtureOfExperts, IsTheSameOnRanksThatHaveAPartOfEachExpert) {
  constexpr int64_t kHalf = 3;
  MixtureOptions options = small({.experts = 4});
  options.intermediate = 2 * kHalf;
  torch::manual_seed(7);
  MixtureOfExperts whole(options);
  const at::Tensor input = at::randn({9, kHidden}).requires_grad_();
  const at::Tensor result = whole->forward(input);
  result.square().sum().backward();
  const auto expected = whole->named_parameters();
  run_ranks(2, [&](const ProcessGroupPtr& group) {
    MixtureOfExperts part(options);
    const auto part_of = [&](const std::string& name, const at::Tensor& all) {
      if (!name.starts_with("experts.")) return all;
      return all.narrow(name == "experts.down" ? 2 : 1, kHalf * group->getRank(), kHalf);
    };
    {
      const at::NoGradGuard no_grad;
      for (const auto& item : part->named_parameters()) {
        item.value().set_data(
            part_of(item.key(), expected[item.key()].detach()).clone(at::MemoryFormat::Contiguous));
      }
    }
    part->divide(nullptr, group);
    const at::Tensor own = input.detach().clone().requires_grad_();
    const at::Tensor sum = part->forward(own);
    EXPECT_TRUE(at::allclose(sum, result, 1e-5, 1e-6));
    sum.square().sum().backward();
    EXPECT_TRUE(at::allclose(own.grad(), input.grad(), 1e-4, 1e-6));
    for (const auto& item : part->named_parameters()) {
      EXPECT_TRUE(at::allclose(item.value().grad(),
                               part_of(item.key(), expected[item.key()].grad()), 1e-4, 1e-6))
          << item.key();
    }
  });
}

TEST(MixtureOfExperts, RefusesOptionsThatAreOutOfRange) {
  const auto refused = [](const MixtureOptions& options) {
    return value_error_of([&] { MixtureOfExpertsImpl mixture(options); });
  };
  EXPECT_THAT(refused(small({.experts = 0})), HasSubstr("a mixture of 0 experts"));
  EXPECT_THAT(refused(small({.experts = 4, .top_k = 5})),
              HasSubstr("top_k is 5, not from 1 to the number of experts, 4"));
  EXPECT_THAT(refused(small({.experts = 4, .capacity_factor = 0.0})),
              HasSubstr("capacity_factor is 0, not above 0"));
  EXPECT_THAT(refused(small({.experts = 4, .top_k = 0})), HasSubstr("top_k is 0, not from 1"));
  EXPECT_THAT(refused(small({.experts = 4, .balance_loss = -1})), HasSubstr("balance_loss is -1"));
  EXPECT_THAT(refused(small({.experts = 4, .z_loss = -1})), HasSubstr("z_loss -1"));
  EXPECT_THAT(refused(small({.experts = 4, .routing = Routing::kSkewed, .skew = -1})),
              HasSubstr("skew is -1"));
  EXPECT_THAT(refused(small({.experts = 2, .routing = Routing::kSkewed})),
              HasSubstr("some expert is left out by each token"));
  EXPECT_THAT(refused({.hidden = 0, .intermediate = 4, .router = {.experts = 4}}),
              HasSubstr("with hidden 0, intermediate 4"));
  EXPECT_THAT(refused({.hidden = 4, .intermediate = 0, .router = {.experts = 4}}),
              HasSubstr("with hidden 4, intermediate 0"));
  EXPECT_THAT(
      refused(
          {.hidden = 4, .intermediate = 4, .router = {.experts = 4}, .shared_intermediate = -1}),
      HasSubstr("shared_intermediate -1"));
  EXPECT_THAT(
      refused({.hidden = 4, .intermediate = 4, .router = {.experts = 4}, .gates_shared = true}),
      HasSubstr("no shared expert"));
}

}  // namespace
}  // namespace accelerate
