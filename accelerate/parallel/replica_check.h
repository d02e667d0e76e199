/// Whether ranks hold the same model, before its tensors are taken for replicas of each other.
///
/// Mirrors: torch.distributed.utils, _verify_param_shape_across_processes, with names.
#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace accelerate {

/// Compares parameters and buffers with rank 0's: names, order, dtypes, shapes, strides, and which
/// are trained. Collective: two small operations.
/// Errors: c10::ValueError, on all ranks alike, with the first that differs and the ranks on which.
void check_same_model(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                      const torch::nn::Module& module);

}  // namespace accelerate
