/// `numerics = shapes`: a run that computes shapes, times and memory, and not the values of large
/// tensors. A large tensor of a device is hollow: it has no bytes. A small one has bytes, but its
/// values are unknown where they would depend on a hollow tensor's. An operator on tensors without
/// values runs LibTorch's Meta kernel, which tells the shapes of results; all others run as ever,
/// so that counters, flags and sizes are right.
///
/// Time, memory and errors are those of a run with values, except: gradients are taken to be
/// finite.
///
/// Threads: as the tensors'.
#pragma once

#include <c10/core/Scalar.h>
#include <c10/core/ScalarType.h>

#include "accelerate/base/libtorch_fwd.h"

namespace accelerate::simulator {

/// What a simulated cluster computes.
enum class Numerics {
  kReal,    ///< everything, bit for bit
  kShapes,  ///< see above
};

/// Whether a tensor has no bytes. A CPU tensor has some; a sparse tensor is as its parts are.
bool is_hollow(const at::Tensor& tensor);

/// Whether the program computed a tensor's values: it is not hollow and its values are not unknown.
bool has_values(const at::Tensor& tensor);

/// Notes that a tensor was written. Its memory has values if they were computed (`with_values`) and
/// the tensor fills the memory, or the rest has values; if they were not, they are unknown. No
/// effect on hollow tensors and CPU tensors.
void mark_written(const at::Tensor& tensor, bool with_values);

/// An element of that type for an UnknownValue's number.
c10::Scalar unknown_scalar(c10::ScalarType dtype, double value);

}  // namespace accelerate::simulator
