#include "accelerate/quantization/int8.h"

#include <cmath>
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

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr double kThreshold = 6.0;

Tensor normal(at::IntArrayRef sizes, uint64_t seed) {
  torch::manual_seed(seed);
  return torch::randn(sizes);
}

double largest(const Tensor& tensor) { return tensor.abs().max().item<double>(); }

Tensor in_double(const Tensor& tensor) { return tensor.to(at::kDouble); }

// ---- Weights.

TEST(QuantizeRowwise, ScalesEachRowByItsLargestValue) {
  const Tensor weight = torch::tensor({{254.0f, -128.0f, 2.5f, 0.0f}, {0.0f, 0.0f, 0.0f, 0.0f}});
  const Int8Weight packed = quantize_rowwise(weight);
  const Tensor codes = torch::tensor({{127, -64, 1, 0}, {0, 0, 0, 0}}, at::kChar);
  EXPECT_TRUE(torch::equal(packed.data, codes));
  EXPECT_TRUE(torch::equal(packed.scb, torch::tensor({254.0f, 0.0f})));
  EXPECT_EQ(packed.nbytes(), 2 * 4 + 2 * 4);
  const Tensor expected = torch::tensor({{254.0f, -128.0f, 2.0f, 0.0f}, {0.0f, 0.0f, 0.0f, 0.0f}});
  EXPECT_TRUE(torch::allclose(packed.dequantize(at::kFloat), expected, 1e-6, 0));
  EXPECT_EQ(packed.dequantize(at::kHalf).scalar_type(), at::kHalf);
}

// The steps of a row are scb / 127 wide.
TEST(QuantizeRowwise, IsWithinHalfAStep) {
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16, at::kDouble}) {
    const Tensor scales = torch::logspace(-3, 3, 20).unsqueeze(1);
    const Tensor weight = (normal({20, 300}, 1) * scales).to(dtype);
    const Int8Weight packed = quantize_rowwise(weight);
    EXPECT_TRUE(torch::equal(packed.scb, weight.abs().amax(1).to(at::kFloat)));
    const Tensor error = (in_double(packed.dequantize(at::kDouble)) - in_double(weight)).abs();
    EXPECT_LE(largest(error / in_double(packed.scb).unsqueeze(1)), 0.5 / 127 * (1 + 1e-3));
    EXPECT_EQ(largest(packed.data.to(at::kInt)), 127);
  }
}

TEST(QuantizeRowwise, HasTheSameCodesForItsOwnValues) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const Int8Weight packed = quantize_rowwise(normal({200, 64}, 7).to(dtype));
    for (const at::ScalarType as : {at::kFloat, dtype}) {
      const Int8Weight again = quantize_rowwise(packed.dequantize(as));
      EXPECT_TRUE(torch::equal(again.data, packed.data)) << dtype << " " << as;
      EXPECT_TRUE(torch::equal(again.scb, packed.scb)) << dtype << " " << as;
    }
  }
}

TEST(QuantizeRowwise, KeepsRowsThatAreTooSmallForTheirFactor) {
  const Tensor weight = torch::full({1, 4}, 1e-42f);
  const Int8Weight packed = quantize_rowwise(weight);
  EXPECT_LE(largest(packed.dequantize(at::kFloat) - weight), 1e-41);
}

TEST(QuantizeRowwise, SaysWhatItCannotQuantise) {
  Tensor weight = torch::ones({3, 4});
  weight[2][1] = kNan;
  EXPECT_THAT(value_error_of([&] { quantize_rowwise(weight); }), HasSubstr("row 2"));
  EXPECT_THAT(value_error_of([] { quantize_rowwise(torch::ones({3})); }), HasSubstr("[3]"));
  EXPECT_THAT(value_error_of([] { quantize_rowwise(torch::ones({3, 3}, at::kInt)); }),
              HasSubstr("Int"));
}

// ---- Products of integers.

Tensor product_of(const Tensor& a, const Tensor& b) {
  return torch::mm(a.to(at::kLong), b.to(at::kLong).t());
}

