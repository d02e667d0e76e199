/// LibTorch's dtypes by PyTorch's names, and those of accelerate/base/dtype_names.h.
///
/// Threads: pure functions.
#pragma once

#include <string>

#include <c10/core/ScalarType.h>

#include "accelerate/base/dtype_names.h"

namespace accelerate {

/// "bfloat16" for c10::kBFloat16.
std::string dtype_name(c10::ScalarType dtype);
/// Null for a dtype that files do not have.
const DtypeName* find_dtype(c10::ScalarType dtype);
c10::ScalarType scalar_type(const DtypeName& dtype);

}  // namespace accelerate
