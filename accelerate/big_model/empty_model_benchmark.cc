// A model of 7 billion parameters that is built without memory: the 224 matrices of Llama's 32
// blocks and its two embeddings, as torch::nn modules.

#include <benchmark/benchmark.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "accelerate/big_model/empty_model.h"

namespace accelerate {
namespace {

constexpr int64_t kHidden = 4096, kIntermediate = 11008, kVocabulary = 32000;
constexpr int kBlocks = 32;

torch::nn::Linear matrix(int64_t in, int64_t out) {
  return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(false));
}

torch::nn::ModuleList make_model() {
  torch::nn::ModuleList model;
  model->push_back(torch::nn::Embedding(kVocabulary, kHidden));
  for (int block = 0; block < kBlocks; ++block) {
    for (int projection = 0; projection < 4; ++projection) {
      model->push_back(matrix(kHidden, kHidden));
    }
    model->push_back(matrix(kHidden, kIntermediate));
    model->push_back(matrix(kHidden, kIntermediate));
    model->push_back(matrix(kIntermediate, kHidden));
  }
  model->push_back(matrix(kHidden, kVocabulary));
  return model;
}

void BM_BuildEmpty(benchmark::State& state) {
  for (auto _ : state) {
    const EmptyInit empty = init_empty_weights();
    benchmark::DoNotOptimize(make_model());
  }
}
BENCHMARK(BM_BuildEmpty)->Unit(benchmark::kMillisecond)->Repetitions(9)->ReportAggregatesOnly();

}  // namespace
}  // namespace accelerate

BENCHMARK_MAIN();
