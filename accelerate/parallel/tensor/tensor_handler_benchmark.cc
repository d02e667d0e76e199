// What the marks of divided layers cost an operator: an in-place addition of one-element tensors
// with a handler that passes calls on (0), with that of divided layers (1), and with it where the
// tensor is features of which the rank has a part (2).
//
//   tensor_handler_benchmark --benchmark_enable_random_interleaving
//
// The cost is the difference of the medians; wanted is at most 0.1 us.
#include <memory>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <benchmark/benchmark.h>

#include "accelerate/operators/operator_mode.h"
#include "accelerate/parallel/tensor/tensor_handler.h"
#include "accelerate/parallel/tensor/tensor_mark.h"

namespace accelerate {
namespace {

struct PassOn final : OperatorHandler {
  PassOn() : OperatorHandler(OperatorOrder::kTensorParallel) {}
  void call(const OperatorCall& call) override { call.proceed(); }
};

void BM_Add(benchmark::State& state) {
  const at::NoGradGuard no_grad;
  at::Tensor x = at::zeros({1});
  const at::Tensor y = at::zeros({1});
  std::shared_ptr<OperatorHandler> handler = std::make_shared<PassOn>();
  if (state.range(0) > 0) {
    handler =
        std::make_shared<TensorHandler>(ProcessGroupPtr(), /*rank=*/0, TensorHandler::Parameters());
  }
  if (state.range(0) > 1) {
    set_mark(x, c10::make_intrusive<TensorMark>(TensorMark::Kind::kFeatures, nullptr,
                                                /*from_end=*/1));
  }
  const OperatorModeScope scope(handler);
  for (auto _ : state) benchmark::DoNotOptimize(x.add_(y));
}
BENCHMARK(BM_Add)->ArgName("marks")->DenseRange(0, 2)->Repetitions(15)->ReportAggregatesOnly();

}  // namespace
}  // namespace accelerate

BENCHMARK_MAIN();