TEST(Int8Matmul, IsExact) {
  torch::manual_seed(1);
  struct Shape {
    int64_t rows, inner, columns;
  };
  for (const Shape& shape : {Shape{1, 1, 1}, Shape{3, 7, 5}, Shape{17, 1500, 9}, Shape{2, 2049, 3},
                             Shape{64, 256, 32}, Shape{0, 8, 4}, Shape{4, 0, 3}, Shape{4, 8, 0}}) {
    const Tensor a = torch::randint(-127, 128, {shape.rows, shape.inner}, at::kChar);
    const Tensor b = torch::randint(-127, 128, {shape.columns, shape.inner}, at::kChar);
    const Tensor expected = product_of(a, b);
    for (const Tensor& product : {int8_matmul(a, b), internal::int8_matmul_in_float(a, b)}) {
      EXPECT_EQ(product.scalar_type(), at::kInt);
      EXPECT_TRUE(torch::equal(product.to(at::kLong), expected))
          << shape.rows << " " << shape.inner << " " << shape.columns;
    }
  }
}

// Products of neighbours do not fit int16, and sums of 1040 of them not float32's integers.
TEST(Int8Matmul, IsExactForTheLargestCodes) {
  for (const int64_t sign : {-1, 1}) {
    const Tensor a = torch::full({20, 4099}, 127, at::kChar);
    const Tensor b = torch::full({11, 4099}, 127 * sign, at::kChar);
    const Tensor expected = torch::full({20, 11}, 4099 * 127 * 127 * sign, at::kLong);
    EXPECT_TRUE(torch::equal(int8_matmul(a, b).to(at::kLong), expected));
    EXPECT_TRUE(torch::equal(internal::int8_matmul_in_float(a, b).to(at::kLong), expected));
  }
  const Tensor least = torch::full({3, 1024}, -128, at::kChar);
  EXPECT_TRUE(torch::equal(internal::int8_matmul_in_float(least, least),
                           torch::full({3, 3}, 1 << 24, at::kInt)));
}

TEST(Int8Matmul, RefusesWhatDoesNotFit) {
  const Tensor codes = torch::ones({3, 4}, at::kChar);
  EXPECT_THAT(value_error_of([&] { int8_matmul(codes, torch::ones({3, 5}, at::kChar)); }),
              HasSubstr("[3, 5]"));
  EXPECT_THAT(value_error_of([&] { int8_matmul(codes, torch::ones({3, 4})); }), HasSubstr("Float"));
  const Tensor wide = torch::ones({1, (1 << 17) + 1}, at::kChar);
  EXPECT_THAT(value_error_of([&] { int8_matmul(wide, wide); }), HasSubstr("131073"));
}

// ---- Rows of an input.

TEST(QuantizeRows, LeavesColumnsOfOutliersOut) {
  const Tensor input = torch::tensor({{1.0f, -6.0f, 0.5f, 5.9f}, {2.0f, 0.25f, -0.5f, 0.0f}});
  const Int8Rows rows = quantize_rows(input, kThreshold);
  EXPECT_TRUE(torch::equal(rows.outlier_columns, torch::ones({1}, at::kLong)));
  EXPECT_TRUE(torch::equal(rows.absmax, torch::tensor({5.9f, 2.0f})));
  EXPECT_TRUE(
      torch::equal(rows.data, torch::tensor({{22, 0, 11, 127}, {127, 0, -32, 0}}, at::kChar)));
  for (const double none : {0.0, kInfinity}) {
    const Int8Rows all = quantize_rows(input, none);
    EXPECT_EQ(all.outlier_columns.numel(), 0);
    EXPECT_TRUE(torch::equal(all.absmax, torch::tensor({6.0f, 2.0f})));
  }
}

TEST(QuantizeRows, IsTheSameByOperators) {
  Tensor input = normal({9, 65}, 2) * torch::logspace(-2, 0.5, 9).unsqueeze(1);
  input[3].zero_();
  input[4][7] = 100;
  // The only value of its column, which has no outliers then.
  input.select(1, 8).zero_();
  input[6][8] = kNan;
  for (const double threshold : {0.0, 2.0, kThreshold, kInfinity}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
      const Int8Rows host = quantize_rows(input.to(dtype), threshold);
      const Int8Rows device = internal::quantize_rows_by_operators(input.to(dtype), threshold);
      EXPECT_TRUE(torch::equal(host.data, device.data)) << threshold << " " << dtype;
      EXPECT_TRUE(host.absmax.equal(device.absmax) ||
                  torch::allclose(host.absmax, device.absmax, 0, 0, /*equal_nan=*/true));
      EXPECT_TRUE(torch::equal(host.outlier_columns, device.outlier_columns));
      EXPECT_TRUE(std::isnan(host.absmax[6].item<float>()));
    }
  }
}

