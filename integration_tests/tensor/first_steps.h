/// How many steps of a training are compared where another layout's answers stand for its own, and
/// how often a training is repeated.
///
/// Threads: any.
#pragma once

#include <cstdint>

namespace accelerate {

/// Four of `all` steps: by then weights depend on gradients, on their norms and on the momentum of
/// several steps. All of them where ACCELERATE_ORACLE_STEPS is "all", as ci/parallel.sh sets it.
int first_steps(int all);

/// How many seeds of the cluster a test takes that repeats a training in other orders of ranks: as
/// ACCELERATE_ORDERS_OF_RANKS and so ci/parallel.sh say, else five.
uint64_t orders_of_ranks();

}  // namespace accelerate
