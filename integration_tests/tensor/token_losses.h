/// Losses and norms of trainings on ranks that compute other tokens each, as many as they have.
///
/// Threads: the test's.
#pragma once

#include <functional>
#include <vector>

#include "simulator/cluster/cluster.h"

namespace accelerate {

/// What one rank has of a training, by step.
struct TokenShare {
  std::vector<double> losses;  ///< sums over the rank's tokens
  std::vector<double> tokens;  ///< that count
  std::vector<double> norms;
};

struct TokenOutcome {
  std::vector<double> losses;  ///< means over the tokens of each step, before it
  std::vector<double> norms;   ///< of each step's gradients, before they are clipped
};

/// Runs `train` on every rank of the cluster.
TokenOutcome train_on_every_rank(simulator::Cluster& cluster,
                                 const std::function<TokenShare()>& train);

}  // namespace accelerate
