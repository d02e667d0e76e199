// How much of a data-parallel step's communication is left to wait for:
//
//   ddp_overlap_benchmark [ROUNDS]
//
// starts two processes of one thread each. A model of 25 million parameters steps with and without
// synchronisation, and Gloo all-reduces as many bytes, in turn. Prints medians in milliseconds,
// taken on rank 0, and exposed communication (step minus step without synchronisation) as a part of
// the all-reduce.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "accelerate/accelerate.h"
#include "accelerate/comm/gloo_backend.h"
#include "integration_tests/watch/processes.h"

namespace {

using accelerate::DDPCommunicationHookType;
using accelerate::DistributedDataParallelKwargs;
using accelerate::PreparedModel;
using accelerate::Runtime;

constexpr int64_t kWidth = 2500;
constexpr int kLayers = 4;
constexpr int64_t kBatch = 16;

torch::nn::Sequential made_net() {
  torch::nn::Sequential net;
  for (int layer = 0; layer < kLayers; ++layer) {
    net->push_back(torch::nn::Linear(kWidth, kWidth));
    net->push_back(torch::nn::ReLU());
  }
  return net;
}

// A model with options of its own.
struct Replica {
  const char* name;
  PreparedModel<torch::nn::SequentialImpl> model;
  std::vector<double> millis = {};
};

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

double timed(const std::function<void()>& run) {
  const auto start = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

int measure(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 30;
  torch::set_num_threads(1);
  Runtime& runtime = Runtime::current();
  const auto gloo = c10::make_intrusive<accelerate::GlooBackend>(accelerate::BackendOptions{
      .store = c10::make_intrusive<c10d::PrefixStore>("benchmark", runtime.store()),
      .rank = runtime.topology().rank,
      .size = runtime.topology().world_size,
      .timeout = std::chrono::minutes(1)});
  const torch::Tensor x = torch::randn({kBatch, kWidth});
  std::vector<torch::Tensor> flat{torch::zeros({kLayers * (kWidth + 1) * kWidth})};

  std::vector<Replica> replicas;
  for (const auto& [name, options] :
       std::initializer_list<std::pair<const char*, DistributedDataParallelKwargs>>{
           {"step", {}},
           {"step, views of buckets", {.gradient_as_bucket_view = true}},
           {"step, bf16 hook", {.comm_hook = DDPCommunicationHookType::kBf16}}}) {
    accelerate::Accelerator accelerator({.kwargs_handlers = {options}});
    replicas.push_back({name, accelerator.prepare_model(made_net())});
  }
  accelerate::Accelerator accelerator;
  auto step = [&](Replica& replica) {
    accelerator.backward(replica.model(x).square().mean());
    for (torch::Tensor& parameter : replica.model->parameters()) parameter.mutable_grad().reset();
  };
  std::vector<double> alone, raw;
  for (int round = -3; round < rounds; ++round) {  // buckets are rebuilt in the first ones
    for (Replica& replica : replicas) {
      accelerator.wait_for_everyone();
      const double millis = timed([&] { step(replica); });
      if (round >= 0) replica.millis.push_back(millis);
    }
    accelerator.wait_for_everyone();
    const double millis = timed([&] {
      auto scope = accelerator.no_sync(replicas[0].model);
      step(replicas[0]);
    });
    accelerator.wait_for_everyone();
    const double reduces = timed([&] { gloo->allreduce(flat)->wait(); });
    if (round < 0) continue;
    alone.push_back(millis);
    raw.push_back(reduces);
  }
  if (runtime.topology().rank != 0) return 0;
  std::printf("%-26s %8.1f ms\n", "all-reduce, Gloo", median(raw));
  std::printf("%-26s %8.1f ms\n", "step, not synchronised", median(alone));
  for (const Replica& replica : replicas) {
    const double exposed = median(replica.millis) - median(alone);
    std::printf("%-26s %8.1f ms, exposed %6.1f ms = %.2f all-reduces\n", replica.name,
                median(replica.millis), exposed, exposed / median(raw));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (std::getenv("RANK") != nullptr) return accelerate::run(argc, argv, measure);
  const std::vector<std::string> command(argv, argv + argc);
  for (const auto& result : accelerate::watch_tests::run_processes(
           2, command, {{"OMP_NUM_THREADS", "1"}, {"OPENBLAS_NUM_THREADS", "1"}})) {
    std::fputs(result.output.c_str(), stdout);
    if (result.exit_code != 0) return 1;
  }
  return 0;
}
