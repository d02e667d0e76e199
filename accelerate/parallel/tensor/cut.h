/// A rank's parts of a model's parameters, as its plan of tensor parallelism cuts them.
///
/// Local. Threads: the rank's thread.
#pragma once

#include <ATen/core/Tensor.h>

#include "accelerate/mesh/mesh.h"
#include "accelerate/parallel/layout/placement.h"

namespace accelerate {

struct TechniqueContext;

/// The rank's part of a whole tensor, before rows are divided; a tensor of its own.
at::Tensor cut_part(const at::Tensor& whole, const TensorPlacement& placement, const Mesh& mesh,
                    int rank);

/// Leaves the module this rank's parts of the parameters that the plan cuts, of which the rank's
/// stage of a pipeline has all. They remain the same tensors. Those of an empty model wait for
/// parts of the values of their construction, or of the file that they wait for, of which the rank
/// reads its part then.
void cut_tensor_parallel(const TechniqueContext& context);

}  // namespace accelerate
