// What planning costs on a model of 10,002 modules: 1,000 blocks of nine layers between an
// embedding and the root, on four accelerators, the CPU and disk.
//
//   infer_benchmark
#include <string>

#include <benchmark/benchmark.h>

#include "absl/log/absl_check.h"
#include "absl/strings/str_cat.h"
#include "accelerate/device_map/infer.h"

namespace accelerate {
namespace {

void add_linear(ModuleTree& tree, ModuleTree::Module parent, const std::string& name,
                double weights, double biases) {
  const ModuleTree::Module linear = tree.add_module(parent, name, "Linear");
  tree.add_tensor(linear, {.name = "weight", .elements = weights});
  tree.add_tensor(linear, {.name = "bias", .elements = biases});
}

ModuleTree model() {
  ModuleTree tree("Model");
  const ModuleTree::Module embedding = tree.add_module(0, "embed", "Embedding");
  tree.add_tensor(embedding, {.name = "weight", .elements = 32000 * 64});
  for (int i = 0; i < 1000; ++i) {
    const ModuleTree::Module block = tree.add_module(0, absl::StrCat("layer", i), "Block");
    for (int j = 0; j < 9; ++j) add_linear(tree, block, absl::StrCat("linear", j), 64 * 64 + j, 64);
  }
  return tree;
}

MaxMemory limits(double total) {
  return *ordered_max_memory({{DevicePlacement::accelerator(0), total / 6},
                              {DevicePlacement::accelerator(1), total / 6},
                              {DevicePlacement::accelerator(2), total / 6},
                              {DevicePlacement::accelerator(3), total / 6},
                              {DevicePlacement::cpu(), total / 5}});
}

void infer(benchmark::State& state, const InferOptions& options) {
  const ModuleTree tree = model();
  ABSL_CHECK(tree.modules().size() == 10002);
  const MaxMemory max_memory = limits(calculate_maximum_sizes(tree)->total);
  for (auto _ : state) {
    const auto inferred = infer_auto_device_map(tree, max_memory, options);
    ABSL_CHECK(inferred.ok() && check_device_map(tree, inferred->map).ok());
  }
}

void BM_Blocks(benchmark::State& state) {
  infer(state, {.no_split_module_classes = {"Block"}, .clean_result = false});
}
BENCHMARK(BM_Blocks)->Unit(benchmark::kMillisecond);

void BM_Layers(benchmark::State& state) { infer(state, {}); }
BENCHMARK(BM_Layers)->Unit(benchmark::kMillisecond);

// Every layer is an entry of the map.
void BM_LayersNotMerged(benchmark::State& state) {
  const ModuleTree tree = model();
  const MaxMemory max_memory = limits(1);
  for (auto _ : state) {
    const auto inferred = infer_auto_device_map(tree, max_memory, {.clean_result = false});
    ABSL_CHECK(inferred.ok());
  }
}
BENCHMARK(BM_LayersNotMerged)->Unit(benchmark::kMillisecond);

void BM_Balanced(benchmark::State& state) {
  const ModuleTree tree = model();
  const MaxMemory max_memory = limits(calculate_maximum_sizes(tree)->total * 3);
  for (auto _ : state) {
    benchmark::DoNotOptimize(
        get_balanced_memory(tree, max_memory, {.no_split_module_classes = {"Block"}}));
  }
}
BENCHMARK(BM_Balanced)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace accelerate

BENCHMARK_MAIN();
