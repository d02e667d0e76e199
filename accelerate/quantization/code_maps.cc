#include "accelerate/quantization/code_maps.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace accelerate {
namespace {

constexpr std::array<float, 16> kNf4 = {
    -1.0f,
    -0.6961928009986877f,
    -0.5250730514526367f,
    -0.39491748809814453f,
    -0.28444138169288635f,
    -0.18477343022823334f,
    -0.09105003625154495f,
    0.0f,
    0.07958029955625534f,
    0.16093020141124725f,
    0.24611230194568634f,
    0.33791524171829224f,
    0.44070982933044434f,
    0.5626170039176941f,
    0.7229568362236023f,
    1.0f,
};

// The exponent has a bias of its own for each code, so that numbers do not ascend with their codes.
constexpr std::array<float, 16> make_fp4() {
  constexpr std::array<float, 8> kNumbers = {0.0f, 0.0625f, 8.0f, 12.0f, 4.0f, 6.0f, 2.0f, 3.0f};
  std::array<float, 16> map{};
  for (size_t code = 0; code < kNumbers.size(); ++code) {
    map[code] = kNumbers[code] / 12.0f;
    map[code + kNumbers.size()] = code == 0 ? 0.0f : -map[code];
  }
  return map;
}
constexpr std::array<float, 16> kFp4 = make_fp4();

// The boundaries of equal parts of [0.1, 1] as torch.linspace computes them in float32: from the
// nearer end, each with one rounding.
constexpr float boundary(size_t index, size_t parts) {
  const float step = (1.0f - 0.1f) / static_cast<float>(parts);
  const bool is_low = index < (parts + 1) / 2;
  const auto steps = static_cast<double>(is_low ? index : parts - index);
  return static_cast<float>(is_low ? double{0.1f} + steps * step : 1.0 - steps * step);
}

// With `bits` of fraction, [0.1, 1] has 2^bits equal parts, whose middles are multiplied by the
// power of ten.
constexpr std::array<float, 256> make_dynamic() {
  constexpr std::array<float, 7> kPowers = {1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f, 1.0f};
  constexpr size_t kZero = 127;
  std::array<float, 256> map{};
  size_t distance = 1;
  for (size_t bits = 0; bits < kPowers.size(); ++bits) {
    const size_t parts = size_t{1} << bits;
    for (size_t part = 0; part < parts; ++part, ++distance) {
      const float middle = (boundary(part, parts) + boundary(part + 1, parts)) / 2.0f;
      map[kZero + distance] = kPowers[bits] * middle;
      map[kZero - distance] = -map[kZero + distance];
    }
  }
  map[255] = 1.0f;
  return map;
}
constexpr std::array<float, 256> kDynamic = make_dynamic();

// Where the nearest of ascending numbers changes.
template <size_t N>
constexpr std::array<float, N - 1> midpoints(const std::array<float, N>& numbers) {
  std::array<float, N - 1> points{};
  for (size_t i = 0; i + 1 < N; ++i) {
    points[i] = static_cast<float>((static_cast<double>(numbers[i]) + numbers[i + 1]) / 2);
  }
  return points;
}

constexpr auto kDynamicMidpoints = midpoints(kDynamic);

// Those of the 4-bit maps have the digits of bitsandbytes' csrc/kernels.cu, dQuantizeNF4 and
// dQuantizeFP4, which decide where a value is as near to two numbers.
constexpr std::array<float, 15> kNf4Midpoints = {
    -0.8480964004993439f,  -0.6106329262256622f,  -0.4599952697753906f,   -0.33967943489551544f,
    -0.23460740596055984f, -0.13791173323988914f, -0.045525018125772476f, 0.03979014977812767f,
    0.1202552504837513f,   0.2035212516784668f,   0.2920137718319893f,    0.3893125355243683f,
    0.5016634166240692f,   0.6427869200706482f,   0.8614784181118011f};
// Without signs.
constexpr std::array<float, 7> kFp4Midpoints = {0.00260417f, 0.0859375f, 0.20833333f, 0.29166667f,
                                                0.4166667f,  0.583333f,  0.8333333f};

// Compilers unroll the inner loops and vectorise the outer ones: a comparison is 0 or 1.

void nf4_codes(const float* values, int64_t count, float inverse, uint8_t* codes) {
  for (int64_t i = 0; i < count; ++i) {
    const float x = values[i] * inverse;
    int32_t code = 0;
    for (const float midpoint : kNf4Midpoints) code += x > midpoint ? 1 : 0;
    codes[i] = static_cast<uint8_t>(code);
  }
}

void fp4_codes(const float* values, int64_t count, float inverse, uint8_t* codes) {
  for (int64_t i = 0; i < count; ++i) {
    const float x = values[i] * inverse;
    const float magnitude = std::abs(x);
    int32_t rank = 0;
    for (const float midpoint : kFp4Midpoints) rank += magnitude > midpoint ? 1 : 0;
    // Ranks 0 to 7 have the codes 0, 1, 6, 7, 4, 5, 2, 3.
    const int32_t code = rank ^ ((rank & 2) << 1);
    const int32_t sign = x < 0.0f && rank > 0 ? 8 : 0;
    codes[i] = static_cast<uint8_t>(code | sign);
  }
}

}  // namespace

const std::array<float, 16>& four_bit_map(FourBitType type) {
  return type == FourBitType::kNf4 ? kNf4 : kFp4;
}

const std::array<float, 256>& dynamic_map() { return kDynamic; }

namespace internal {

void four_bit_codes(FourBitType type, const float* values, int64_t count, float inverse,
                    uint8_t* codes) {
  auto* const encode = type == FourBitType::kNf4 ? nf4_codes : fp4_codes;
  encode(values, count, inverse, codes);
}

uint8_t dynamic_code(float value) {
  const auto* const above =
      std::lower_bound(kDynamicMidpoints.begin(), kDynamicMidpoints.end(), value);
  return static_cast<uint8_t>(above - kDynamicMidpoints.begin());
}

}  // namespace internal
}  // namespace accelerate
