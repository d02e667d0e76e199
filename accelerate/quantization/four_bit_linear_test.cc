#include "accelerate/quantization/four_bit.h"

#include <cstdint>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/testing/value_error.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using torch::Tensor;

Tensor normal(at::IntArrayRef sizes, uint64_t seed) {
  torch::manual_seed(seed);
  return torch::randn(sizes);
}

Tensor in_double(const Tensor& tensor) { return tensor.to(at::kDouble); }

// The values of the weight without a rounding after their product with the scale.
Tensor values_of(const FourBitTensor& weight) { return in_double(weight.dequantize(at::kFloat)); }

double epsilon_of(at::ScalarType dtype) {
  if (dtype == at::kBFloat16) return 1.0 / 128;
  if (dtype == at::kHalf) return 1.0 / 1024;
  return std::numeric_limits<float>::epsilon();
}

// Row by row and column by column: the sum of the magnitudes of what is added.
Tensor magnitudes(const Tensor& input, const Tensor& weight, const Tensor& bias) {
  return torch::linear(in_double(input).abs(), weight.abs(), in_double(bias).abs());
}

// The packed weight's values are not rounded to 16 bits; the output is, by half a step, and float32
// sums lose a few of its own steps.
TEST(FourBitLinear, IsTheExactProductRoundedOnce) {
  for (const bool use_double_quant : {false, true}) {
    for (const int64_t block_size : {32, 64, 256}) {
      const FourBitTensor weight =
          quantize_4bit(normal({37, 512}, 1), {.type = FourBitType::kNf4,
                                               .use_double_quant = use_double_quant,
                                               .block_size = block_size});
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
        const Tensor bias = normal({37}, 2).to(dtype);
        for (int64_t rows = 1; rows <= internal::kMostFusedRows; ++rows) {
          ASSERT_TRUE(internal::is_fused(weight, rows));
          const Tensor input = normal({rows, 512}, 3).to(dtype);
          const Tensor output = four_bit_linear(input, weight, bias);
          EXPECT_EQ(output.scalar_type(), dtype);
          const Tensor exact = torch::linear(in_double(input), values_of(weight), in_double(bias));
          const Tensor allowed =
              exact.abs() * (epsilon_of(dtype) / 2 * 1.001) +
              magnitudes(input, values_of(weight), bias) * 16 * epsilon_of(at::kFloat);
          EXPECT_TRUE(((in_double(output) - exact).abs() <= allowed).all().item<bool>())
              << dtype << " " << rows << " rows, blocks of " << block_size;
        }
      }
    }
  }
}

// Each value of the weight is rounded by half a step there, and so is the output of both.
TEST(FourBitLinear, IsTheProductWithTheValuesWithinTheirRounding) {
  for (const FourBitType type : {FourBitType::kFp4, FourBitType::kNf4}) {
    const FourBitTensor weight = quantize_4bit(normal({29, 256}, 1), {.type = type});
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const Tensor input = normal({4, 256}, 2).to(dtype), bias = normal({29}, 3).to(dtype);
      const Tensor output = four_bit_linear(input, weight, bias);
      const Tensor product = torch::linear(input, weight.dequantize(dtype), bias);
      const double steps = dtype == at::kFloat ? 16 : 2;
      const Tensor allowed =
          magnitudes(input, values_of(weight), bias) * (steps * epsilon_of(dtype));
      EXPECT_TRUE(((in_double(output) - in_double(product)).abs() <= allowed).all().item<bool>())
          << dtype;
    }
  }
}

TEST(FourBitLinear, MultipliesRowsAloneAsTogether) {
  const FourBitTensor weight = quantize_4bit(normal({11, 128}, 1));
  const Tensor input = normal({4, 128}, 2);
  const Tensor together = four_bit_linear(input, weight, Tensor());
  for (int64_t row = 0; row < 4; ++row) {
    EXPECT_TRUE(torch::equal(four_bit_linear(input[row], weight, Tensor()), together[row]));
  }
}

