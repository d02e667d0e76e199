/// Which experts of a mixture a token goes to, and with which weight.
///
/// Local. Threads: any.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "accelerate/base/enum_text.h"

namespace accelerate {

/// Who chooses the experts.
enum class Routing {
  kLearned,   ///< the router: the experts that it finds most probable
  kBalanced,  ///< a fixed rule by which all experts get as many tokens, within one
  kSkewed,    ///< a fixed rule by which the first expert gets more (RouterOptions::skew)
};

ACCELERATE_ENUM_TEXTS(Routing, "routing", "learned", "balanced", "skewed")

struct RouterOptions {
  int64_t experts = 0;
  /// How many different experts each token goes to.
  int64_t top_k = 2;
  /// Whether the weights of a token's experts are divided by their sum.
  bool renormalises = true;
  /// An expert takes the first ceil(factor * tokens * top_k / experts) of the choices that a rank
  /// makes for it in a pass, in the order of tokens; the others add nothing to the result. Absent:
  /// every choice is taken.
  std::optional<double> capacity_factor = std::nullopt;
  /// The loss of a pass has as terms: this times experts * the sum over experts of (the part of all
  /// choices) * (the mean probability), which is 1 where all are equal.
  double balance_loss = 0;
  /// And this times the mean square of log(sum(exp(logits))).
  double z_loss = 0;
  /// A fixed rule needs no values, as where the simulator computes shapes alone, and ranks know how
  /// much they send each other without asking: all must have as many tokens.
  Routing routing = Routing::kLearned;
  /// With kSkewed: how many times the mean number of choices the first expert has, but each token
  /// at most once.
  double skew = 2;
};

/// What a rank's router decides for its tokens in one pass. Choice number c is that of token
/// c / top_k.
struct Routed {
  /// float [tokens * top_k]: the choices' weights, with gradients.
  at::Tensor weights;
  /// int64 [tokens * top_k]: the numbers of all choices, by expert and then by number.
  at::Tensor order;
  /// int64 [experts], on the device: how many choices each expert has, before any is dropped.
  at::Tensor counts;
  /// The same on the host, where a fixed rule says it; else empty.
  std::vector<int64_t> known_counts;
  /// The losses, or undefined without any. Float, without dims.
  at::Tensor loss;
};

/// Errors: c10::ValueError naming the option that is out of range.
void check_router(const RouterOptions& options);

/// Computed in float32, also where operators choose their precision. Shapes: x [tokens, hidden];
/// weight [experts, hidden].
Routed route(const at::Tensor& x, const at::Tensor& weight, const RouterOptions& options);

/// How many choices an expert takes of those of so many tokens.
int64_t capacity_of(int64_t tokens, const RouterOptions& options);

}  // namespace accelerate
