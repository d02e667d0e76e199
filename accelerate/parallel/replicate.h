/// Giving all ranks the same model.
///
/// Source: torch.nn.parallel.DistributedDataParallel, which does the same when it is made.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace accelerate {

/// Rank `source`'s values in all ranks' tensors. Collective: large broadcasts, several tensors in
/// each.
void broadcast_tensors(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                       const std::vector<at::Tensor>& tensors, int source);

/// Gives all ranks rank 0's parameters and buffers. Collective.
/// Errors: c10::ValueError, on all ranks alike, if their models are not of the same kind; see
///         check_same_model.
void replicate(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
               const torch::nn::Module& module);

}  // namespace accelerate
