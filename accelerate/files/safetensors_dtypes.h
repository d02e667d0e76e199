/// The dtypes of LibTorch under the names that safetensors files have for them.
///
/// C64, F8_E4M3FNUZ and F8_E5M2FNUZ are read and not written: files of HF Accelerate lack them.
/// Threads: any.
#pragma once

#include <string>

#include <c10/core/ScalarType.h>

#include "absl/status/statusor.h"

namespace accelerate {

/// The format's name of a dtype. Errors: InvalidArgument for one that is not written.
absl::StatusOr<std::string> safetensors_dtype(at::ScalarType dtype);
/// Errors: Unimplemented naming the dtype.
absl::StatusOr<at::ScalarType> scalar_type_of(const std::string& safetensors_dtype);

}  // namespace accelerate