// ---- Layers.

struct Layer {
  Tensor input, weight, bias;
};

Layer layer(int64_t rows, int64_t columns, int64_t outputs) {
  return {normal({rows, columns}, 3), normal({outputs, columns}, 4) * 0.02, normal({outputs}, 5)};
}

// Each value of the input is off by half a step of its row at most, and so is the weight.
TEST(Int8Linear, IsWithinTheBoundOfItsSteps) {
  const Layer given = layer(12, 200, 30);
  const Int8Weight packed = quantize_rowwise(given.weight);
  const Tensor output = int8_linear(given.input, packed, given.bias, 0);
  EXPECT_EQ(output.sizes(), at::IntArrayRef({12, 30}));
  const Tensor x = in_double(given.input), w = in_double(given.weight);
  const Tensor exact = torch::linear(x, w, in_double(given.bias));
  const Tensor half_steps_x = x.abs().amax(1, /*keepdim=*/true) / 254;
  const Tensor half_steps_w = w.abs().amax(1, /*keepdim=*/true) / 254;
  const Tensor packed_sums = in_double(packed.dequantize(at::kFloat)).abs().sum(1).unsqueeze(0);
  const Tensor bound =
      x.abs().sum(1, /*keepdim=*/true) * half_steps_w.t() + half_steps_x * packed_sums;
  EXPECT_TRUE(((output - exact).abs() <= bound * 1.001 + 1e-5).all().item<bool>());
}

// Six columns of the input are `factor` times as large as the others, and all of them outliers.
Layer with_outliers(double factor = 60) {
  Layer given = layer(32, 256, 48);
  given.input.clamp_(-5.5, 5.5);
  for (const int64_t column : {3, 40, 41, 100, 180, 255}) {
    given.input.select(1, column).mul_(factor).add_(factor);
  }
  return given;
}

double root_mean_square(const Tensor& tensor) {
  return std::sqrt(tensor.square().mean().item<double>());
}

// With the packed weight's values only the input is rounded. The errors of equal steps are
// independent of each other, so that the error of a row's sum is in proportion to its step: it
// falls by the factor between the largest value and the largest one that is not an outlier. An
// outlier that counted twice, or not at all, would be off by its whole product.
TEST(Int8Linear, LosesTheStepOfOutliersAndNothingElse) {
  for (const double factor : {6.0, 20.0, 60.0}) {
    const Layer given = with_outliers(factor);
    const Int8Weight packed = quantize_rowwise(given.weight);
    const Tensor exact = torch::linear(
        in_double(given.input), in_double(packed.dequantize(at::kFloat)), in_double(given.bias));
    const auto error = [&](double threshold) {
      return in_double(int8_linear(given.input, packed, given.bias, threshold)) - exact;
    };
    const Int8Rows with = quantize_rows(given.input, kThreshold);
    const Int8Rows without = quantize_rows(given.input, 0);
    EXPECT_EQ(with.outlier_columns.numel(), 6);
    const Tensor ratio = in_double(without.absmax / with.absmax).unsqueeze(1);
    EXPECT_GT(ratio.min().item<double>(), factor / 6);
    const double scaled = root_mean_square(error(kThreshold) * ratio);
    EXPECT_NEAR(scaled / root_mean_square(error(0)), 1, 0.05) << factor;
  }
}

// What is left beside the weight's own error, which both have: with outliers of 60 times the others
// the whole error is a third at most.
TEST(Int8Linear, IsNearerToTheExactProductWithOutliers) {
  const Layer given = with_outliers();
  const Int8Weight packed = quantize_rowwise(given.weight);
  const Tensor exact =
      torch::linear(in_double(given.input), in_double(given.weight), in_double(given.bias));
  const auto error = [&](double threshold) {
    const Tensor output = int8_linear(given.input, packed, given.bias, threshold);
    return root_mean_square(in_double(output) - exact);
  };
  EXPECT_LT(error(kThreshold) * 3, error(0));
}

