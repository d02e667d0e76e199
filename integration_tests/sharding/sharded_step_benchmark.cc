// A training step with shards beside one with replicas. Two Gloo processes of one thread each train
// a language model of 24 blocks with AdamW in both ways, in turn.
//
//   sharded_step_benchmark [ROUNDS [bf16]]
//
// With bf16 the shards are gathered in it and computed in it.
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
    const torch::Tensor logits = (*model)(tokens.slice(1, 0, -1));
    const torch::Tensor loss =
        torch::cross_entropy_loss(logits.flatten(0, 1), tokens.slice(1, 1).flatten());
    loss.backward();
    if (counts) passes.push_back(milliseconds_since(start));
    adamw->step();
    adamw->zero_grad();
    (*model)->zero_grad();
    if (counts) steps.push_back(milliseconds_since(start));
    loss_value = loss.item<double>();
  }

  std::unique_ptr<torch::optim::AdamW> adamw;
  std::optional<PreparedModel<lm::LmImpl>> model;
  double loss_value = 0;
  std::vector<double> passes = {}, steps = {};  // ms
};

void print(const char* name, const std::vector<double>& replicas, const std::vector<double>& shards,
           const char* wanted) {
  std::printf("| %s | %.0f | %.0f | %.2f | %s |\n", name, median(replicas), median(shards),
              median(shards) / median(replicas), wanted);
}

int measure(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 15;
  const bool bf16 = argc > 2 && std::string(argv[2]) == "bf16";
  torch::set_num_threads(1);
  Runtime& runtime = Runtime::current();
  const ProcessGroupPtr group = runtime.new_group({.name = "benchmark", .backend = "gloo"});
  const lm::Config config =
      lm::model_config("tiny", {.layers = 24, .hidden = 256, .heads = 8, .sequence_length = 128});
  Model replicas(config,
                 [&](const auto& module) {
                   return std::make_unique<DistributedDataParallel>(
                       module, group, DistributedDataParallelKwargs{});
                 }),
      shards(config, [&](const auto& module) {
        ShardingOptions options;
        if (bf16) options.param_dtype = torch::kBFloat16;
        return std::make_unique<ShardedModel>(*module, ShardGroups{.shards = group, .all = group},
                                              c10::kCPU, options,
                                              ShardedPrecision{.output_dtype = torch::kFloat},
                                              /*broadcast_buffers=*/true);
      });
  for (int round = -3; round < rounds; ++round) {
    const torch::Tensor tokens =
        (torch::arange(kBatch * 128) * 7 + round * 31 + runtime.topology().rank)
            .remainder(256)
            .view({kBatch, 128});
    for (Model* model : {&replicas, &shards}) {
      group->barrier()->wait();
      model->step(tokens, /*counts=*/round >= 0);
    }
  }
  if (runtime.topology().rank != 0) return 0;
  std::printf("parameters: %lld; losses: %.6f with replicas, %.6f with shards\n",
              static_cast<long long>(lm::parameter_count(config)), replicas.loss_value,
              shards.loss_value);
  std::printf(
      "| | replicas, ms | shards, ms | ratio | wanted |\n"
      "| --- | ---: | ---: | ---: | --- |\n");
  print("step", replicas.steps, shards.steps, "at most 1.3");
  print("forward and backward pass", replicas.passes, shards.passes, "");
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
