#include "accelerate/quantization/four_bit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/quantization/code_maps.h"
#include "accelerate/testing/value_error.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using torch::Tensor;
using Sizes = std::vector<int64_t>;

constexpr FourBitType kTypes[] = {FourBitType::kFp4, FourBitType::kNf4};
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<uint8_t> bytes_of(const Tensor& tensor) {
  const Tensor flat = tensor.contiguous();
  const auto* const data = static_cast<const uint8_t*>(flat.const_data_ptr());
  return {data, data + flat.nbytes()};
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.sizes() == b.sizes() && a.dtype() == b.dtype() && bytes_of(a) == bytes_of(b);
}

Tensor normal(at::IntArrayRef sizes) {
  torch::manual_seed(1);
  return torch::randn(sizes);
}

// ---- The maps.

// QLoRA's construction: quantiles of the normal distribution, 8 above 0 and 7 below it, at equal
// steps of probability from 0.9677083 to 1/2, over the largest one.
TEST(FourBitMap, OfNf4HasQuantilesOfTheNormalDistribution) {
  constexpr double kLargest = 0.9677083;
  const auto quantiles = [](int64_t count) {
    const Tensor steps = torch::linspace(kLargest, 0.5, count + 1, torch::kDouble);
    return at::special_ndtri(steps.narrow(0, 0, count));
  };
  const Tensor above = quantiles(8), below = quantiles(7).neg();
  Tensor expected = torch::cat({below, torch::zeros({1}, torch::kDouble), above.flip(0)});
  expected /= above[0];
  const auto& map = four_bit_map(FourBitType::kNf4);
  for (size_t i = 0; i < map.size(); ++i) {
    EXPECT_NEAR(map[i], expected[static_cast<int64_t>(i)].item<double>(), 2e-6) << i;
  }
  EXPECT_EQ(map[0], -1.0f);
  EXPECT_EQ(map[7], 0.0f);
  EXPECT_EQ(map[15], 1.0f);
}

// A sign, two bits of exponent, one of fraction: bitsandbytes' table.
TEST(FourBitMap, OfFp4HasMultiplesOfATwelfth) {
  const std::array<double, 8> numbers = {0, 0.0625, 8, 12, 4, 6, 2, 3};
  const auto& map = four_bit_map(FourBitType::kFp4);
  for (size_t i = 0; i < numbers.size(); ++i) {
    EXPECT_FLOAT_EQ(map[i], static_cast<float>(numbers[i] / 12)) << i;
    EXPECT_EQ(map[i + 8], -map[i]) << i;
  }
}

TEST(DynamicMap, AscendsThroughSevenPowersOfTen) {
  const auto& map = dynamic_map();
  EXPECT_TRUE(std::is_sorted(map.begin(), map.end()));
  EXPECT_FLOAT_EQ(map[0], -0.99296875f);
  EXPECT_EQ(map[127], 0.0f);
  EXPECT_FLOAT_EQ(map[128], 0.55e-6f);
  EXPECT_FLOAT_EQ(map[129], 3.25e-6f);
  EXPECT_FLOAT_EQ(map[130], 7.75e-6f);
  EXPECT_FLOAT_EQ(map[254], 0.99296875f);
  EXPECT_EQ(map[255], 1.0f);
  for (size_t i = 0; i < 127; ++i) EXPECT_EQ(map[i], -map[254 - i]) << i;
}

// The nearest number by comparing with all of them.
template <size_t N>
double distance_to(const std::array<float, N>& map, double value) {
  double least = kInfinity;
  for (const float number : map) least = std::min(least, std::abs(number - value));
  return least;
}

// The boundaries of bitsandbytes' csrc/kernels.cu, dQuantizeNF4 and dQuantizeFP4, with the code
// below each; those of fp4 without a sign.
struct Boundary {
  float value;
  uint8_t below, above;
};
constexpr Boundary kNf4Boundaries[] = {
    {-0.8480964004993439f, 0, 1},   {-0.6106329262256622f, 1, 2},  {-0.4599952697753906f, 2, 3},
    {-0.33967943489551544f, 3, 4},  {-0.23460740596055984f, 4, 5}, {-0.13791173323988914f, 5, 6},
    {-0.045525018125772476f, 6, 7}, {0.03979014977812767f, 7, 8},  {0.1202552504837513f, 8, 9},
    {0.2035212516784668f, 9, 10},   {0.2920137718319893f, 10, 11}, {0.3893125355243683f, 11, 12},
    {0.5016634166240692f, 12, 13},  {0.6427869200706482f, 13, 14}, {0.8614784181118011f, 14, 15},
};
constexpr Boundary kFp4Boundaries[] = {
    {0.00260417f, 0, 1}, {0.0859375f, 1, 6}, {0.20833333f, 6, 7}, {0.29166667f, 7, 4},
    {0.4166667f, 4, 5},  {0.583333f, 5, 2},  {0.8333333f, 2, 3},
};

