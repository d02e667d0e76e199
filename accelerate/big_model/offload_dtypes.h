/// The dtypes of offloaded weights, by the names that the index of their folder has.
///
/// Threads: pure functions.
#pragma once

#include <string>

#include <c10/core/ScalarType.h>

namespace accelerate::internal {

/// The index's name of a dtype. Errors: c10::ValueError naming the tensor.
std::string offload_dtype(at::ScalarType dtype, const std::string& tensor);
/// The dtype of that name in an index. Errors: CheckpointError.
at::ScalarType scalar_type_of_offloaded(const std::string& dtype);

}  // namespace accelerate::internal
