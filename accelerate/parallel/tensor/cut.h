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

/// Leaves the module this rank's parts of the parameters that the plan cuts. They remain the same
/// tensors. Those of an empty model get parts of the values of their construction, or of the file
/// that they wait for, of which the rank reads its part: now, or where sharding divides them
/// further, when it does.
void cut_tensor_parallel(const TechniqueContext& context);

}  // namespace accelerate
