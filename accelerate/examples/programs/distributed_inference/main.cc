// Distributed inference: each rank answers its share of a list of prompts, and rank 0 writes all
// answers. MODEL is a folder as Hugging Face has it for OPT, with config.json and
// model.safetensors; PROMPTS is a list of lists of tokens, which its tokenizer makes of texts and
// reads as texts: json.dump(tokenizer(texts).input_ids, open(PROMPTS, "w")).
// HF Accelerate's counterpart: examples/inference/distributed/phi2.py.
//
//   distributed_inference --model opt-125m --prompts prompts.json --new_tokens 20
//   accelerate launch --num_processes 2 distributed_inference --model opt-125m
//   accelerate launch --simulate 2x4:h100 distributed_inference --model opt-125m
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <torch/types.h>
#include <torch/utils.h>

#include "accelerate/accelerate.h"

namespace {

std::string flag(int argc, char** argv, const std::string& name, std::string value) {
  for (int i = 1; i + 1 < argc; ++i)
    if (argv[i] == name) value = argv[i + 1];
  return value;
}

nlohmann::json read_json(const std::string& path) {
  std::ifstream file(path);
  TORCH_CHECK_VALUE(file, "cannot read ", path);
  return nlohmann::json::parse(file);
}

// The weights are those of the file, by its names.
class Opt {
 public:
  Opt(const nlohmann::json& config, const accelerate::NamedTensors& weights, c10::Device device)
      : layers_(config.at("num_hidden_layers")), heads_(config.at("num_attention_heads")) {
    for (const auto& [name, tensor] : weights) weights_[name] = tensor.to(device, torch::kFloat);
  }

  // Tokens [rows, length] to logits [rows, length, vocabulary].
  at::Tensor forward(const at::Tensor& tokens) {
    at::Tensor x = torch::embedding(weight("embed_tokens.weight"), tokens) +
                   weight("embed_positions.weight").narrow(0, 2, tokens.size(1));
    for (int64_t i = 0; i < layers_; ++i) {
      const std::string layer = "layers." + std::to_string(i) + ".";
      const at::Tensor y = norm(layer + "self_attn_layer_norm", x);
      const auto heads = [&](const std::string& name) {
        const at::Tensor z = linear(layer + "self_attn." + name, y);
        return z.unflatten(2, {heads_, -1}).transpose(1, 2);
      };
      const at::Tensor attended = torch::scaled_dot_product_attention(
          heads("q_proj"), heads("k_proj"), heads("v_proj"), /*attn_mask=*/{}, /*dropout_p=*/0,
          /*is_causal=*/true);
      x = x + linear(layer + "self_attn.out_proj", attended.transpose(1, 2).flatten(2));
      const at::Tensor inner = linear(layer + "fc1", norm(layer + "final_layer_norm", x));
      x = x + linear(layer + "fc2", torch::relu(inner));
    }
    return torch::linear(norm("final_layer_norm", x), weight("embed_tokens.weight"));
  }

 private:
  const at::Tensor& weight(const std::string& name) const {
    return weights_.at("model.decoder." + name);
  }
  at::Tensor norm(const std::string& name, const at::Tensor& x) const {
    return torch::layer_norm(x, {x.size(-1)}, weight(name + ".weight"), weight(name + ".bias"));
  }
  at::Tensor linear(const std::string& name, const at::Tensor& x) const {
    return torch::linear(x, weight(name + ".weight"), weight(name + ".bias"));
  }

  const int64_t layers_, heads_;
  std::map<std::string, at::Tensor> weights_;
};

using Tokens = std::vector<int64_t>;

// The likeliest tokens after the prompt, without a cache of keys and values.
Tokens answer(Opt& model, const Tokens& prompt, int64_t new_tokens, c10::Device device) {
  at::Tensor tokens = torch::tensor(prompt).unsqueeze(0).to(device);
  for (int64_t i = 0; i < new_tokens; ++i) {
    const at::Tensor next = model.forward(tokens).select(1, -1).argmax(-1, /*keepdim=*/true);
    tokens = torch::cat({tokens, next}, 1);
  }
  const at::Tensor values = tokens[0].cpu();
  return {values.data_ptr<int64_t>(), values.data_ptr<int64_t>() + values.numel()};
}

int infer(int argc, char** argv) {
  const std::string folder = flag(argc, argv, "--model", "opt-125m");
  const std::string output = flag(argc, argv, "--output", "answers.json");
  const int64_t new_tokens = std::stoll(flag(argc, argv, "--new_tokens", "20"));
  accelerate::Accelerator accelerator;
  const torch::NoGradGuard no_grad;
  const auto prompts =
      read_json(flag(argc, argv, "--prompts", "prompts.json")).get<std::vector<Tokens>>();
  Opt model(read_json(folder + "/config.json"),
            accelerate::load(folder + "/model.safetensors").tensors, accelerator.device());

  // Neighbours in the list; some ranks have one more than others, or none.
  const std::vector<Tokens> own = accelerator.split_between_processes(prompts);
  std::vector<Tokens> answers;
  accelerate::ProgressBar bar(accelerator.runtime(), {.total = static_cast<int64_t>(own.size()),
                                                      .description = "prompts of rank 0"});
  for (const Tokens& prompt : own) {
    answers.push_back(answer(model, prompt, new_tokens, accelerator.device()));
    bar.advance();
  }
  bar.close();

  // In the order of the ranks, which is that of the list.
  answers = accelerate::gather_object(std::move(answers));
  if (accelerator.is_main_process()) {
    std::ofstream(output) << nlohmann::json(answers) << "\n";
    accelerator.print(answers.size(), " answers to ", prompts.size(), " prompts of ",
                      accelerator.num_processes(), " ranks: ", output);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return accelerate::run(argc, argv, infer); }
