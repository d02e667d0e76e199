// What managed tensors cost an operator: an in-place addition of one-element tensors, before any is
// made (0), while some live that it does not use (1), and with one as the summand (2).
//
//   managed_storage_benchmark --benchmark_enable_random_interleaving
//
// The cost is the difference of the medians.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <benchmark/benchmark.h>
#include <c10/core/CPUAllocator.h>

#include "accelerate/operators/managed_storage.h"

namespace accelerate {
namespace {

// Its tensors are always in memory.
class Resident final : public StorageOwner {
 public:
  void acquire(const at::Tensor& /*tensor*/, const c10::OperatorHandle& /*op*/,
               bool /*writes*/) override {}
  void release() override {}
};

void BM_Add(benchmark::State& state) {
  const at::NoGradGuard no_grad;
  at::Tensor x = at::zeros({1});
  const at::Tensor ordinary = at::zeros({1});
  const auto owner = c10::make_intrusive<Resident>();
  at::Tensor managed;
  if (state.range(0) > 0) {
    managed = owner->make_absent(ordinary, ordinary.device());
    managed.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(
        c10::GetCPUAllocator()->allocate(ordinary.nbytes()));
  }
  const at::Tensor& y = state.range(0) == 2 ? managed : ordinary;
  for (auto _ : state) benchmark::DoNotOptimize(x.add_(y));
}
BENCHMARK(BM_Add)->ArgName("managed")->DenseRange(0, 2)->Repetitions(15)->ReportAggregatesOnly();

}  // namespace
}  // namespace accelerate

BENCHMARK_MAIN();
