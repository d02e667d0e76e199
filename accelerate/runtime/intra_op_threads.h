/// How many threads one operator of a rank may use.
#pragma once

#include "accelerate/platform/environment.h"

namespace accelerate {

/// One thread for LibTorch and for the BLAS it calls, unless OMP_NUM_THREADS is set: results differ
/// in their last bits with the number of threads, and ranks share a machine. Process-wide.
void limit_intra_op_threads(const Environment& environment);

}  // namespace accelerate