TEST(Int8Linear, HasNoOutliersAtZeroAndInfinity) {
  const Layer given = with_outliers();
  const Int8Weight packed = quantize_rowwise(given.weight);
  const Tensor plain = int8_linear(given.input, packed, given.bias, 0);
  EXPECT_TRUE(torch::equal(int8_linear(given.input, packed, given.bias, kInfinity), plain));
  EXPECT_FALSE(torch::equal(int8_linear(given.input, packed, given.bias, kThreshold), plain));
}

// Where every column is one, nothing of the input is rounded.
TEST(Int8Linear, MultipliesInFloatingPointBelowTheSmallestValue) {
  const Layer given = with_outliers();
  const Int8Weight packed = quantize_rowwise(given.weight);
  const Tensor output = int8_linear(given.input, packed, given.bias, 1e-20);
  const Tensor expected = torch::linear(
      in_double(given.input), in_double(packed.dequantize(at::kFloat)), in_double(given.bias));
  EXPECT_TRUE(torch::allclose(in_double(output), expected, 1e-5, 1e-4));
}

TEST(Int8Linear, KeepsDtypesAndLeadingDimensions) {
  const Layer given = layer(24, 64, 10);
  const Int8Weight packed = quantize_rowwise(given.weight);
  const Tensor flat = int8_linear(given.input, packed, Tensor(), kThreshold);
  const Tensor deep = int8_linear(given.input.view({2, 3, 4, 64}), packed, Tensor(), kThreshold);
  EXPECT_EQ(deep.sizes(), at::IntArrayRef({2, 3, 4, 10}));
  EXPECT_TRUE(torch::equal(deep.view({24, 10}), flat));
  EXPECT_EQ(int8_linear(given.input[0], packed, Tensor(), kThreshold).sizes(),
            at::IntArrayRef({10}));
  EXPECT_EQ(int8_linear(torch::zeros({0, 64}), packed, Tensor(), kThreshold).sizes(),
            at::IntArrayRef({0, 10}));
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
    const Tensor input = given.input.to(dtype);
    const Tensor output = int8_linear(input, packed, given.bias.to(dtype), kThreshold);
    EXPECT_EQ(output.scalar_type(), dtype);
    const Tensor expected =
        int8_linear(input.to(at::kFloat), packed, given.bias.to(dtype).to(at::kFloat), kThreshold);
    EXPECT_TRUE(torch::equal(output, expected.to(dtype)));
  }
}

TEST(Int8Linear, GivesNanForRowsThatAreNotFinite) {
  Layer given = layer(3, 16, 4);
  given.input[1][5] = kNan;
  const Tensor output =
      int8_linear(given.input, quantize_rowwise(given.weight), given.bias, kThreshold);
  EXPECT_TRUE(output[1].isnan().all().item<bool>());
  EXPECT_TRUE(output[0].isfinite().all().item<bool>());
  EXPECT_TRUE(output[2].isfinite().all().item<bool>());
}

TEST(Int8Linear, RefusesWhatDoesNotFit) {
  const Int8Weight packed = quantize_rowwise(torch::ones({4, 8}));
  EXPECT_THAT(value_error_of([&] { int8_linear(torch::ones({2, 7}), packed, Tensor(), 6); }),
              AllOf(HasSubstr("[2, 7]"), HasSubstr("[4, 8]")));
  EXPECT_THAT(value_error_of([&] { int8_linear(torch::ones({2, 8}), packed, Tensor(), -1); }),
              HasSubstr("threshold"));
  EXPECT_THAT(
      value_error_of([&] { int8_linear(torch::ones({2, 8}), packed, torch::ones({1}), 6); }),
      AllOf(HasSubstr("[1]"), HasSubstr("[4, 8]")));
  EXPECT_THAT(
      value_error_of([&] { int8_linear(torch::ones({2, 8}, at::kLong), packed, Tensor(), 6); }),
      HasSubstr("Long"));
}

}  // namespace
}  // namespace accelerate
