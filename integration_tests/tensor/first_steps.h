/// How many steps of a training are compared where another layout's answers stand for its own.
///
/// Threads: any.
#pragma once

namespace accelerate {

/// Four of `all` steps: by then weights depend on gradients, on their norms and on the momentum of
/// several steps. All of them where ACCELERATE_ORACLE_STEPS is "all", as ci/parallel.sh sets it.
int first_steps(int all);

}  // namespace accelerate
