/// Tensors in 4 bits per value, in blocks with a scale each.
///
///   FourBitTensor packed = quantize_4bit(weight, {.type = FourBitType::kNf4});
///   at::Tensor values = packed.dequantize(at::kBFloat16);
///   at::Tensor output = four_bit_linear(input, packed, bias);
///
/// Values are taken in the order of a contiguous tensor. Each block of them is divided by its
/// largest absolute value (absmax), and each quotient becomes the code of the nearest number in the
/// type's map. Two codes share a byte, the first one in the higher half; behind an odd number of
/// values comes the code of 0.
///
/// Double quantisation: the mean of all absmax is subtracted from them, and the differences are in
/// 8 bits of the dynamic map, in blocks of 256. With blocks of 64 a value takes 4.127 bits then,
/// and 4.5 without.
///
/// Tensors of any device are quantised on the host, and their codes go back to the device, where
/// they become values again. Local, all of it.
///
/// Shapes:  any.
/// Errors:  c10::ValueError for dtypes that are not floating point of 16 bits or more, for values
///          that are infinite or NaN, naming the first one's place, for tensors on "meta", and for
///          blocks of other sizes than powers of two from 32 to 4096.
/// Threads: pure functions; a FourBitTensor is a value whose tensors are shared by its copies.
/// Mirrors: bitsandbytes functional.py, quantize_4bit, dequantize_4bit, quantize_blockwise,
///          dequantize_blockwise, gemv_4bit and QuantState; autograd/_functions.py, matmul_4bit.
/// Sources: Dettmers, Lewis, Shleifer, Zettlemoyer, "8-bit Optimizers via Block-wise
///          Quantization", 2022; QLoRA (see code_maps.h), section 3.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "accelerate/quantization/code_maps.h"

namespace accelerate {

/// Values that share a scale.
inline constexpr int64_t kFourBitBlock = 64;
/// Scales that share a scale, with double quantisation.
inline constexpr int64_t kNestedBlock = 256;

/// Values in 8 bits: value i is quant_map[codes[i]] x absmax[i / block_size].
struct BlockwiseTensor {
  at::Tensor codes;
  /// float32, one for each block.
  at::Tensor absmax;
  /// float32 [256].
  at::Tensor quant_map;
  int64_t block_size = kNestedBlock;

  /// In float32.
  at::Tensor dequantize() const;
};

/// By the dynamic map.
BlockwiseTensor quantize_blockwise(const at::Tensor& tensor, int64_t block_size = kNestedBlock);

struct FourBitOptions {
  FourBitType type = FourBitType::kFp4;
  bool use_double_quant = false;
  int64_t block_size = kFourBitBlock;
  /// With double quantisation.
  int64_t nested_block_size = kNestedBlock;
};

/// The scales of a FourBitTensor: differences + offset.
struct NestedAbsmax {
  BlockwiseTensor differences;
  float offset = 0;
};

struct FourBitTensor {
  FourBitType type = FourBitType::kFp4;
  /// The sizes and the dtype of the tensor that was quantised.
  std::vector<int64_t> sizes;
  at::ScalarType dtype = at::kFloat;
  /// uint8 [ceil(values / 2), 1]: two codes each.
  at::Tensor data;
  /// float32, one for each block; undefined with double quantisation.
  at::Tensor absmax;
  std::optional<NestedAbsmax> nested;
  /// float32 [16].
  at::Tensor quant_map;
  int64_t block_size = kFourBitBlock;

  int64_t numel() const;
  /// The scale of each block, in float32.
  at::Tensor block_absmax() const;
  /// Each number of the map is multiplied by the block's scale in float32, and the product rounded.
  at::Tensor dequantize(at::ScalarType dtype) const;
  /// In the dtype that it had.
  at::Tensor dequantize() const { return dequantize(dtype); }
  FourBitTensor to(c10::Device device) const;
  /// The memory of all tensors.
  int64_t nbytes() const;
};

FourBitTensor quantize_4bit(const at::Tensor& tensor, const FourBitOptions& options = {});

/// input x weight^T + bias. There are no gradients.
///
/// A few rows of input on the host are multiplied by the packed weight as it is read, block by
/// block, in float32, and the output is rounded once. Any other input is multiplied by the weight's
/// values in the input's dtype, which are made for this product and freed after it. With float32
/// both are the same but for the order of sums; with 16 bits the former does not round the weight's
/// values.
/// Shapes: weight [out, in], input [..., in], bias [out] or undefined; [..., out] in the input's
/// dtype. Errors: c10::ValueError for others, and for an input that is not floating point.
at::Tensor four_bit_linear(const at::Tensor& input, const FourBitTensor& weight,
                           const at::Tensor& bias);

namespace internal {

/// How many values are made at a time.
inline constexpr int64_t kValuesAtATime = int64_t{1} << 21;

/// How many blocks so many values have.
inline int64_t blocks_of(int64_t count, int64_t block_size) {
  return count / block_size + (count % block_size == 0 ? 0 : 1);
}

/// As FourBitTensor::dequantize, with LibTorch's operators: on devices whose memory the host does
/// not see. Memory beside the result: at most 11 bytes for each of kValuesAtATime values, and 16
/// for each block.
at::Tensor dequantize_by_operators(const FourBitTensor& tensor, at::ScalarType dtype);

/// As FourBitTensor::block_absmax, without operators: for tensors on the host.
at::Tensor block_absmax_on_host(const FourBitTensor& tensor);

/// The largest absolute value; infinity or NaN where one of them is.
float largest_magnitude(const float* values, int64_t count);

/// Errors: c10::ValueError, which begins with `what`, for a tensor that cannot be quantised because
///         of its dtype or because it is on "meta".
void check_quantizable(const at::Tensor& tensor, const char* what);

/// The most rows of an input that are multiplied by the packed weight.
inline constexpr int64_t kMostFusedRows = 4;

/// Whether four_bit_linear() multiplies so many rows by the packed weight: on the host, where
/// blocks have eights of values and none has those of two rows of the weight.
bool is_fused(const FourBitTensor& weight, int64_t rows);

/// Shapes: rows [1 to 4, in], float32 and contiguous; [the same, out] in float32.
at::Tensor fused_product(const at::Tensor& rows, const FourBitTensor& weight);

}  // namespace internal
}  // namespace accelerate