uint8_t code_of(FourBitType type, float value) {
  uint8_t code = 0;
  internal::four_bit_codes(type, &value, 1, 1.0f, &code);
  return code;
}

TEST(Codes, ChangeAtThePublishedBoundaries) {
  for (const Boundary& boundary : kNf4Boundaries) {
    const float next = std::nextafter(boundary.value, kInfinity);
    EXPECT_EQ(code_of(FourBitType::kNf4, boundary.value), boundary.below) << boundary.value;
    EXPECT_EQ(code_of(FourBitType::kNf4, next), boundary.above) << boundary.value;
  }
  for (const Boundary& boundary : kFp4Boundaries) {
    for (const int sign : {0, 8}) {
      const auto at = sign == 0 ? boundary.value : -boundary.value;
      const float next = std::nextafter(at, at < 0 ? -kInfinity : kInfinity);
      const int below = boundary.below == 0 ? 0 : boundary.below + sign;
      EXPECT_EQ(code_of(FourBitType::kFp4, at), below) << at;
      EXPECT_EQ(code_of(FourBitType::kFp4, next), boundary.above + sign) << at;
    }
  }
  EXPECT_EQ(code_of(FourBitType::kFp4, 0.0f), 0);
  EXPECT_EQ(code_of(FourBitType::kFp4, -0.0f), 0);
}

TEST(Codes, AreThoseOfTheNearestNumber) {
  for (int step = -4000; step <= 4000; ++step) {
    const float value = static_cast<float>(step) / 4000;
    for (const FourBitType type : kTypes) {
      const uint8_t code = code_of(type, value);
      const auto& map = four_bit_map(type);
      // fp4's boundaries have six digits.
      EXPECT_NEAR(std::abs(map[code] - value), distance_to(map, value), 7e-7)
          << to_string(type) << " " << value;
      EXPECT_FALSE(type == FourBitType::kFp4 && code == 8) << "the second 0 for " << value;
    }
    const float number = dynamic_map()[internal::dynamic_code(value)];
    EXPECT_NEAR(std::abs(number - value), distance_to(dynamic_map(), value), 1e-7) << value;
  }
}

// ---- Bytes.

// All numbers of the map four times, times 4: a block that is exact.
Tensor exact_block(FourBitType type) {
  std::vector<float> values;
  for (int i = 0; i < 4; ++i) {
    for (const float number : four_bit_map(type)) values.push_back(4 * number);
  }
  return torch::tensor(values);
}

TEST(QuantizeFourBit, PutsTheFirstOfTwoCodesInTheHigherHalf) {
  std::vector<uint8_t> ascending;
  for (int i = 0; i < 4; ++i) {
    const std::array<uint8_t, 8> row = {0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef};
    ascending.insert(ascending.end(), row.begin(), row.end());
  }
  const FourBitTensor nf4 =
      quantize_4bit(exact_block(FourBitType::kNf4).view({4, 16}), {.type = FourBitType::kNf4});
  EXPECT_EQ(bytes_of(nf4.data), ascending);
  EXPECT_EQ(nf4.data.sizes(), at::IntArrayRef({32, 1}));
  EXPECT_EQ(nf4.absmax.item<float>(), 4.0f);

  // -0, code 8, becomes 0.
  for (size_t i = 4; i < ascending.size(); i += 8) ascending[i] = 0x09;
  const FourBitTensor fp4 = quantize_4bit(exact_block(FourBitType::kFp4));
  EXPECT_EQ(bytes_of(fp4.data), ascending);
}

TEST(QuantizeFourBit, GivesNumbersOfTheMapBack) {
  for (const FourBitType type : kTypes) {
    const Tensor block = exact_block(type);
    EXPECT_TRUE(torch::equal(quantize_4bit(block, {.type = type}).dequantize(), block));
  }
}

TEST(QuantizeFourBit, HasTheSameBytesForItsOwnValues) {
  for (const FourBitType type : kTypes) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const FourBitTensor packed = quantize_4bit(normal({50, 64}).to(dtype), {.type = type});
      const FourBitTensor again = quantize_4bit(packed.dequantize(), {.type = type});
      EXPECT_TRUE(same_bits(again.data, packed.data)) << to_string(type) << " " << dtype;
      EXPECT_TRUE(same_bits(again.absmax, packed.absmax)) << to_string(type) << " " << dtype;
    }
  }
}

