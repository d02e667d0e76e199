/// The dtypes that tensors in files have, by the names that PyTorch and safetensors give them.
///
/// Threads: constant data.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "absl/strings/string_view.h"

namespace accelerate {

struct DtypeName {
  absl::string_view torch;
  absl::string_view safetensors;  ///< empty: not among those that are read
  int64_t bytes;                  ///< of an element
};

/// In the order in which safetensors' own writer sorts tensors.
inline constexpr DtypeName kDtypeNames[] = {
    {"bool", "BOOL", 1},
    {"uint8", "U8", 1},
    {"int8", "I8", 1},
    {"float8_e5m2", "F8_E5M2", 1},
    {"float8_e4m3fn", "F8_E4M3", 1},
    {"float8_e4m3fnuz", "F8_E4M3FNUZ", 1},
    {"float8_e5m2fnuz", "F8_E5M2FNUZ", 1},
    {"int16", "I16", 2},
    {"uint16", "U16", 2},
    {"float16", "F16", 2},
    {"bfloat16", "BF16", 2},
    {"int32", "I32", 4},
    {"uint32", "U32", 4},
    {"float32", "F32", 4},
    {"complex64", "C64", 8},
    {"float64", "F64", 8},
    {"int64", "I64", 8},
    {"uint64", "U64", 8},
    {"complex128", "", 16},
};

/// The row with this name, which is that of `column`. Null for none.
inline const DtypeName* find_dtype(absl::string_view DtypeName::* column, absl::string_view name) {
  const DtypeName* found = std::ranges::find(kDtypeNames, name, column);
  return name.empty() || found == std::end(kDtypeNames) ? nullptr : found;
}

}  // namespace accelerate
