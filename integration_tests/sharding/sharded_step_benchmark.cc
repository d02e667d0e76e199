// A training step with shards beside one with replicas. Two Gloo processes of one thread each train
// a language model of 24 blocks with AdamW in both ways, in turn.
//
//   sharded_step_benchmark [ROUNDS [bf16] [small] [replicas | shards]]
//
// A group of shards is a block, as of PyTorch's fully_shard(block); with the word small it is as
// large as ShardingOptions has it, of which a block has three.
// With bf16 the shards are gathered in it and computed in it. With replicas or shards only these
// are trained, and from the first step on, as for a profiler that compares two numbers of rounds.
// A thread's wall time without its CPU time is what it waits: on an idle machine for the other rank
// and for Gloo. ci/sharded_step.sh runs this beside PyTorch.
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "absl/strings/match.h"
#include "accelerate/accelerate.h"
#include "accelerate/examples/lm/config.h"
#include "accelerate/examples/lm/model.h"
#include "accelerate/parallel/replicated/ddp.h"
#include "accelerate/parallel/sharded/sharded.h"
#include "accelerate/process/run.h"
#include "integration_tests/watch/processes.h"

namespace accelerate {
namespace {

constexpr int64_t kBatch = 4;

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// The calling thread's CPU time, ms.
double cpu_milliseconds() {
  timespec time = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) * 1e-6;
}

int64_t block_bytes(const torch::nn::Module& model) {
  int64_t bytes = 0;
  for (const auto& parameter : model.named_parameters()) {
    if (absl::StartsWith(parameter.key(), "blocks.0.")) bytes += parameter.value().nbytes();
  }
  return bytes;
}

using MakeTechnique =
    std::function<std::unique_ptr<Technique>(const std::shared_ptr<lm::LmImpl>& module)>;

struct Model {
  Model(const lm::Config& config, const MakeTechnique& make) {
    torch::manual_seed(1);
    const auto module = std::make_shared<lm::LmImpl>(config);
    const auto state = std::make_shared<ModelState>(module);
    Techniques techniques;
    techniques.push_back(make(module));
    state->set_techniques(std::move(techniques));
    std::vector<torch::Tensor> trained;
    for (const TrainedParameter& each : state->trained()) trained.push_back(each.trained);
    adamw = std::make_unique<torch::optim::AdamW>(trained, torch::optim::AdamWOptions(1e-4));
    model.emplace(module, state);
  }

  void step(const torch::Tensor& tokens, bool counts) {
    using Clock = std::chrono::steady_clock;
    const auto milliseconds_since = [](Clock::time_point start) {
      return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
    };
    const Clock::time_point start = Clock::now();
    const double cpu_start = cpu_milliseconds();
    const torch::Tensor logits = (*model)(tokens.slice(1, 0, -1));
    const torch::Tensor loss =
        torch::cross_entropy_loss(logits.flatten(0, 1), tokens.slice(1, 1).flatten());
    loss.backward();
    if (counts) {
      passes.push_back(milliseconds_since(start));
      waits.push_back(passes.back() - (cpu_milliseconds() - cpu_start));
    }
    adamw->step();
    adamw->zero_grad();
    (*model)->zero_grad();
    if (counts) steps.push_back(milliseconds_since(start));
    loss_value = loss.item<double>();
  }

  std::unique_ptr<torch::optim::AdamW> adamw;
  std::optional<PreparedModel<lm::LmImpl>> model;
  double loss_value = 0;
  std::vector<double> passes = {}, waits = {}, steps = {};  // ms
};

// `measured`: by model, replicas before shards.
void print(const char* name, const std::vector<std::vector<double>>& measured, const char* wanted) {
  std::printf("| %s |", name);
  for (const std::vector<double>& times : measured) std::printf(" %.1f |", median(times));
  if (measured.size() == 2) {
    std::printf(" %.2f | %s |", median(measured[1]) / median(measured[0]), wanted);
  }
  std::printf("\n");
}

int measure(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 15;
  const auto has_word = [&](const char* word) {
    return std::any_of(argv + std::min(argc, 2), argv + argc,
                       [&](const char* each) { return std::string(each) == word; });
  };
  const bool bf16 = has_word("bf16"), small = has_word("small");
  torch::set_num_threads(1);
  Runtime& runtime = Runtime::current();
  const ProcessGroupPtr group = runtime.new_group({.name = "benchmark", .backend = "gloo"});
  const lm::Config config =
      lm::model_config("tiny", {.layers = 24, .hidden = 256, .heads = 8, .sequence_length = 128});
  std::vector<std::string> names;
  std::vector<std::unique_ptr<Model>> models;
  if (!has_word("shards")) {
    names.push_back("replicas");
    models.push_back(std::make_unique<Model>(config, [&](const auto& module) {
      return std::make_unique<DistributedDataParallel>(module, group,
                                                       DistributedDataParallelKwargs{});
    }));
  }
  if (!has_word("replicas")) {
    names.push_back("shards");
    models.push_back(std::make_unique<Model>(config, [&](const auto& module) {
      ShardingOptions options;
      if (bf16) options.param_dtype = torch::kBFloat16;
      if (!small) options.group_bytes = block_bytes(*module);
      return std::make_unique<ShardedModel>(*module, ShardGroups{.shards = group, .all = group},
                                            c10::kCPU, options,
                                            ShardedPrecision{.output_dtype = torch::kFloat},
                                            /*broadcast_buffers=*/true);
    }));
  }
  for (int round = models.size() == 2 ? -3 : 0; round < rounds; ++round) {
    const torch::Tensor tokens =
        (torch::arange(kBatch * 128) * 7 + round * 31 + runtime.topology().rank)
            .remainder(256)
            .view({kBatch, 128});
    for (const auto& model : models) {
      group->barrier()->wait();
      model->step(tokens, /*counts=*/round >= 0);
    }
  }
  if (runtime.topology().rank != 0) return 0;
  std::printf("parameters: %lld; losses:", static_cast<long long>(lm::parameter_count(config)));
  for (size_t i = 0; i < models.size(); ++i) {
    std::printf("%s %.6f with %s", i == 0 ? "" : ",", models[i]->loss_value, names[i].c_str());
  }
  std::printf("\n| |");
  for (const std::string& name : names) std::printf(" %s, ms |", name.c_str());
  std::printf("%s\n| --- |%s\n", models.size() == 2 ? " ratio | wanted |" : "",
              models.size() == 2 ? " ---: | ---: | ---: | --- |" : " ---: |");
  const auto all = [&](std::vector<double> Model::* times) {
    std::vector<std::vector<double>> result;
    for (const auto& model : models) result.push_back((*model).*times);
    return result;
  };
  print("step", all(&Model::steps), "at most 1.15");
  print("forward and backward pass", all(&Model::passes), "");
  print("waits in them", all(&Model::waits), "");
  return 0;
}

int measure_in_processes(int argc, char** argv) {
  // The two processes are this program once more.
  if (std::getenv("RANK") != nullptr) return run(argc, argv, measure);
  const std::vector<std::string> command(argv, argv + argc);
  for (const auto& result : watch_tests::run_processes(
           2, command, {{"OMP_NUM_THREADS", "1"}, {"OPENBLAS_NUM_THREADS", "1"}})) {
    std::fputs(result.output.c_str(), stdout);
    if (result.exit_code != 0) return 1;
  }
  return 0;
}

}  // namespace
}  // namespace accelerate

int main(int argc, char** argv) { return accelerate::measure_in_processes(argc, argv); }
