// What handlers cost an operator: in-place additions of one-element tensors, measured in turn
// without a scope, with an empty stack, and with one and three handlers that pass every call on.
// Each line's counters are medians in microseconds.
#include <algorithm>
#include <chrono>
#include <memory>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <benchmark/benchmark.h>

#include "accelerate/operators/operator_mode.h"

namespace accelerate {
namespace {

struct PassOn final : OperatorHandler {
  explicit PassOn(OperatorOrder order) : OperatorHandler(order) {}
  void call(const OperatorCall& call) override { call.proceed(); }
};

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double microseconds_per_call(at::Tensor& x, const at::Tensor& y) {
  constexpr int kCalls = 1000;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kCalls; ++i) benchmark::DoNotOptimize(x.add_(y));
  const std::chrono::duration<double, std::micro> spent = std::chrono::steady_clock::now() - start;
  return spent.count() / kCalls;
}

void BM_Handlers(benchmark::State& state) {
  constexpr OperatorOrder kOrders[] = {OperatorOrder::kResidency, OperatorOrder::kLinearProducts,
                                       OperatorOrder::kCosts};
  OperatorHandlers handlers;
  for (int i = 0; i < state.range(0); ++i) handlers.push_back(std::make_shared<PassOn>(kOrders[i]));
  const at::NoGradGuard no_grad;
  at::Tensor x = at::zeros({1}), y = at::zeros({1});
  std::vector<double> bare, shown, overhead;
  for (auto _ : state) {
    bare.push_back(microseconds_per_call(x, y));
    const OperatorModeScope scope(handlers);
    shown.push_back(microseconds_per_call(x, y));
    overhead.push_back(shown.back() - bare.back());
  }
  state.counters["bare_us"] = median(bare);
  state.counters["shown_us"] = median(shown);
  state.counters["overhead_us"] = median(overhead);
}
BENCHMARK(BM_Handlers)->Arg(0)->Arg(1)->Arg(3)->Iterations(500);

}  // namespace
}  // namespace accelerate

BENCHMARK_MAIN();