TEST(QuantizeFourBit, EndsAnOddTensorWithTheCodeOfZero) {
  const Tensor values =
      torch::cat({exact_block(FourBitType::kNf4), torch::tensor({2.0f, -2.0f, 0.0f})});
  const FourBitTensor packed = quantize_4bit(values, {.type = FourBitType::kNf4});
  EXPECT_EQ(packed.data.sizes(), at::IntArrayRef({34, 1}));
  EXPECT_EQ(packed.data[32].item<int>(), 0xf0);
  EXPECT_EQ(packed.data[33].item<int>(), 0x77);
  EXPECT_EQ(packed.absmax[1].item<float>(), 2.0f);
  EXPECT_TRUE(torch::equal(packed.dequantize(), values));
}

// Its scale is not 0 any more after double quantisation.
TEST(QuantizeFourBit, KeepsABlockOfZerosAmongOthers) {
  for (const FourBitType type : kTypes) {
    Tensor values = normal({40, 64}) * torch::logspace(-1, 1, 40).unsqueeze(1);
    values[7].zero_();
    const FourBitTensor packed = quantize_4bit(values, {.type = type, .use_double_quant = true});
    EXPECT_NE(packed.block_absmax()[7].item<float>(), 0);
    EXPECT_EQ(packed.dequantize()[7].count_nonzero().item<int64_t>(), 0);
  }
}

TEST(QuantizeFourBit, KeepsZerosAndEmptyTensors) {
  for (const FourBitType type : kTypes) {
    for (const bool use_double_quant : {false, true}) {
      const FourBitOptions options = {.type = type, .use_double_quant = use_double_quant};
      const FourBitTensor zeros = quantize_4bit(torch::zeros({3, 50}), options);
      EXPECT_TRUE(torch::equal(zeros.dequantize(), torch::zeros({3, 50})));
      const int zero_pair = type == FourBitType::kNf4 ? 0x77 : 0x00;
      EXPECT_TRUE(zeros.data.eq(zero_pair).all().item<bool>());
      const FourBitTensor empty = quantize_4bit(torch::zeros({0, 4}), options);
      EXPECT_EQ(empty.dequantize().sizes(), at::IntArrayRef({0, 4}));
    }
  }
  EXPECT_EQ(quantize_4bit(torch::tensor(-3.0f)).dequantize().item<float>(), -3.0f);
}

// ---- Errors of quantised values.

// The mean error and the mean relative error of normal values that bitsandbytes' tests state
// (tests/test_functional.py, test_4bit_quant), with their standard deviations over 200 tensors.
struct Published {
  FourBitType type;
  int64_t block_size;
  double error, error_deviation;
  double relative_error, relative_error_deviation;
};
constexpr Published kPublished[] = {
    {FourBitType::kFp4, 32, 0.088925, 0.000091, 0.242443, 0.000330},
    {FourBitType::kFp4, 64, 0.096543, 0.000111, 0.260125, 0.000379},
    {FourBitType::kFp4, 128, 0.102969, 0.000134, 0.275817, 0.000433},
    {FourBitType::kFp4, 256, 0.108684, 0.000182, 0.289831, 0.000497},
    {FourBitType::kFp4, 512, 0.114115, 0.000234, 0.302881, 0.000583},
    {FourBitType::kFp4, 1024, 0.119333, 0.000320, 0.315000, 0.000757},
    {FourBitType::kFp4, 2048, 0.124556, 0.000455, 0.326607, 0.000955},
    {FourBitType::kFp4, 4096, 0.129536, 0.000612, 0.337169, 0.001239},
    {FourBitType::kNf4, 32, 0.067746, 0.000069, 0.189726, 0.000304},
    {FourBitType::kNf4, 64, 0.072798, 0.000074, 0.203339, 0.000340},
    {FourBitType::kNf4, 128, 0.076831, 0.000091, 0.215237, 0.000391},
    {FourBitType::kNf4, 256, 0.080337, 0.000102, 0.226105, 0.000398},
    {FourBitType::kNf4, 512, 0.083547, 0.000143, 0.236079, 0.000544},
    {FourBitType::kNf4, 1024, 0.086610, 0.000187, 0.245370, 0.000600},
    {FourBitType::kNf4, 2048, 0.089592, 0.000251, 0.254163, 0.000747},
    {FourBitType::kNf4, 4096, 0.092547, 0.000360, 0.262473, 0.000999},
};
constexpr double kDeviations = 3;

