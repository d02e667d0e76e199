// What a region's call costs beside its code: the guards of a transformer's block with 12
// parameters are checked, the region is found, and code that computes nothing gives its outputs.
//
//   region_benchmark --benchmark_enable_random_interleaving
//
// BM_Record is the whole life of a region: recorded twice, forward and backward, and read.
#include <memory>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>
#include <torch/torch.h>

#include "accelerate/compile/backends.h"
#include "accelerate/compile/compile_regions.h"
#include "accelerate/compile/region_program.h"
#include "accelerate/config/dynamo_plugin.h"
#include "accelerate/testing/transformer_blocks.h"

namespace accelerate {
namespace {

using torch::Tensor;
namespace nn = torch::nn;

// Gives what the first call gave.
class Nothing final : public RegionCode {
 public:
  explicit Nothing(std::shared_ptr<const RegionProgram> program) : program_(std::move(program)) {}

  RegionResult forward(const std::vector<Tensor>& inputs) const override {
    if (kept_.outputs.empty()) kept_ = run_forward(*program_, inputs);
    return kept_;
  }
  std::vector<Tensor> backward(const std::vector<Tensor>& saved,
                               const std::vector<Tensor>& grads) const override {
    return run_backward(*program_, saved, grads);
  }

 private:
  const std::shared_ptr<const RegionProgram> program_;
  mutable RegionResult kept_;
};

struct NothingBackend final : CompileBackend {
  std::unique_ptr<const RegionCode> compile(std::shared_ptr<const RegionProgram> program) override {
    return std::make_unique<Nothing>(std::move(program));
  }
};

// With gradients, whose node a hit makes as well, and without.
void BM_Hit(benchmark::State& state) {
  register_compile_backend(DynamoBackend::kNeuron, [](const TorchDynamoPlugin&) {
    return std::make_unique<NothingBackend>();
  });
  const at::AutoGradMode mode(state.range(0) != 0);
  TransformerBlock block(/*width=*/32, /*heads=*/4);
  auto model = compile_regions(block, {.backend = DynamoBackend::kNeuron, .fullgraph = true});
  const Tensor x = torch::ones({1, 8, 32});
  for (int i = 0; i < 3; ++i) {
    const Tensor y = model(x);
    if (y.requires_grad()) y.sum().backward();
  }
  for (auto _ : state) benchmark::DoNotOptimize(model(x));
}
BENCHMARK(BM_Hit)->ArgName("gradients")->Arg(0)->Arg(1)->Repetitions(15)->ReportAggregatesOnly();

void BM_Record(benchmark::State& state) {
  TransformerBlock block(/*width=*/32, /*heads=*/4);
  const Tensor x = torch::ones({1, 8, 32});
  for (auto _ : state) {
    auto model = compile_regions(block, {.backend = DynamoBackend::kAotEager, .fullgraph = true});
    for (int i = 0; i < 2; ++i) model(x).sum().backward();
  }
}
BENCHMARK(BM_Record)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace accelerate

BENCHMARK_MAIN();
