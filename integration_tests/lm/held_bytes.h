/// What the training of a language model with AdamW holds on a simulated device, measured and by
/// the formula.
#pragma once

#include <cstdint>

#include "accelerate/base/enums.h"
#include "accelerate/examples/lm/config.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {

/// Bytes, in blocks of 512.
struct HeldBytes {
  int64_t parameters = 0;
  int64_t gradients = 0;  ///< with the buckets that they are in, where ranks average them
  int64_t optimizer_state = 0;

  bool operator==(const HeldBytes&) const = default;
};

/// Parameters and gradients take four bytes an element, whatever the precision of the forward pass.
/// AdamW has two moments for each parameter, and one number for the step.
HeldBytes formula(const lm::Config& config);

/// After a step of one sequence, as long as the model takes. The blocks of the model are computed
/// again in the backward pass. Collective.
HeldBytes measured(simulator::Rank& rank, const lm::Config& config, PrecisionType precision);

}  // namespace accelerate
