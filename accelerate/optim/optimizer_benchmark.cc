// What a step of the multi-tensor optimizers costs, against torch::optim's called in turn with it:
//
//   optimizer_benchmark [ROUNDS]
//
// One thread, 400 tensors. Prints a table of medians in microseconds.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "accelerate/optim/adam.h"
#include "accelerate/optim/sgd.h"

namespace {

constexpr int kTensors = 400;

std::vector<torch::Tensor> make_parameters(int64_t size) {
  torch::manual_seed(0);
  std::vector<torch::Tensor> parameters;
  for (int i = 0; i < kTensors; ++i) {
    parameters.push_back(torch::randn({size}).requires_grad_());
    parameters.back().mutable_grad() = torch::randn({size});
  }
  return parameters;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

double micros(torch::optim::Optimizer& optimizer) {
  const auto start = std::chrono::steady_clock::now();
  optimizer.step();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
      .count();
}

template <typename Ours, typename Theirs, typename Options>
void compare(const char* name, int64_t size, int rounds, const Options& options) {
  Ours ours(make_parameters(size), options);
  Theirs theirs(make_parameters(size), options);
  std::vector<double> our_micros;
  std::vector<double> their_micros;
  for (int round = 0; round < rounds + 3; ++round) {
    const double theirs_took = micros(theirs);
    const double ours_took = micros(ours);
    if (round < 3) continue;  // the first steps make the state
    our_micros.push_back(ours_took);
    their_micros.push_back(theirs_took);
  }
  const double our_median = median(std::move(our_micros));
  const double their_median = median(std::move(their_micros));
  std::printf("| %-14s | %8lld | %12.0f | %12.0f | %5.1f |\n", name, static_cast<long long>(size),
              their_median, our_median, their_median / our_median);
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 200;
  at::set_num_threads(1);
  std::printf("| %-14s | %8s | %12s | %12s | ratio |\n", "400 tensors", "elements", "torch::optim",
              "accelerate");
  std::printf("| --- | ---: | ---: | ---: | ---: |\n");
  for (const int64_t size : {int64_t{64}, int64_t{1024}, int64_t{16384}}) {
    compare<accelerate::optim::AdamW, torch::optim::AdamW>("AdamW", size, rounds,
                                                           torch::optim::AdamWOptions(1e-3));
    compare<accelerate::optim::Adam, torch::optim::Adam>("Adam", size, rounds,
                                                         torch::optim::AdamOptions(1e-3));
    compare<accelerate::optim::SGD, torch::optim::SGD>("SGD", size, rounds,
                                                       torch::optim::SGDOptions(1e-3));
    compare<accelerate::optim::SGD, torch::optim::SGD>(
        "SGD, momentum", size, rounds, torch::optim::SGDOptions(1e-3).momentum(0.9));
  }
  return 0;
}
