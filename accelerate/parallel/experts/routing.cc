#include "accelerate/parallel/experts/routing.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <tuple>

#include <ATen/autocast_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/topk.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

namespace accelerate {
namespace {

// The experts of each choice by a fixed rule. A token's experts follow each other, so they differ.
std::vector<int64_t> fixed_choices(int64_t tokens, const RouterOptions& options) {
  std::vector<int64_t> chosen;
  chosen.reserve(static_cast<size_t>(tokens * options.top_k));
  const bool is_skewed = options.routing == Routing::kSkewed;
  const double mean = static_cast<double>(tokens * options.top_k) /
                      static_cast<double>(std::max<int64_t>(options.experts, 1));
  const int64_t of_first = is_skewed ? std::llround(options.skew * mean) : 0;
  const int64_t first = is_skewed ? 1 : 0;  // of those in turn
  int64_t turn = 0;
  for (int64_t token = 0; token < tokens; ++token) {
    int64_t slots = options.top_k;
    if (token < of_first) {
      chosen.push_back(0);
      --slots;
    }
    for (; slots > 0; --slots) {
      chosen.push_back(first + turn);
      turn = (turn + 1) % (options.experts - first);
    }
  }
  return chosen;
}

at::Tensor on_device_of(const at::Tensor& x, const std::vector<int64_t>& numbers) {
  return at::tensor(numbers, at::kLong).to(x.device());
}

// Fills in what a fixed rule says.
at::Tensor fixed(const at::Tensor& x, const RouterOptions& options, Routed& routed) {
  const std::vector<int64_t> chosen = fixed_choices(x.size(0), options);
  std::vector<int64_t> order(chosen.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::ranges::stable_sort(order, {}, [&](int64_t i) { return chosen[static_cast<size_t>(i)]; });
  routed.known_counts.assign(static_cast<size_t>(options.experts), 0);
  for (const int64_t expert : chosen) ++routed.known_counts[static_cast<size_t>(expert)];
  routed.order = on_device_of(x, order);
  routed.counts = on_device_of(x, routed.known_counts);
  return on_device_of(x, chosen).view({x.size(0), options.top_k});
}

}  // namespace

void check_router(const RouterOptions& options) {
  TORCH_CHECK_VALUE(options.experts >= 1, "a mixture of ", options.experts, " experts");
  TORCH_CHECK_VALUE(options.top_k >= 1 && options.top_k <= options.experts, "top_k is ",
                    options.top_k, ", not from 1 to the number of experts, ", options.experts);
  TORCH_CHECK_VALUE(!options.capacity_factor || *options.capacity_factor > 0, "capacity_factor is ",
                    options.capacity_factor.value_or(0),
                    ", not above 0; leave it out to drop nothing");
  TORCH_CHECK_VALUE(options.balance_loss >= 0 && options.z_loss >= 0, "balance_loss is ",
                    options.balance_loss, " and z_loss ", options.z_loss, ", not at least 0");
  TORCH_CHECK_VALUE(
      options.routing != Routing::kSkewed || (options.skew >= 0 && options.top_k < options.experts),
      "routing skewed: skew is ", options.skew, " and top_k ", options.top_k, " of ",
      options.experts,
      " experts; skew must be at least 0, and some expert is left "
      "out by each token");
}

int64_t capacity_of(int64_t tokens, const RouterOptions& options) {
  const int64_t choices = tokens * options.top_k;
  if (!options.capacity_factor) return choices;
  return static_cast<int64_t>(std::ceil(static_cast<double>(choices) * *options.capacity_factor /
                                        static_cast<double>(options.experts)));
}

Routed route(const at::Tensor& x, const at::Tensor& weight, const RouterOptions& options) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};
  const at::Tensor logits = at::linear(x.to(at::kFloat), weight.to(at::kFloat));
  const at::Tensor probabilities = logits.softmax(-1);
  Routed routed;
  at::Tensor best;
  if (options.routing == Routing::kLearned) {
    at::Tensor chosen;
    std::tie(best, chosen) = probabilities.topk(options.top_k, -1);
    const at::Tensor flat = chosen.flatten();
    routed.order = at::argsort(flat, /*stable=*/true, /*dim=*/0, /*descending=*/false);
    const at::Tensor experts = at::arange(options.experts, flat.options());
    routed.counts = flat.unsqueeze(1).eq(experts).sum(0);
  } else {
    best = probabilities.gather(1, fixed(x, options, routed));
  }
  if (options.renormalises) best = best / best.sum(-1, /*keepdim=*/true);
  routed.weights = best.flatten();
  if (x.size(0) == 0) {
    // Means over no tokens are not numbers. The sum is 0, and has gradients of zeros.
    if (options.balance_loss > 0 || options.z_loss > 0) routed.loss = probabilities.sum();
    return routed;
  }
  if (options.balance_loss > 0) {
    const double choices = static_cast<double>(x.size(0) * options.top_k);
    const at::Tensor share = routed.counts.to(at::kFloat) / choices;
    routed.loss = (share * probabilities.mean(0)).sum() *
                  (options.balance_loss * static_cast<double>(options.experts));
  }
  if (options.z_loss > 0) {
    const at::Tensor z = logits.logsumexp(-1).square().mean() * options.z_loss;
    routed.loss = routed.loss.defined() ? routed.loss + z : z;
  }
  return routed;
}

}  // namespace accelerate