TEST(FourBitLinear, MakesValuesOfTheWeightForManyRowsAndForBlocksOfTwoRows) {
  const FourBitTensor weight = quantize_4bit(normal({11, 128}, 1));
  const FourBitTensor ragged = quantize_4bit(normal({11, 100}, 1));
  EXPECT_FALSE(internal::is_fused(weight, 5));
  EXPECT_FALSE(internal::is_fused(ragged, 1));
  const Tensor bias = normal({11}, 2);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    const Tensor many = normal({5, 128}, 3).to(dtype), one = normal({1, 100}, 3).to(dtype);
    EXPECT_TRUE(torch::equal(four_bit_linear(many, weight, bias.to(dtype)),
                             torch::linear(many, weight.dequantize(dtype), bias.to(dtype))));
    EXPECT_TRUE(torch::equal(four_bit_linear(one, ragged, Tensor()),
                             torch::linear(one, ragged.dequantize(dtype))));
  }
  // Files may have blocks of any even size.
  FourBitTensor small = weight;
  small.block_size = 4;
  small.absmax = weight.absmax.repeat_interleave(kFourBitBlock / small.block_size);
  EXPECT_FALSE(internal::is_fused(small, 1));
  const Tensor one = normal({1, 128}, 5);
  EXPECT_TRUE(torch::equal(four_bit_linear(one, small, Tensor()),
                           torch::linear(one, weight.dequantize(at::kFloat))));
  const Tensor exact = normal({2, 128}, 4).to(at::kDouble);
  EXPECT_TRUE(torch::equal(four_bit_linear(exact, weight, Tensor()),
                           torch::linear(exact, weight.dequantize(at::kDouble))));
}

TEST(FourBitLinear, KeepsLeadingDimensionsAndHasNoGradients) {
  const FourBitTensor weight = quantize_4bit(normal({11, 64}, 1));
  const Tensor input = normal({2, 64}, 2).requires_grad_();
  const Tensor flat = four_bit_linear(input, weight, Tensor());
  EXPECT_FALSE(flat.requires_grad());
  EXPECT_FALSE(four_bit_linear(input.repeat({3, 1}), weight, normal({11}, 3).requires_grad_())
                   .requires_grad());
  const Tensor deep = four_bit_linear(input.view({1, 2, 1, 64}), weight, Tensor());
  EXPECT_EQ(deep.sizes(), at::IntArrayRef({1, 2, 1, 11}));
  EXPECT_TRUE(torch::equal(deep.view({2, 11}), flat));
  // Every second value of a larger tensor.
  const Tensor strided = input.detach().repeat_interleave(2, 1).slice(1, 0, 128, 2);
  EXPECT_TRUE(torch::equal(four_bit_linear(strided, weight, Tensor()), flat));
  EXPECT_EQ(four_bit_linear(torch::zeros({0, 64}), weight, Tensor()).sizes(),
            at::IntArrayRef({0, 11}));
}

TEST(FourBitLinear, RefusesWhatDoesNotFit) {
  const FourBitTensor weight = quantize_4bit(normal({11, 64}, 1));
  EXPECT_THAT(value_error_of([&] { four_bit_linear(torch::ones({2, 63}), weight, Tensor()); }),
              AllOf(HasSubstr("[2, 63]"), HasSubstr("[11, 64]")));
  EXPECT_THAT(value_error_of([&] { four_bit_linear(torch::ones({64}, at::kLong), weight, {}); }),
              HasSubstr("Long"));
  EXPECT_THAT(value_error_of([&] { four_bit_linear(torch::ones({64}), weight, torch::ones({3})); }),
              AllOf(HasSubstr("[3]"), HasSubstr("[11, 64]")));
  const FourBitTensor deep = quantize_4bit(normal({2, 3, 64}, 1));
  EXPECT_THAT(value_error_of([&] { four_bit_linear(torch::ones({64}), deep, Tensor()); }),
              HasSubstr("[2, 3, 64]"));
}

}  // namespace
}  // namespace accelerate
