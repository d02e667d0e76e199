/// Giving all ranks the same model.
///
/// Threads: as for the collectives of accelerate/comm.
#pragma once

#include "accelerate/base/libtorch_fwd.h"
#include "accelerate/comm/process_group.h"

namespace accelerate {

/// Compares the ranks' models. Collective: two small operations, and
/// a third where they differ.
/// Errors: c10::ValueError, on all ranks, if names, order, dtypes, shapes or strides of parameters
///         and buffers differ, or which of them are trained. It names the first difference and the
///         ranks that have it.
/// Mirrors: torch.distributed.utils, _verify_param_shape_across_processes, with names.
void check_same_model(const ProcessGroupPtr& group, const torch::nn::Module& module);

/// Compares the ranks' models, and gives all ranks rank 0's parameters and buffers. Collective.
/// Errors: those of check_same_model.
void replicate(const ProcessGroupPtr& group, const torch::nn::Module& module);

}  // namespace accelerate
