// Loads a language model with its weights in 8 or 4 bits, and compares it with the same one in
// bf16; trains adapters beside the quantised weights. One program for one process, several
// processes and a simulated cluster:
//
//   quantization --load_in_4bit --bnb_4bit_quant_type nf4 --bnb_4bit_use_double_quant
//   quantization --load_in_8bit --train_adapters 50
//   accelerate launch --simulate 1x1:h100 quantization --load_in_8bit --device_map
//       '{"": 0, "blocks.2": "cpu", "blocks.3": "disk"}'
//
// accelerate/docs/quantization.md says what the options do.
#include <stdexcept>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "accelerate/examples/by_feature/quantization/comparison.h"
#include "accelerate/examples/common/program.h"
#include "accelerate/process/run.h"

namespace {

int compare(int argc, char** argv) {
  quantization::Options options;
  lm::Options& training = options.training;
  accelerate::BnbQuantizationConfig& config = options.config;
  training.data = examples::find_data(argv[0], "accelerate/examples/lm/kjv.txt");
  training.batch_size = 8;
  training.learning_rate = 3e-3;
  training.evaluation_sequences = 0;
  training.checkpointing_steps = 1'000'000;
  training.output_dir = "quantization_out";
  std::string blocks = "llama", model = "tiny";
  std::string compute_dtype = "bf16", torch_dtype = "bf16";
  std::vector<std::string> skip_modules, keep_in_fp32_modules;
  lm::Config sizes;
  CLI::App app("Compares a language model with its weights in 8 or 4 bits to one in bf16");
  auto* bits = app.add_option_group("bits");
  bits->require_option(1);
  bits->add_flag("--load_in_8bit", config.load_in_8bit);
  bits->add_flag("--load_in_4bit", config.load_in_4bit);
  app.add_option("--llm_int8_threshold", config.llm_int8_threshold,
                 "larger inputs are multiplied in floating point; 0: none")
      ->capture_default_str();
  app.add_option("--bnb_4bit_quant_type", config.bnb_4bit_quant_type)
      ->capture_default_str()
      ->check(CLI::IsMember({"fp4", "nf4"}));
  app.add_flag("--bnb_4bit_use_double_quant", config.bnb_4bit_use_double_quant,
               "quantise the scales as well");
  app.add_option("--bnb_4bit_compute_dtype", compute_dtype)
      ->capture_default_str()
      ->check(CLI::IsMember({"fp32", "fp16", "bf16"}));
  app.add_option("--torch_dtype", torch_dtype, "of what is not quantised, and of the other model")
      ->capture_default_str()
      ->check(CLI::IsMember({"fp32", "fp16", "bf16"}));
  app.add_option("--skip_modules", skip_modules, "default: the last one")->delimiter(',');
  app.add_option("--keep_in_fp32_modules", keep_in_fp32_modules)->delimiter(',');
  app.add_flag("!--no_comparison", options.compares,
               "load the quantised model alone, also from a quantised checkpoint");
  app.add_option("--device_map", options.device_map,
                 "auto, balanced, balanced_low_0, sequential, or a map as JSON; default: the "
                 "rank's device");
  app.add_option("--max_memory", options.max_memory,
                 "limits as JSON, such as {\"0\": \"10GiB\", \"cpu\": \"30GiB\"}; default: what is "
                 "free");
  app.add_option("--offload_folder", options.offload_folder, "for what is put on the disk")
      ->capture_default_str();
  app.add_option("--checkpoint", options.checkpoint,
                 "a folder, a file or an index; default: the model is trained first");
  app.add_option("--data", training.data, "a text")->capture_default_str();
  app.add_option("--blocks", blocks)->capture_default_str()->check(CLI::IsMember({"gpt", "llama"}));
  app.add_option("--model", model, "sizes by the number of parameters")
      ->capture_default_str()
      ->check(CLI::IsMember(lm::model_names()));
  app.add_option("--layers", sizes.layers, "blocks, in place of the model's");
  app.add_option("--sequence_length", sizes.sequence_length, "tokens, in place of the model's");
  app.add_option("--max_steps", training.max_steps, "of the training without --checkpoint")
      ->capture_default_str()
      ->check(examples::at_least_one());
  app.add_option("--output_dir", training.output_dir, "for the weights of that training")
      ->capture_default_str();
  app.add_option("--seed", training.seed)->capture_default_str();
  app.add_option("--evaluation_sequences", options.evaluation_sequences,
                 "of the text's last tenth, over all ranks")
      ->capture_default_str()
      ->check(examples::at_least_one());
  app.add_option("--prompt", options.prompt, "what the generated text follows")
      ->capture_default_str()
      ->check([](const std::string& text) { return text.empty() ? "it is empty" : ""; });
  app.add_option("--generate", options.generate, "so many bytes, each the likeliest next one")
      ->capture_default_str()
      ->check(examples::at_least_one());
  app.add_option("--save", options.save, "a folder for the quantised model");
  app.add_option("--train_adapters", options.train_adapters, "steps")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  app.add_option("--adapter_rank", options.adapter_rank)
      ->capture_default_str()
      ->check(examples::at_least_one());
  app.add_option("--learning_rate", options.adapter_learning_rate, "of the adapters")
      ->capture_default_str();
  app.final_callback([&] {
    sizes.blocks = blocks == "gpt" ? lm::Blocks::kGpt : lm::Blocks::kLlama;
    config.bnb_4bit_compute_dtype = compute_dtype;
    config.torch_dtype = torch_dtype;
    if (!skip_modules.empty()) config.skip_modules = skip_modules;
    if (!keep_in_fp32_modules.empty()) config.keep_in_fp32_modules = keep_in_fp32_modules;
    try {
      training.config = lm::model_config(model, sizes);
    } catch (const std::invalid_argument& error) {
      throw CLI::ValidationError(error.what());
    }
  });
  if (const auto status = examples::parse(app, argc, argv)) return *status;
  quantization::compare(options);
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return accelerate::run(argc, argv, compare); }
