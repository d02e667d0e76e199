// The cost of a step of the multi-tensor optimizers, against torch::optim's called in turn with it,
// on one thread.
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "absl/strings/str_format.h"
#include "accelerate/optim/fused_optimizers.h"
#include "integration_tests/step/benchmark_table.h"

namespace accelerate::step_benchmark {
namespace {

constexpr int kTensors = 400;
constexpr int kRounds = 200;

std::vector<torch::Tensor> make_parameters(int64_t size) {
  torch::manual_seed(0);
  std::vector<torch::Tensor> parameters;
  for (int i = 0; i < kTensors; ++i) {
    parameters.push_back(torch::randn({size}).requires_grad_());
    parameters.back().mutable_grad() = torch::randn({size});
  }
  return parameters;
}

template <typename Ours, typename Theirs, typename Options>
void compare(const char* name, int64_t size, const Options& options) {
  Ours ours(make_parameters(size), options);
  Theirs theirs(make_parameters(size), options);
  // The first steps make the state.
  for (int i = 0; i < 3; ++i) {
    theirs.step();
    ours.step();
  }
  std::vector<double> alone, here;
  for (int round = 0; round < kRounds; ++round) {
    alone.push_back(microseconds([&] { theirs.step(); }));
    here.push_back(microseconds([&] { ours.step(); }));
  }
  const double before = median(std::move(alone));
  const double after = median(std::move(here));
  const bool is_asked = std::string_view(name) == "AdamW" && size == 1024;
  print({.measured = absl::StrFormat("%s, %d tensors of %d", name, kTensors, size),
         .alone = before,
         .here = after,
         .result = absl::StrFormat("%.1f times as fast", before / after),
         .wanted = is_asked ? "at least 4 times" : ""});
}

}  // namespace

void measure_optimizers() {
  for (const int64_t size : {64, 1024, 16384}) {
    compare<optim::AdamW, torch::optim::AdamW>("AdamW", size, torch::optim::AdamWOptions(1e-3));
    compare<optim::Adam, torch::optim::Adam>("Adam", size, torch::optim::AdamOptions(1e-3));
    compare<optim::SGD, torch::optim::SGD>("SGD with momentum", size,
                                           torch::optim::SGDOptions(1e-3).momentum(0.9));
  }
}

}  // namespace accelerate::step_benchmark
