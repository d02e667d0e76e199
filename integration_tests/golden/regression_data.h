/// The data set of the grad_sync cases: numbers that are exact in single precision.
#pragma once

#include <array>
#include <cstdint>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

namespace accelerate::golden {

/// Two inputs and the target of row i.
struct RegressionRow {
  std::array<double, 2> x;
  double y;
};
inline RegressionRow regression_row(int64_t i) {
  return {{static_cast<double>(i % 7) / 8 - 0.25, static_cast<double>(i % 5) / 4 - 0.5},
          static_cast<double>(i % 3) / 2 - 0.25};
}

/// All rows: [rows, 2] and [rows, 1].
struct RegressionData {
  at::Tensor x;
  at::Tensor y;
};
inline RegressionData regression_data(int64_t rows) {
  RegressionData data{at::empty({rows, 2}), at::empty({rows, 1})};
  for (int64_t i = 0; i < rows; ++i) {
    const RegressionRow row = regression_row(i);
    data.x.data_ptr<float>()[2 * i] = static_cast<float>(row.x[0]);
    data.x.data_ptr<float>()[2 * i + 1] = static_cast<float>(row.x[1]);
    data.y.data_ptr<float>()[i] = static_cast<float>(row.y);
  }
  return data;
}

}  // namespace accelerate::golden
