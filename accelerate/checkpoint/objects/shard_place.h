/// Where a shard belongs in its parameter.
///
/// Threads: values.
#pragma once

#include <cstdint>
#include <vector>

#include "accelerate/base/shard_rows.h"
#include "accelerate/files/formats/boxes.h"

namespace accelerate {

/// It has these rows of a parameter of this shape. A parameter without dims has one row.
struct ShardPlace {
  std::vector<int64_t> shape;
  ShardRows rows;

  /// The box of the parameter; without elements where there is no row. \pre There is one where the
  /// parameter has no dims.
  Box box() const { return shape.empty() ? Box() : row_box(shape, rows.first, rows.count); }
};

}  // namespace accelerate
