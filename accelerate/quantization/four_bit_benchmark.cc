// A matrix of 4096 x 4096 in nf4 by a few rows: made into values and multiplied, beside the product
// that reads the packed weight. One thread.
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <benchmark/benchmark.h>

#include "accelerate/quantization/four_bit.h"
#include "accelerate/quantization/int8.h"

namespace accelerate {
namespace {

constexpr int64_t kSize = 4096;

const FourBitTensor& packed_weight() {
  static const FourBitTensor weight =
      quantize_4bit(at::randn({kSize, kSize}), {.type = FourBitType::kNf4});
  return weight;
}

at::ScalarType dtype_of(const benchmark::State& state) {
  return state.range(1) == 0 ? at::kFloat : at::kBFloat16;
}

void BM_Values(benchmark::State& state) {
  const at::Tensor input = at::randn({state.range(0), kSize}).to(dtype_of(state));
  for (auto _ : state) {
    benchmark::DoNotOptimize(at::linear(input, packed_weight().dequantize(dtype_of(state))));
  }
}

void BM_Packed(benchmark::State& state) {
  const at::Tensor input = at::randn({state.range(0), kSize}).to(dtype_of(state));
  for (auto _ : state) {
    benchmark::DoNotOptimize(four_bit_linear(input, packed_weight(), at::Tensor()));
  }
}

// The same product with a weight that was never quantised.
void BM_Plain(benchmark::State& state) {
  const at::Tensor input = at::randn({state.range(0), kSize}).to(dtype_of(state));
  const at::Tensor weight = at::randn({kSize, kSize}).to(dtype_of(state));
  for (auto _ : state) benchmark::DoNotOptimize(at::linear(input, weight));
}

void BM_Int8(benchmark::State& state) {
  const at::Tensor input = at::randn({state.range(0), kSize}).to(dtype_of(state));
  static const Int8Weight weight = quantize_rowwise(at::randn({kSize, kSize}));
  for (auto _ : state) benchmark::DoNotOptimize(int8_linear(input, weight, at::Tensor(), 6.0));
}

void BM_PackedTwice(benchmark::State& state) {
  const at::Tensor input = at::randn({1, kSize});
  static const FourBitTensor weight = quantize_4bit(
      at::randn({kSize, kSize}), {.type = FourBitType::kNf4, .use_double_quant = true});
  for (auto _ : state) benchmark::DoNotOptimize(four_bit_linear(input, weight, at::Tensor()));
}

void BM_Dequantize(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(packed_weight().dequantize(dtype_of(state)));
}

void BM_Quantize(benchmark::State& state) {
  const at::Tensor weight = at::randn({kSize, kSize}).to(dtype_of(state));
  for (auto _ : state) {
    benchmark::DoNotOptimize(quantize_4bit(weight, {.type = FourBitType::kNf4}));
  }
}

void arguments(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgsProduct({{1, 2, 4, 8}, {0, 1}})->ArgNames({"rows", "bf16"});
  benchmark->Unit(benchmark::kMillisecond);
}
BENCHMARK(BM_Values)->Apply(arguments);
BENCHMARK(BM_Packed)->Apply(arguments);
BENCHMARK(BM_Plain)->Apply(arguments);
BENCHMARK(BM_Int8)->Apply(arguments);
BENCHMARK(BM_PackedTwice)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_Dequantize)->Args({0, 0})->Args({0, 1})->Unit(benchmark::kMillisecond);
BENCHMARK(BM_Quantize)->Args({0, 0})->Args({0, 1})->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace accelerate

int main(int argc, char** argv) {
  at::set_num_threads(1);
  const at::NoGradGuard no_grad;
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
