// The cost of a data loader on top of reading: samples delivered per second on one thread, and the
// part of the time that the reading itself takes. The floor is at::index_select with the indices
// ready, over the same batches; loader and floor take turns, and medians are compared.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>
#include <torch/torch.h>

#include "accelerate/data/data_loader.h"
#include "accelerate/data/tensor_dataset.h"
#include "accelerate/state/gradient_state.h"

namespace accelerate {
namespace {

constexpr int64_t kSamples = 1'000'000;
constexpr int64_t kBatchSize = 64;
constexpr int kRanks = 8;
constexpr int64_t kSkipped = 10'000;

template <typename Fn>
double seconds(Fn&& fn) {
  const auto start = std::chrono::steady_clock::now();
  fn();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> numbers) {
  std::nth_element(numbers.begin(), numbers.begin() + numbers.size() / 2, numbers.end());
  return numbers[numbers.size() / 2];
}

int64_t rows(const at::Tensor& batch) { return batch.size(0); }
int64_t rows(const std::tuple<at::Tensor>& batch) { return std::get<0>(batch).size(0); }

at::Tensor numbers() {
  static const at::Tensor tensor = torch::arange(kSamples);
  return tensor;
}

// Batches of rank 0, as its loader reads them.
std::vector<at::Tensor> ready_indices(bool shuffled, int ranks) {
  const at::Tensor order = shuffled ? torch::randperm(kSamples, torch::kLong) : numbers();
  std::vector<at::Tensor> indices;
  for (int64_t begin = 0; begin < kSamples; begin += kBatchSize * ranks) {
    const int64_t end = std::min(begin + kBatchSize, kSamples);
    indices.push_back(order.slice(0, begin, end).clone());
  }
  return indices;
}

// Passes of the loader and of its floor in turn.
template <typename Loader>
void compare(benchmark::State& state, const Loader& loader, bool shuffled, int ranks) {
  const std::vector<at::Tensor> indices = ready_indices(shuffled, ranks);
  const at::Tensor data = numbers();
  std::vector<double> of_loader;
  std::vector<double> of_floor;
  int64_t samples = 0;
  int64_t floor_samples = 0;
  for (auto _ : state) {
    floor_samples = 0;
    of_floor.push_back(seconds([&] {
      for (const at::Tensor& batch : indices) {
        floor_samples += data.index_select(0, batch).size(0);
      }
    }));
    samples = 0;
    of_loader.push_back(seconds([&] {
      for (auto& batch : loader) samples += rows(batch);
    }));
    state.SetIterationTime(of_loader.back());
  }
  const double floor_rate = static_cast<double>(floor_samples) / median(of_floor);
  const double rate = static_cast<double>(samples) / median(of_loader);
  state.counters["samples_per_s"] = rate;
  state.counters["floor_per_s"] = floor_rate;
  state.counters["of_floor"] = rate / floor_rate;
}

void BM_Alone(benchmark::State& state) {
  compare(state, DataLoader(make_tensor_dataset(numbers()), {.batch_size = kBatchSize}), false, 1);
}

// Rank 0 of 8, as an Accelerator prepares it.
template <typename Dataset>
void compare_share(benchmark::State& state, Dataset dataset, const DataLoaderOptions& options,
                   bool split = false) {
  GradientState gradients;
  const auto shard = DataLoader(std::move(dataset), options)
                         .shard({.share = 0,
                                 .num_shares = kRanks,
                                 .split_batches = split,
                                 .dispatch_batches = false,
                                 .gradient_state = &gradients});
  compare(state, shard, options.shuffle, kRanks);
}

void BM_Prepared(benchmark::State& state) {
  compare_share(state, make_tensor_dataset(numbers()), {.batch_size = kBatchSize});
}
void BM_PreparedSplit(benchmark::State& state) {
  compare_share(state, make_tensor_dataset(numbers()), {.batch_size = kBatchSize * kRanks}, true);
}
void BM_PreparedShuffled(benchmark::State& state) {
  compare_share(state, make_tensor_dataset(numbers()), {.batch_size = kBatchSize, .shuffle = true});
}
void BM_PreparedTwoWorkers(benchmark::State& state) {
  compare_share(state, make_tensor_dataset(numbers()),
                {.batch_size = kBatchSize, .num_workers = 2});
}

std::vector<int64_t> list_of_numbers() {
  std::vector<int64_t> list(static_cast<size_t>(kSamples));
  std::iota(list.begin(), list.end(), 0);
  return list;
}

void BM_PreparedCollated(benchmark::State& state) {
  compare_share(state, list_of_numbers(), {.batch_size = kBatchSize});
}

// A stream of 0, 1, 2, ..., which every rank reads as a whole.
struct Counter {
  int64_t count = 0;
  void reset() { count = 0; }
  std::optional<int64_t> next() { return count < kSamples ? std::optional(count++) : std::nullopt; }
};

void BM_PreparedStream(benchmark::State& state) {
  compare_share(state, Counter(), {.batch_size = kBatchSize});
}

// The random numbers that shuffling draws at least, once per pass.
void BM_Permutation(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(torch::randperm(kSamples, torch::kLong));
}

// From begin() to the first batch in hand.
void BM_SkipToTheFirstBatch(benchmark::State& state) {
  const DataLoader loader(make_tensor_dataset(numbers()), {.batch_size = kBatchSize});
  const auto rest = skip_first_batches(loader, kSkipped);
  for (auto _ : state) {
    auto iterator = rest.begin();
    benchmark::DoNotOptimize(*iterator);
  }
}

BENCHMARK(BM_Alone)->UseManualTime()->Unit(benchmark::kMillisecond)->Iterations(31);
BENCHMARK(BM_Prepared)->UseManualTime()->Unit(benchmark::kMillisecond)->Iterations(101);
BENCHMARK(BM_PreparedSplit)->UseManualTime()->Unit(benchmark::kMillisecond)->Iterations(101);
BENCHMARK(BM_PreparedShuffled)->UseManualTime()->Unit(benchmark::kMillisecond)->Iterations(51);
BENCHMARK(BM_PreparedTwoWorkers)->UseManualTime()->Unit(benchmark::kMillisecond)->Iterations(51);
BENCHMARK(BM_PreparedCollated)->UseManualTime()->Unit(benchmark::kMillisecond)->Iterations(101);
BENCHMARK(BM_PreparedStream)->UseManualTime()->Unit(benchmark::kMillisecond)->Iterations(21);
BENCHMARK(BM_Permutation)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_SkipToTheFirstBatch)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace accelerate

int main(int argc, char** argv) {
  at::set_num_threads(1);
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
