/// A model whose parameters ranks have parts of, as a technique that divides layers would leave it:
/// for tests of what such a technique will stand on.
///
/// Threads: the rank's thread.
#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "accelerate/mesh/mesh.h"
#include "accelerate/parallel/layout/model_layout.h"

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace accelerate {

/// The rank's part of a whole tensor, before rows are divided. Local.
at::Tensor cut_part(const at::Tensor& whole, const TensorPlacement& placement, const Mesh& mesh,
                    int rank);

/// A view of the box of the tensor.
at::Tensor in_box(const at::Tensor& tensor, const Box& box);

/// Leaves the module this rank's parts of its parameters, and tells what prepares it about them.
/// Local; every rank calls it with the same layout.
void cut_by_hand(const std::shared_ptr<torch::nn::Module>& module,
                 const std::shared_ptr<const ModelLayout>& layout, int rank);

}  // namespace accelerate
