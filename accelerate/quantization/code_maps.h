/// The numbers that codes of 4 and 8 bits stand for.
///
/// All are from -1 to 1: values are divided by the largest one of their block before.
///
///   nf4      16 numbers, each nearest to about as many values of a normal distribution; 0 is one
///            of them, so there is one more above it than below
///   fp4      a sign, 2 bits of exponent and 1 of fraction, divided by the largest number, 12
///   dynamic  8 bits: a sign, a decimal exponent from -6 to 0, and the larger the exponent, the
///            more bits of fraction, from 0 to 6
///
/// Threads: constants and pure functions.
/// Sources: nf4: Dettmers, Pagnoni, Holtzman, Zettlemoyer, "QLoRA: Efficient Finetuning of
///          Quantized LLMs", 2023, appendix E. dynamic: Dettmers, "8-Bit Approximations for
///          Parallelism in Deep Learning", 2015. All with their codes: bitsandbytes, functional.py,
///          get_4bit_type and create_dynamic_map.
#pragma once

#include <array>
#include <cstdint>

#include "accelerate/base/enum_text.h"

namespace accelerate {

enum class FourBitType {
  kFp4,
  kNf4,
};

ACCELERATE_ENUM_TEXTS(FourBitType, "bnb_4bit_quant_type", "fp4", "nf4")

/// By code: those of nf4 ascend; fp4's have the sign in the highest bit, and 0 twice.
const std::array<float, 16>& four_bit_map(FourBitType type);

/// By code, ascending; code 127 is 0.
const std::array<float, 256>& dynamic_map();

namespace internal {

/// The codes of values x inverse: each that of the nearest number. Between two that are as near
/// the last digits of the published boundaries decide. Code 8 of fp4, a second 0, is never chosen,
/// so that numbers of the map get their code back. The code of NaN is 0.
/// Source:  bitsandbytes, csrc/kernels.cu, dQuantizeNF4 and dQuantizeFP4.
/// Differs: for what is nearest to 0, bitsandbytes has code 8 for negative values on GPUs and for
///          positive ones on CPUs. Its CPU kernels take the smaller of two numbers of fp4.
void four_bit_codes(FourBitType type, const float* values, int64_t count, float inverse,
                    uint8_t* codes);

/// The code of the nearest number, or of the smaller one where two are as near; 0 for NaN.
uint8_t dynamic_code(float value);

}  // namespace internal
}  // namespace accelerate