TEST(QuantizeFourBit, HasThePublishedErrors) {
  const Tensor values = normal({1024, 1024});
  for (const Published& expected : kPublished) {
    const FourBitOptions options = {.type = expected.type, .block_size = expected.block_size};
    const Tensor error = (quantize_4bit(values, options).dequantize() - values).abs();
    EXPECT_NEAR(error.mean().item<double>(), expected.error, kDeviations * expected.error_deviation)
        << to_string(expected.type) << " " << expected.block_size;
    EXPECT_NEAR((error / values.abs().add(1e-8)).mean().item<double>(), expected.relative_error,
                kDeviations * expected.relative_error_deviation)
        << to_string(expected.type) << " " << expected.block_size;
  }
}

// Half of the widest gap between two numbers.
template <size_t N>
double largest_error(std::array<float, N> map) {
  std::sort(map.begin(), map.end());
  double widest = 0;
  for (size_t i = 1; i < N; ++i) widest = std::max<double>(widest, map[i] - map[i - 1]);
  return widest / 2;
}

TEST(QuantizeFourBit, IsWithinHalfAGapOfTheMap) {
  const Tensor values = normal({40, 64}) * torch::logspace(-4, 4, 40).unsqueeze(1);
  for (const FourBitType type : kTypes) {
    const FourBitTensor packed = quantize_4bit(values, {.type = type});
    const Tensor scales = values.abs().amax(1);
    EXPECT_TRUE(same_bits(packed.absmax, scales));
    const Tensor errors = (packed.dequantize() - values).abs().amax(1) / scales;
    EXPECT_LE(errors.max().item<double>(), largest_error(four_bit_map(type)) + 1e-6);
  }
}

TEST(QuantizeBlockwise, IsWithinHalfAGapOfTheDynamicMap) {
  const Tensor values = normal({1000}) * torch::logspace(-3, 3, 1000);
  const BlockwiseTensor packed = quantize_blockwise(values);
  EXPECT_EQ(packed.codes.sizes(), values.sizes());
  EXPECT_EQ(packed.absmax.numel(), 4);
  const Tensor restored = packed.dequantize();
  for (int64_t block = 0; block < 4; ++block) {
    const int64_t begin = block * 256, length = std::min<int64_t>(256, 1000 - begin);
    const Tensor own = values.narrow(0, begin, length);
    const float scale = own.abs().max().item<float>();
    EXPECT_EQ(packed.absmax[block].item<float>(), scale);
    const Tensor error = (restored.narrow(0, begin, length) - own).abs().max() / scale;
    EXPECT_LE(error.item<double>(), largest_error(dynamic_map()) + 1e-6);
  }
}

TEST(QuantizeFourBit, QuantisesItsScalesWithDoubleQuantisation) {
  const Tensor values = normal({300, 64}) * torch::logspace(-1, 1, 300).unsqueeze(1);
  const FourBitTensor plain = quantize_4bit(values, {.type = FourBitType::kNf4});
  const FourBitTensor packed =
      quantize_4bit(values, {.type = FourBitType::kNf4, .use_double_quant = true});
  ASSERT_TRUE(packed.nested.has_value());
  EXPECT_FALSE(packed.absmax.defined());
  EXPECT_TRUE(same_bits(packed.data, plain.data));
  const NestedAbsmax& nested = *packed.nested;
  EXPECT_EQ(nested.offset, plain.absmax.to(at::kDouble).mean().to(at::kFloat).item<float>());
  EXPECT_EQ(nested.differences.absmax.numel(), 2);
  const Tensor differences = plain.absmax - nested.offset;
  const Tensor allowed = nested.differences.absmax.repeat_interleave(256).narrow(0, 0, 300) *
                         (largest_error(dynamic_map()) + 1e-6);
  const Tensor error = (packed.block_absmax() - plain.absmax).abs();
  EXPECT_TRUE((error <= allowed).all().item<bool>());
  EXPECT_EQ(nested.differences.absmax[0].item<float>(),
            differences.narrow(0, 0, 256).abs().max().item<float>());
  // Values are numbers of the map times the scales that are left.
  const Tensor expected = plain.dequantize().view({300, 64}) / plain.absmax.unsqueeze(1) *
                          packed.block_absmax().unsqueeze(1);
  EXPECT_TRUE(torch::allclose(packed.dequantize(), expected, 1e-5, 1e-7));
}

