// What an operator on a simulated device costs the host over the same operator on the CPU: small
// tensors, both kinds measured in turn in one run, medians. The last line is the median over all.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <benchmark/benchmark.h>

#include "simulator/cluster/cluster.h"

namespace accelerate::simulator {
namespace {

using Operator = std::function<at::Tensor(const at::Tensor&)>;

double median(std::vector<double> values) {
  auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double microseconds_per_call(const Operator& op, const at::Tensor& argument) {
  constexpr int kCalls = 200;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kCalls; ++i) benchmark::DoNotOptimize(op(argument));
  const std::chrono::duration<double, std::micro> spent = std::chrono::steady_clock::now() - start;
  return spent.count() / kCalls;
}

std::vector<double>& all_overheads() {
  static std::vector<double> overheads;
  return overheads;
}

void BM_Overhead(benchmark::State& state, const Operator& op) {
  Cluster cluster("1x1:h100");
  cluster.run_on_every_rank([&](Rank& rank) {
    const at::NoGradGuard no_grad;
    const at::Tensor host = at::ones({8, 8});
    const at::Tensor device = host.to(rank.runtime().device());
    std::vector<double> on_host;
    std::vector<double> on_device;
    std::vector<double> overheads;
    for (auto _ : state) {
      on_host.push_back(microseconds_per_call(op, host));
      on_device.push_back(microseconds_per_call(op, device));
      overheads.push_back(on_device.back() - on_host.back());
    }
    state.counters["cpu_us"] = median(on_host);
    state.counters["sim_us"] = median(on_device);
    state.counters["overhead_us"] = median(overheads);
    all_overheads().push_back(median(overheads));
  });
}

void add(const char* name, Operator op) {
  benchmark::RegisterBenchmark(name, [op](benchmark::State& state) {
    BM_Overhead(state, op);
  })->Iterations(200);
}

void add_all() {
  add("add", [](const at::Tensor& x) { return x + x; });
  add("add_", [](const at::Tensor& x) { return at::Tensor(x).add_(x, 0); });
  add("mul_scalar", [](const at::Tensor& x) { return x * 2; });
  add("relu", [](const at::Tensor& x) { return x.relu(); });
  add("sum", [](const at::Tensor& x) { return x.sum(); });
  add("softmax", [](const at::Tensor& x) { return x.softmax(1); });
  add("layer_norm", [](const at::Tensor& x) { return at::layer_norm(x, {8}); });
  add("mm", [](const at::Tensor& x) { return x.mm(x); });
  add("addmm", [](const at::Tensor& x) { return at::addmm(x, x, x); });
  add("cat", [](const at::Tensor& x) { return at::cat({x, x}); });
  add("index_select", [](const at::Tensor& x) { return x.index({x.gt(0)}); });
  add("view", [](const at::Tensor& x) { return x.view({64}); });
  add("transpose", [](const at::Tensor& x) { return x.t(); });
  add("empty_like", [](const at::Tensor& x) { return at::empty_like(x); });
  add("copy", [](const at::Tensor& x) { return x.clone(); });
  add("to_dtype", [](const at::Tensor& x) { return x.to(at::kDouble); });
}

}  // namespace
}  // namespace accelerate::simulator

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  accelerate::simulator::add_all();
  benchmark::RunSpecifiedBenchmarks();
  const auto& overheads = accelerate::simulator::all_overheads();
  if (!overheads.empty()) {
    std::printf("median overhead over %zu operators: %.2f us\n", overheads.size(),
                accelerate::simulator::median(overheads));
  }
  return 0;
}
