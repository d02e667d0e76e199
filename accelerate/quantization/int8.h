/// Products with weights in 8 bits: LLM.int8().
///
///   Int8Weight packed = quantize_rowwise(weight);
///   at::Tensor output = int8_linear(input, packed, bias, /*threshold=*/6.0);
///
/// Each row of the weight, and each row of the input, is multiplied by 127 over its largest
/// absolute value and rounded to the nearest integer, ties to even. The integers' products are
/// summed exactly in int32 and scaled by both rows' factors.
///
/// A few columns of the input, the same ones in all rows, have values so large that the others
/// would lose their bits. A column with an absolute value of at least `threshold` is left out of
/// the integers: its product with the weight's column, as values of the input's dtype, is added in
/// float32. 0 and infinity both mean no such columns. What the rounding of the input loses falls by
/// the factor between a row's largest value and its largest one outside of such columns.
///
/// A row of the input with infinity or NaN, outside of such columns, gives NaN.
///
/// Local, all of it.
/// Errors:  c10::ValueError for shapes and dtypes that do not fit, a threshold below 0, and a
///          weight with an infinity or NaN, naming its row.
/// Threads: pure functions; an Int8Weight is a value whose tensors are shared by its copies.
/// Mirrors: bitsandbytes: int8_vectorwise_quant, int8_vectorwise_dequant, int8_linear_matmul,
///          int8_mm_dequant, int8_mixed_scaled_mm.
/// Differs: scales of the input's rows are computed without columns of outliers, of which
///          bitsandbytes counts the values below the threshold.
/// Source:  Dettmers, Lewis, Belkada, Zettlemoyer, "LLM.int8(): 8-bit Matrix Multiplication for
///          Transformers at Scale", 2022.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace accelerate {

/// A weight [rows, columns], value = data / 127 x scb. Values in float32 have the same codes and
/// scb again when they are quantised, and so have those in the dtype that the weight had.
struct Int8Weight {
  /// int8 [rows, columns].
  at::Tensor data;
  /// float32 [rows]: the largest absolute values.
  at::Tensor scb;

  at::Tensor dequantize(at::ScalarType dtype) const;
  Int8Weight to(c10::Device device) const;
  int64_t nbytes() const;
};

/// On the host; the result goes back to the weight's device.
Int8Weight quantize_rowwise(const at::Tensor& weight);

/// The rows of an input, as int8_linear() multiplies them.
struct Int8Rows {
  /// int8 [rows, columns]; 0 in columns of outliers.
  at::Tensor data;
  /// float32 [rows]; NaN where the row has a value that is not finite.
  at::Tensor absmax;
  /// int64, ascending.
  at::Tensor outlier_columns;
};

/// Shapes: input [rows, columns], on its own device.
Int8Rows quantize_rows(const at::Tensor& input, double threshold);

/// a x b^T, exact: LibTorch's product of int8 where the device has one, else products in float32
/// that are short enough to be exact.
/// Shapes: a int8 [M, K], b int8 [N, K]; int32 [M, N]. K is at most 131072, so that no sum
/// overflows.
at::Tensor int8_matmul(const at::Tensor& a, const at::Tensor& b);

/// input x weight^T + bias. There are no gradients.
/// Shapes: input [..., columns], bias [rows] or undefined; [..., rows] in the input's dtype.
at::Tensor int8_linear(const at::Tensor& input, const Int8Weight& weight, const at::Tensor& bias,
                       double threshold);

namespace internal {

/// As quantize_rows and int8_matmul, with operators that every device has.
Int8Rows quantize_rows_by_operators(const at::Tensor& input, double threshold);
at::Tensor int8_matmul_in_float(const at::Tensor& a, const at::Tensor& b);

}  // namespace internal
}  // namespace accelerate
