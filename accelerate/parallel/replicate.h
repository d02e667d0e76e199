/// Giving all ranks the same model.
///
/// Source: torch.nn.parallel.DistributedDataParallel, whose constructor does the same.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace accelerate {

/// Copies rank `source`'s tensors to all ranks. Collective: large broadcasts of several tensors
/// each.
void broadcast_tensors(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                       const std::vector<at::Tensor>& tensors, int source);

/// Compares the ranks' models, and gives all ranks rank 0's parameters and buffers. Collective.
/// Errors: c10::ValueError, on all ranks, if names, order, dtypes, shapes or strides of parameters
///         and buffers differ, or which of them are trained. It names the first difference and the
///         ranks that have it.
void replicate(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
               const torch::nn::Module& module);

}  // namespace accelerate
