// What handlers cost an operator: an in-place addition of one-element tensors outside of all scopes
// (-1 handlers), with an empty stack, and with handlers that pass every call on.
//
//   operator_mode_benchmark --benchmark_enable_random_interleaving
//
// The cost is the difference of the medians.
#include <memory>
#include <optional>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <benchmark/benchmark.h>

#include "accelerate/operators/operator_mode.h"

namespace accelerate {
namespace {

struct PassOn final : OperatorHandler {
  PassOn() : OperatorHandler(OperatorOrder::kLinearProducts) {}
  void call(const OperatorCall& call) override { call.proceed(); }
};

void BM_Add(benchmark::State& state) {
  const at::NoGradGuard no_grad;
  at::Tensor x = at::zeros({1});
  const at::Tensor y = at::zeros({1});
  std::optional<OperatorModeScope> scope;
  if (state.range(0) >= 0) {
    OperatorHandlers handlers;
    for (int i = 0; i < state.range(0); ++i) handlers.push_back(std::make_shared<PassOn>());
    scope.emplace(std::move(handlers));
  }
  for (auto _ : state) benchmark::DoNotOptimize(x.add_(y));
}
BENCHMARK(BM_Add)->ArgName("handlers")->DenseRange(-1, 3)->Repetitions(15)->ReportAggregatesOnly();

}  // namespace
}  // namespace accelerate

BENCHMARK_MAIN();
