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
    map[code + kNumbers.size()] = -map[code];
  }
  return map;
}
constexpr std::array<float, 16> kFp4 = make_fp4();

// With `bits` of fraction, [0.1, 1] has 2^bits equal parts, whose middles are multiplied by the
// power of ten.
constexpr std::array<float, 256> make_dynamic() {
  constexpr std::array<double, 7> kPowers = {1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0};
  constexpr size_t kZero = 127;
  std::array<float, 256> map{};
  size_t distance = 1;
  for (size_t bits = 0; bits < kPowers.size(); ++bits) {
    const size_t parts = size_t{1} << bits;
    for (size_t part = 0; part < parts; ++part, ++distance) {
      const double middle =
          0.1 + 0.9 * (static_cast<double>(part) + 0.5) / static_cast<double>(parts);
      map[kZero + distance] = static_cast<float>(kPowers[bits] * middle);
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

constexpr auto kNf4Midpoints = midpoints(kNf4);
constexpr auto kDynamicMidpoints = midpoints(kDynamic);
// fp4's numbers from 0 on.
constexpr auto kFp4Midpoints = midpoints(
    std::array<float, 8>{kFp4[0], kFp4[1], kFp4[6], kFp4[7], kFp4[4], kFp4[5], kFp4[2], kFp4[3]});

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
  if (type == FourBitType::kNf4) {
    nf4_codes(values, count, inverse, codes);
  } else {
    fp4_codes(values, count, inverse, codes);
  }
}

uint8_t dynamic_code(float value) {
  const auto* const above =
      std::lower_bound(kDynamicMidpoints.begin(), kDynamicMidpoints.end(), value);
  return static_cast<uint8_t>(above - kDynamicMidpoints.begin());
}

}  // namespace internal
}  // namespace accelerate
