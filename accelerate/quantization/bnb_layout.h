/// Quantised weights under the names and in the bytes that bitsandbytes gives them in a state dict,
/// and so in files.
///
/// A weight "fc.weight" in 4 bits:
///
///   fc.weight                                  uint8 [ceil(values / 2), 1]
///   fc.weight.absmax                           float32 [blocks]; uint8 with double quantisation
///   fc.weight.quant_map                        float32 [16]
///   fc.weight.nested_absmax                    float32, and
///   fc.weight.nested_quant_map                 float32 [256]: with double quantisation
///   fc.weight.quant_state.bitsandbytes__nf4    uint8: a JSON text, with the rest
///
/// In 8 bits:
///
///   fc.weight          int8 [rows, columns]
///   fc.SCB             float32 [rows]: the largest absolute value of each row
///   fc.weight_format   uint8: 0, rows one after the other
///
/// Local. Threads: pure functions; the tensors are those of the weights, not copies.
/// Errors:  reading throws c10::ValueError naming the weight, the entry and what is wrong with it.
/// Mirrors: bitsandbytes functional.py, QuantState.as_dict and from_dict; nn/modules.py, Linear4bit
///          and Linear8bitLt.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "accelerate/quantization/four_bit.h"
#include "accelerate/quantization/int8.h"

namespace accelerate {

using TensorsByName = std::map<std::string, at::Tensor>;

/// `name` is the weight's.
TensorsByName to_bnb(const std::string& name, const FourBitTensor& weight);
/// \pre The name ends with "weight".
TensorsByName to_bnb(const std::string& name, const Int8Weight& weight);

/// What the text of a weight in 4 bits says.
struct FourBitState {
  FourBitType type = FourBitType::kFp4;
  /// The sizes and the dtype of the tensor that was quantised.
  std::vector<int64_t> sizes;
  at::ScalarType dtype = at::kFloat;
  int64_t block_size = kFourBitBlock;
  /// Absent without double quantisation.
  std::optional<int64_t> nested_block_size;
  double nested_offset = 0;
};

/// The name of the weight in 4 bits whose text has this name; empty if it is no such name.
std::string weight_of_state(const std::string& key);
/// `key`: the text's name, for errors.
FourBitState four_bit_state(const std::string& key, const at::Tensor& text);

/// Other entries of `tensors` do not matter. Packed bytes may be stored as a floating-point dtype,
/// as bitsandbytes' quant_storage has it.
FourBitTensor four_bit_from_bnb(const std::string& name, const TensorsByName& tensors);
/// weight_format may be absent.
Int8Weight int8_from_bnb(const std::string& name, const TensorsByName& tensors);

}  // namespace accelerate
