/// LibTorch's dtypes by PyTorch's names, and those of accelerate/base/dtype_names.h.
///
/// Threads: pure functions.
#pragma once

#include <string>

#include <c10/core/ScalarType.h>

#include "accelerate/base/dtype_names.h"

namespace accelerate {

/// "bfloat16" for c10::kBFloat16.
inline std::string dtype_name(c10::ScalarType dtype) {
  return std::string(c10::getDtypeNames(dtype).first);
}
/// Null for a dtype that files do not have.
inline const DtypeName* find_dtype(c10::ScalarType dtype) {
  return find_dtype(&DtypeName::torch, dtype_name(dtype));
}
inline c10::ScalarType scalar_type(const DtypeName& dtype) {
  return c10::getStringToDtypeMap().at(std::string(dtype.torch));
}

}  // namespace accelerate
