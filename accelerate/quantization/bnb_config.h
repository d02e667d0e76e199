/// How a model's Linear layers are quantised: the options of load_and_quantize_model.
///
///     const BnbQuantizationConfig config =
///         resolve({.load_in_4bit = true, .bnb_4bit_quant_type = "nf4", .torch_dtype = "bf16"});
///
/// resolve() checks the options and gives dtypes their final type; the member functions are for
/// what it returns.
///
/// Errors:  c10::ValueError with HF Accelerate's text where it has one.
/// Threads: values.
/// Mirrors: accelerate utils/dataclasses.py, BnbQuantizationConfig, fields and defaults; to_dict is
///          that of transformers' BitsAndBytesConfig.
/// Differs: dtypes are floating point, and the threshold is not negative.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <c10/core/ScalarType.h>
#include <nlohmann/json_fwd.hpp>

#include "accelerate/base/enums.h"
#include "accelerate/base/fields.h"
#include "accelerate/quantization/code_maps.h"

namespace accelerate {

/// "fp32", "fp16", "bf16", or itself.
using BnbDtype = std::variant<std::string, c10::ScalarType>;

struct BnbQuantizationConfig {
  /// Weights as 8-bit integers, a scale for each row (int8.h). One of this and load_in_4bit.
  bool load_in_8bit = false;
  /// Columns of a layer's input with an absolute value of at least this much are multiplied in
  /// floating point. 0 and infinity: none are. With load_in_4bit another value gets a warning.
  double llm_int8_threshold = 6.0;
  /// Weights in 4 bits (four_bit.h).
  bool load_in_4bit = false;
  /// "fp4" or "nf4".
  std::string bnb_4bit_quant_type = "fp4";
  /// The scales of blocks are quantised as well.
  bool bnb_4bit_use_double_quant = false;
  /// What weights in 4 bits become when they are used: float32, float16 or bfloat16.
  BnbDtype bnb_4bit_compute_dtype = "fp16";
  /// The dtype of whatever is not quantised: float16 with load_in_8bit, bnb_4bit_compute_dtype with
  /// load_in_4bit. Resolved: there.
  std::optional<BnbDtype> torch_dtype = std::nullopt;
  /// Modules that are not quantised. Absent: tied ones and the last one.
  std::optional<std::vector<std::string>> skip_modules = std::nullopt;
  /// Modules that are not quantised and stay in float32.
  std::optional<std::vector<std::string>> keep_in_fp32_modules = std::nullopt;

  // ---- Those of a resolved configuration.

  FourBitType quant_type() const;
  c10::ScalarType compute_dtype() const;
  /// torch_dtype.
  c10::ScalarType remaining_dtype() const;
  /// What a quantised weight counts as where sizes are planned: int8, or half a byte.
  std::variant<c10::ScalarType, CustomDtype> target_dtype() const;
};

ACCELERATE_STRUCT(BnbQuantizationConfig, load_in_8bit, llm_int8_threshold, load_in_4bit,
                  bnb_4bit_quant_type, bnb_4bit_use_double_quant, bnb_4bit_compute_dtype,
                  torch_dtype, skip_modules, keep_in_fp32_modules)

/// Resolving it again changes nothing.
BnbQuantizationConfig resolve(BnbQuantizationConfig config);

/// All fields by name, dtypes as "float16" or as the text that was given.
nlohmann::ordered_json to_dict(const BnbQuantizationConfig& config);

}  // namespace accelerate