TEST(QuantizeFourBit, TakesTheBytesThatItSays) {
  const Tensor values = normal({256, 256});
  const int64_t map = 16 * 4;
  EXPECT_EQ(quantize_4bit(values).nbytes(), 256 * 256 / 2 + 1024 * 4 + map);
  EXPECT_EQ(quantize_4bit(values, {.use_double_quant = true}).nbytes(),
            256 * 256 / 2 + 1024 + 4 * 4 + 256 * 4 + map);
}

// ---- Dtypes and devices.

TEST(Dequantize, RoundsEachProductOnce) {
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble}) {
    const FourBitTensor packed = quantize_4bit(normal({7, 33}).to(dtype));
    EXPECT_EQ(packed.dtype, dtype);
    EXPECT_EQ(packed.dequantize().scalar_type(), dtype);
    const Tensor in_float = packed.dequantize(at::kFloat);
    EXPECT_TRUE(same_bits(packed.dequantize(at::kBFloat16), in_float.to(at::kBFloat16)));
    EXPECT_TRUE(same_bits(packed.dequantize(at::kHalf), in_float.to(at::kHalf)));
    EXPECT_TRUE(same_bits(packed.dequantize(at::kDouble), in_float.to(at::kDouble)));
  }
}

TEST(Dequantize, IsTheSameByOperators) {
  for (const FourBitType type : kTypes) {
    for (const bool use_double_quant : {false, true}) {
      for (const Sizes& sizes : {Sizes{64}, Sizes{3, 77}, Sizes{0}, Sizes{5, 4, 16}}) {
        const FourBitTensor packed =
            quantize_4bit(normal(sizes), {.type = type, .use_double_quant = use_double_quant});
        for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16, at::kFloat}) {
          EXPECT_TRUE(same_bits(packed.dequantize(dtype),
                                internal::dequantize_by_operators(packed, dtype)));
        }
        EXPECT_TRUE(same_bits(packed.block_absmax(), internal::block_absmax_on_host(packed)));
      }
    }
  }
}

// Values are made in parts, each with scales of its own.
TEST(Dequantize, IsTheSameByOperatorsInSeveralParts) {
  for (const int64_t count : {internal::kValuesAtATime - 1, internal::kValuesAtATime,
                              internal::kValuesAtATime + 1, 2 * internal::kValuesAtATime + 70}) {
    // Each block has a scale of its own.
    const Tensor values = normal({count}) * torch::linspace(0.5, 4, count);
    for (const bool use_double_quant : {false, true}) {
      const FourBitTensor packed = quantize_4bit(values, {.use_double_quant = use_double_quant});
      EXPECT_TRUE(same_bits(packed.dequantize(at::kFloat),
                            internal::dequantize_by_operators(packed, at::kFloat)))
          << count;
    }
  }
}

TEST(QuantizeFourBit, TakesTensorsThatAreNotContiguous) {
  const Tensor values = normal({48, 32});
  EXPECT_TRUE(
      same_bits(quantize_4bit(values.t()).data, quantize_4bit(values.t().contiguous()).data));
}

TEST(QuantizeFourBit, SaysWhatItCannotQuantise) {
  Tensor values = normal({3, 64});
  values[1][5] = kNan;
  EXPECT_THAT(value_error_of([&] { quantize_4bit(values); }),
              AllOf(HasSubstr("quantize_4bit"), HasSubstr("value 69"), HasSubstr("nan")));
  values[1][5] = -kInfinity;
  EXPECT_THAT(value_error_of([&] { quantize_4bit(values); }), HasSubstr("value 69"));
  EXPECT_THAT(value_error_of([&] { quantize_blockwise(values.flatten()); }), HasSubstr("value 69"));
  EXPECT_THAT(value_error_of([] { quantize_4bit(torch::ones({4}, torch::kLong)); }),
              HasSubstr("Long"));
  EXPECT_THAT(value_error_of([] { quantize_4bit(torch::ones({4}, torch::kMeta)); }),
              HasSubstr("meta"));
  for (const int64_t block_size : {0, 16, 96, 8192, -64}) {
    const FourBitOptions options = {.block_size = block_size};
    EXPECT_THAT(value_error_of([&] { quantize_4bit(torch::ones({4}), options); }),
                HasSubstr("block of " + std::to_string(block_size)));
  }
  EXPECT_THAT(value_error_of([] { quantize_4bit(torch::ones({4})).dequantize(at::kInt); }),
              HasSubstr("Int"));
}

}  // namespace
}  // namespace accelerate
