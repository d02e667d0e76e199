// Trains a language model of GPT's or Llama's blocks on the bytes of a text. One program for one
// process, several processes and a simulated cluster:
//
//   lm
//   accelerate launch --num_processes 2 lm --blocks llama --max_steps 20
//   accelerate launch --simulate 2x4:h100 --mixed_precision bf16 lm --max_steps 5
//
// accelerate/docs/example_programs.md has more.
#include <cstdio>
#include <stdexcept>
#include <string>

#include <CLI/CLI.hpp>

// Without LibTorch, so that this file compiles fast; training.cc has the Accelerator.
#include "accelerate/examples/common/program.h"
#include "accelerate/examples/lm/training.h"
#include "accelerate/process/run.h"

namespace {

// A flag that replaces a size of the model that --model names.
struct SizeFlag {
  const char* name;
  int64_t lm::Config::* field;
  const char* help;
};

constexpr SizeFlag kSizeFlags[] = {
    {"--layers", &lm::Config::layers, "blocks"},
    {"--hidden", &lm::Config::hidden, "the size of a token's vector"},
    {"--heads", &lm::Config::heads, "heads of a block's attention"},
    {"--kv_heads", &lm::Config::kv_heads,
     "heads of keys and values; -1: in the model's proportion to --heads"},
    {"--intermediate", &lm::Config::intermediate,
     "the size inside the perceptron; -1: in the model's proportion to --hidden"},
    {"--sequence_length", &lm::Config::sequence_length, "tokens of a sequence"},
    {"--vocabulary", &lm::Config::vocabulary, "different tokens; bytes need 256"},
    {"--tied_head", &lm::Config::tied_head,
     "1: the head has the token embedding's weights; 0: its own"},
    {"--experts", &lm::Config::experts,
     "experts of each of Llama's blocks, of which each token has some; 0: one perceptron"},
    {"--experts_per_token", &lm::Config::experts_per_token, "of them"},
    {"--expert_intermediate", &lm::Config::expert_intermediate,
     "the size inside an expert; -1: --intermediate divided by --experts_per_token"},
    {"--shared_intermediate", &lm::Config::shared_intermediate,
     "the size inside an expert for all tokens; 0: there is none"},
};

int train(int argc, char** argv) {
  lm::Options options;
  options.data = examples::find_data(argv[0], "accelerate/examples/lm/kjv.txt");
  std::string blocks = "gpt", model = "tiny";
  lm::Config sizes;
  CLI::App app("Trains a language model on the bytes of a text");
  app.add_option("--data", options.data, "a text")->capture_default_str();
  app.add_option("--blocks", blocks)->capture_default_str()->check(CLI::IsMember({"gpt", "llama"}));
  app.add_option("--model", model,
                 "sizes by the number of parameters; those that follow can "
                 "replace them, unless they are -1")
      ->capture_default_str()
      ->check(CLI::IsMember(lm::model_names()));
  for (const SizeFlag& flag : kSizeFlags) {
    app.add_option(flag.name, sizes.*flag.field, flag.help)->capture_default_str();
  }
  app.add_flag("--activation_checkpointing", options.activation_checkpointing,
               "compute a block's results again in the backward pass instead of keeping them");
  app.add_option("--capacity_factor", options.capacity_factor,
                 "how much of the mean an expert takes of its tokens; 0: all")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  app.add_option("--balance_loss", options.balance_loss, "factor of the experts' balance loss")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  app.add_option("--z_loss", options.z_loss, "factor of the routers' z loss")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  app.add_option("--routing", options.routing,
                 "who chooses experts: the router, or a fixed rule, which needs no values")
      ->capture_default_str()
      ->check(CLI::IsMember({"learned", "balanced", "skewed"}));
  app.add_option("--skew", options.skew,
                 "with --routing skewed: how many times the mean number of tokens the first expert "
                 "has")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  app.add_option("--mixed_precision", options.mixed_precision, "default: what the launcher says")
      ->check(CLI::IsMember({"no", "bf16", "fp16", "fp8"}));
  app.add_option("--batch_size", options.batch_size, "sequences of each rank in a micro-step")
      ->capture_default_str()
      ->check(examples::at_least_one());
  app.add_option("--gradient_accumulation_steps", options.gradient_accumulation_steps,
                 "micro-steps of a step; default: what the launcher says")
      ->check(examples::at_least_one());
  app.add_option("--optimizer", options.optimizer)
      ->capture_default_str()
      ->check(CLI::IsMember({"adamw", "sgd"}));
  app.add_option("--learning_rate", options.learning_rate)->capture_default_str();
  app.add_option("--warmup_steps", options.warmup_steps, "in which the learning rate rises from 0")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  app.add_option("--max_steps", options.max_steps, "optimizer steps, over all runs")
      ->capture_default_str()
      ->check(examples::at_least_one());
  app.add_option("--log_every", options.log_every, "steps between two rows; 0: no rows")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  app.add_option("--evaluation_sequences", options.evaluation_sequences,
                 "of the text's last tenth, over all ranks; 0: no evaluation")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  examples::add_run_flags(app, options);
  app.final_callback([&] {
    sizes.blocks = blocks == "gpt" ? lm::Blocks::kGpt : lm::Blocks::kLlama;
    try {
      options.config = lm::model_config(model, sizes);
    } catch (const std::invalid_argument& error) {
      throw CLI::ValidationError(error.what());
    }
  });
  if (const auto status = examples::parse(app, argc, argv)) return *status;

  const lm::Result result = lm::train(options);
  // The evaluation's loss, or else that of the last row.
  char loss[40] = "";
  if (result.evaluation_loss || !result.losses.empty()) {
    std::snprintf(loss, sizeof(loss), ", loss %.4f",
                  result.evaluation_loss ? *result.evaluation_loss : result.losses.back());
  }
  const std::string done = result.is_done_before ? ", nothing left to do" : "";
  examples::print_last_line("lm", done + loss, result);
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return accelerate::run(argc, argv, train); }
