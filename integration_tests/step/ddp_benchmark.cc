// How much of a data-parallel step's communication is left to wait for. Two processes of one thread
// each; a model of 25 million parameters steps with and without synchronisation, and Gloo
// all-reduces as many bytes, in turn. Exposed is a step minus a step without synchronisation.
#include <chrono>
#include <functional>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "accelerate/accelerate.h"
#include "accelerate/comm/backends/gloo/gloo_backend.h"
#include "integration_tests/step/benchmark_table.h"

namespace accelerate::step_benchmark {
namespace {

constexpr int64_t kWidth = 2500;
constexpr int kLayers = 4;
constexpr int64_t kBatch = 16;
constexpr int kRounds = 30;

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
  bool is_peers;  // whether HF Accelerate's figure is of these options
  PreparedModel<torch::nn::SequentialImpl> model;
  std::vector<double> micros = {};
};

}  // namespace

void measure_data_parallel() {
  torch::set_num_threads(1);
  Runtime& runtime = Runtime::current();
  const auto gloo = c10::make_intrusive<GlooBackend>(
      BackendOptions{.store = c10::make_intrusive<c10d::PrefixStore>("benchmark", runtime.store()),
                     .rank = runtime.topology().rank,
                     .size = runtime.topology().world_size,
                     .timeout = std::chrono::minutes(1)});
  const torch::Tensor x = torch::randn({kBatch, kWidth});
  std::vector<torch::Tensor> flat{torch::zeros({kLayers * (kWidth + 1) * kWidth})};

  std::vector<Replica> replicas;
  for (const auto& [name, is_peers, options] :
       std::initializer_list<std::tuple<const char*, bool, DistributedDataParallelKwargs>>{
           {"as it is", true, {}},
           {"gradient_as_bucket_view", false, {.gradient_as_bucket_view = true}},
           {"gradients copied out (static_graph)", false, {.static_graph = true}},
           {"comm_hook bf16", false, {.comm_hook = DDPCommunicationHookType::kBf16}}}) {
    Accelerator accelerator({.kwargs_handlers = {options}});
    replicas.push_back({name, is_peers, accelerator.prepare_model(made_net())});
  }
  Accelerator accelerator;
  auto step = [&](Replica& replica) {
    accelerator.backward(replica.model(x).square().mean());
    for (torch::Tensor& parameter : replica.model->parameters()) parameter.mutable_grad().reset();
  };
  std::vector<double> alone, raw;
  for (int round = -3; round < kRounds; ++round) {  // buckets are rebuilt in the first ones
    for (Replica& replica : replicas) {
      accelerator.wait_for_everyone();
      const double micros = microseconds([&] { step(replica); });
      if (round >= 0) replica.micros.push_back(micros);
    }
    accelerator.wait_for_everyone();
    const double micros = microseconds([&] {
      auto scope = accelerator.no_sync(replicas[0].model);
      step(replicas[0]);
    });
    accelerator.wait_for_everyone();
    const double reduces = microseconds([&] { gloo->allreduce(flat)->wait(); });
    if (round < 0) continue;
    alone.push_back(micros);
    raw.push_back(reduces);
  }
  if (runtime.topology().rank != 0) return;
  for (const Replica& replica : replicas) {
    const double exposed = median(replica.micros) - median(alone);
    print({.measured = absl::StrCat("DDP's exposed communication, ", replica.name),
           .alone = median(raw),
           .here = exposed,
           .result = absl::StrFormat("%.2f of an all-reduce", exposed / median(raw)),
           .wanted = "at most 1.0",
           .peer = replica.is_peers ? "1.3" : ""});
  }
}

}  // namespace accelerate::step_benchmark
