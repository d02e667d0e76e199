// A training step of the language model whose layers two ranks divide. Two Gloo processes of one
// thread each train it with SGD.
//
//   tensor_step_benchmark [ROUNDS [gpt] [sequence] [loss] [large]]
//
// The words are for GPT's blocks in place of Llama's, for sequence shards, for a parallel loss, and
// for 24 blocks with 256 features in place of the tiny model. torch_step.py does the same by
// PyTorch, from the same weights on the same text, so that the last loss is the same;
// ci/tensor_step.sh runs both in turn.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/examples/lm/config.h"
#include "accelerate/examples/lm/model.h"
#include "integration_tests/tensor/formula_model.h"
#include "integration_tests/watch/processes.h"

namespace accelerate {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kRows = 4;
constexpr int kWarmUp = 3;

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

int measure(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 15;
  const auto has_word = [&](const char* word) {
    return std::any_of(argv + std::min(argc, 2), argv + argc,
                       [&](const char* each) { return std::string(each) == word; });
  };
  const PlanModes modes = {.sequence_shards = has_word("sequence"),
                           .parallel_loss = has_word("loss")};
  lm::Config sizes = {.blocks = has_word("gpt") ? lm::Blocks::kGpt : lm::Blocks::kLlama};
  if (has_word("large")) {
    sizes.layers = 24;
    sizes.hidden = 256;
    sizes.heads = 8;
  }
  const lm::Config config = lm::model_config("tiny", sizes);
  torch::set_num_threads(1);
  AcceleratorOptions options{.parallelism_config = ParallelismConfig({.tp_size = 2}),
                             .kwargs_handlers = {InitProcessGroupKwargs{.backend = "gloo"}}};
  with_modes(modes, config)(options);
  Accelerator accelerator(options);
  lm::Lm net(config);
  fill_by_formula(*net);
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  std::vector<double> steps, passes;
  double last_loss = 0;
  for (int round = -kWarmUp; round < rounds; ++round) {
    const auto [inputs, labels] = formula_batch(round + kWarmUp, kRows, config.sequence_length);
    accelerator.wait_for_everyone();
    const Clock::time_point start = Clock::now();
    const at::Tensor logits = model(inputs).flatten(0, 1), targets = labels.flatten();
    const at::Tensor loss = modes.parallel_loss ? parallel_cross_entropy(model, logits, targets)
                                                : torch::cross_entropy_loss(logits, targets);
    accelerator.backward(loss);
    if (round >= 0) passes.push_back(milliseconds_since(start));
    optimizer.step();
    optimizer.zero_grad();
    if (round >= 0) steps.push_back(milliseconds_since(start));
    last_loss = loss.item<double>();
  }
  if (!accelerator.is_main_process()) return 0;
  std::printf("parameters: %lld; last loss: %.6f\n| | ms |\n| --- | ---: |\n",
              static_cast<long long>(lm::parameter_count(config)), last_loss);
  std::printf("| step | %.2f |\n| forward and backward pass | %.2f |\n", median(steps),
              median(passes));
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
