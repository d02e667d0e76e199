// Trains the example's language model with shards, for ci/torch.sh, which compares each step with
// PyTorch's own FSDP 2 on the same weights and the same text (torch_fsdp.py).
//
//   accelerate launch --num_processes 2 beside_torch --data TEXT --weights FILE [FLAGS]
//
// Writes the weights that it begins with to FILE, and a line for each step: its number, the mean of
// the ranks' losses, and the norm of the gradients before they are clipped to 1.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include <torch/torch.h>
#include <CLI/CLI.hpp>

#include "accelerate/accelerate.h"
#include "accelerate/examples/lm/config.h"
#include "accelerate/examples/lm/model.h"
#include "accelerate/files/safetensors.h"
#include "accelerate/modules/module_state_dict.h"
#include "accelerate/process/run.h"

namespace accelerate {
namespace {

constexpr int64_t kBatch = 4;

// The rank's sequences of one step, [batch, length + 1]: consecutive parts of the text.
at::Tensor batch_of(const std::string& text, int64_t length, int64_t number) {
  const int64_t bytes = kBatch * (length + 1);
  TORCH_CHECK_VALUE((number + 1) * bytes <= static_cast<int64_t>(text.size()),
                    "the text is too short");
  at::Tensor batch = torch::empty({kBatch, length + 1}, at::kByte);
  std::memcpy(batch.data_ptr(), text.data() + number * bytes, bytes);
  return batch.to(at::kLong);
}

template <typename Optimizer>
void train_by(Optimizer stepper, Accelerator& accelerator, lm::Lm net, const std::string& text,
              int64_t length, int64_t steps) {
  auto [model, optimizer] = accelerator.prepare(net, stepper);
  for (int64_t step = 0; step < steps; ++step) {
    const at::Tensor tokens =
        batch_of(text, length, step * accelerator.num_processes() + accelerator.process_index());
    const at::Tensor logits = model(tokens.narrow(1, 0, length));
    const at::Tensor loss =
        torch::cross_entropy_loss(logits.flatten(0, 1), tokens.narrow(1, 1, length).flatten());
    accelerator.backward(loss);
    const at::Tensor norm = accelerator.clip_grad_norm_(model, 1.0);
    optimizer.step();
    optimizer.zero_grad();
    const at::Tensor mean = accelerator.reduce(loss.detach(), Reduction::kMean);
    if (accelerator.is_main_process()) {
      std::printf("%lld %.9g %.9g\n", static_cast<long long>(step + 1), mean.item<double>(),
                  norm.item<double>());
    }
  }
}

struct Flags {
  std::string data, weights, blocks = "gpt", optimizer = "adamw";
  int64_t steps = 10;
};

void train(const Flags& flags) {
  Accelerator accelerator(
      {.parallelism_config = ParallelismConfig(
           {.dp_shard_size = static_cast<int>(Runtime::current().topology().world_size)})});
  absl::StatusOr<std::string> text = read_file(accelerator.runtime().files(), flags.data);
  TORCH_CHECK(text.ok(), text.status().message());
  const lm::Config config = lm::model_config(
      "tiny", {.blocks = flags.blocks == "gpt" ? lm::Blocks::kGpt : lm::Blocks::kLlama});
  torch::manual_seed(1);
  lm::Lm net(config);
  if (accelerator.is_main_process()) {
    const auto written = write_safetensors(accelerator.runtime().files(), flags.weights,
                                           module_state_dict(*net), std::nullopt);
    TORCH_CHECK(written.ok(), written.status().message());
  }
  const std::vector<at::Tensor> parameters = net->parameters();
  if (flags.optimizer == "sgd") {
    train_by(torch::optim::SGD(parameters, torch::optim::SGDOptions(0.1).momentum(0.9)),
             accelerator, net, *text, config.sequence_length, flags.steps);
  } else {
    train_by(torch::optim::AdamW(parameters, torch::optim::AdamWOptions(1e-3)), accelerator, net,
             *text, config.sequence_length, flags.steps);
  }
}

int parse_and_train(int argc, char** argv) {
  Flags flags;
  CLI::App app("Trains the language model with shards");
  app.add_option("--data", flags.data, "a text")->required();
  app.add_option("--weights", flags.weights, "the file for the first weights")->required();
  app.add_option("--blocks", flags.blocks)->check(CLI::IsMember({"gpt", "llama"}));
  app.add_option("--optimizer", flags.optimizer)->check(CLI::IsMember({"adamw", "sgd"}));
  app.add_option("--steps", flags.steps);
  CLI11_PARSE(app, argc, argv);
  train(flags);
  return 0;
}

}  // namespace
}  // namespace accelerate

int main(int argc, char** argv) { return accelerate::run(argc, argv, accelerate::parse_and_train); }
