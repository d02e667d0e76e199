// The latency of an operation through the watched group, compared with Gloo itself in turn:
//
//   operation_latency_benchmark [ROUNDS]
//
// starts two processes. Prints medians in microseconds, taken on rank 0, and the difference
// between the library's operations and the raw operations that they may use.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "accelerate/accelerate.h"
#include "accelerate/comm/backends/gloo/gloo_backend.h"
#include "accelerate/comm/objects.h"
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
  std::vector<std::string> list = {"some", "text"};
  std::vector<Subject> subjects{
      {"all_gather, Gloo", [&] { gloo->_allgather_base(output, input)->wait(); }},
      {"all_gather, watched", [&] { group->_allgather_base(output, input)->wait(); }},
      {"gather_for_metrics", [&] { accelerator.gather_for_metrics(input); }},
      {"broadcast, Gloo", [&] { gloo->broadcast(one)->wait(); }},
      {"broadcast, watched", [&] { group->broadcast(one)->wait(); }},
      {"gather_object",
       [&] { accelerate::gather_object(group, std::vector<std::string>{"text"}); }},
      {"broadcast_object_list", [&] { accelerate::broadcast_object_list(group, list); }},
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
  std::map<std::string, double> medians;
  for (const Subject& subject : subjects) {
    medians[subject.name] = median(subject.micros);
    std::printf("%-22s %8.1f us\n", subject.name.c_str(), medians[subject.name]);
  }
  struct Allowance {
    const char* name;
    const char* raw;
    int times;
  };
  for (const Allowance& allowed : {Allowance{"gather_for_metrics", "all_gather, Gloo", 1},
                                   Allowance{"gather_object", "all_gather, Gloo", 2},
                                   Allowance{"broadcast_object_list", "broadcast, Gloo", 2}}) {
    std::printf("%-22s %+8.1f us against %d x %s\n", allowed.name,
                medians[allowed.name] - allowed.times * medians[allowed.raw], allowed.times,
                allowed.raw);
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
