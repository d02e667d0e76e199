// What an operation costs through the watched group, against Gloo itself called in turn with it:
//
//   operation_latency_benchmark [ROUNDS]
//
// starts two processes. Prints medians in microseconds, taken on rank 0.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "accelerate/accelerate.h"
#include "accelerate/comm/gloo_backend.h"
#include "integration_tests/watch/processes.h"

namespace {

using accelerate::Runtime;
using Tensors = std::vector<torch::Tensor>;

struct Subject {
  std::string name;
  std::function<void()> run;
  std::vector<double> micros = {};
};

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

int measure(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 3000;
  Runtime& runtime = Runtime::current();
  const accelerate::Accelerator accelerator;
  const auto group = accelerate::PartialState::get(runtime).group();
  const auto gloo = c10::make_intrusive<accelerate::GlooBackend>(accelerate::BackendOptions{
      .store = c10::make_intrusive<c10d::PrefixStore>("benchmark", runtime.store()),
      .rank = runtime.topology().rank,
      .size = runtime.topology().world_size,
      .timeout = std::chrono::minutes(1)});
  torch::Tensor input = torch::ones({64});
  torch::Tensor output = torch::empty({64 * group->getSize()});
  Tensors one{torch::ones({64})};
  std::vector<Subject> subjects{
      {"all_gather, Gloo", [&] { gloo->_allgather_base(output, input)->wait(); }},
      {"all_gather, watched", [&] { group->_allgather_base(output, input)->wait(); }},
      {"gather_for_metrics", [&] { accelerator.gather_for_metrics(input); }},
      {"broadcast, Gloo", [&] { gloo->broadcast(one)->wait(); }},
      {"broadcast, watched", [&] { group->broadcast(one)->wait(); }},
  };
  for (int round = 0; round < rounds; ++round) {
    for (Subject& subject : subjects) {
      const auto start = std::chrono::steady_clock::now();
      subject.run();
      const std::chrono::duration<double, std::micro> took =
          std::chrono::steady_clock::now() - start;
      subject.micros.push_back(took.count());
    }
  }
  if (runtime.topology().rank != 0) return 0;
  for (const Subject& subject : subjects) {
    std::printf("%-22s %8.1f us\n", subject.name.c_str(), median(subject.micros));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (std::getenv("RANK") != nullptr) return accelerate::run(argc, argv, measure);
  std::vector<std::string> command(argv, argv + argc);
  for (const auto& result : accelerate::watch_tests::run_processes(2, command)) {
    std::fputs(result.output.c_str(), stdout);
    if (result.exit_code != 0) return 1;
  }
  return 0;
}
