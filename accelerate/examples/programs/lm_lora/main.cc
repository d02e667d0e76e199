// Fine-tunes OPT, whose weights are kept in 4 bits, by adapters of low rank beside the queries and
// values (LoRA). MODEL is Hugging Face's model.safetensors; DATA has the tensor input_ids [rows,
// length] of its tokenizer. HF Accelerate's counterpart: its guide to quantization, and PEFT.
//
//   lm_lora --model MODEL --heads 12 --data DATA --max_steps 100
//   accelerate launch --simulate 2x4:h100 lm_lora --model MODEL --heads 12 --data DATA
#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include "accelerate/accelerate.h"

namespace {

std::string flag(int argc, char** argv, const std::string& name, std::string value) {
  for (int i = 1; i + 1 < argc; ++i)
    if (argv[i] == name) value = argv[i + 1];
  return value;
}

// The weights are those of the file. Matrices of layers are modules, so that they are quantised.
class OptImpl : public torch::nn::Module {
 public:
  OptImpl(const accelerate::NamedTensors& weights, int64_t heads) : heads_(heads) {
    for (const auto& [path, tensor] : weights) {
      if (!path.starts_with("model.decoder.")) continue;
      const std::string name = path.substr(std::string("model.decoder.").size());
      std::string flat = name;  // what is registered has no dots in its name
      std::replace(flat.begin(), flat.end(), '.', '_');
      const at::Tensor values = tensor.to(torch::kFloat).clone();
      const std::string layer = name.substr(0, name.rfind(".weight"));
      if (layer.ends_with("_proj") || layer.ends_with("fc1") || layer.ends_with("fc2")) {
        torch::nn::LinearOptions options(values.size(1), values.size(0));
        const auto linear = register_module(flat, torch::nn::Linear(options.bias(false)));
        linear->weight.set_data(values);
        linears_.emplace(layer, linear);
      } else {
        weights_[name] = register_parameter(flat, values);
      }
    }
  }
  // Freezes all other parameters.
  accelerate::NamedTensors add_adapters(int64_t rank, c10::Device device) {
    for (at::Tensor& each : parameters()) each.set_requires_grad(false);
    accelerate::NamedTensors added;
    const auto floats = torch::TensorOptions(device).dtype(torch::kFloat);
    for (auto& [layer, linear] : linears_) {
      if (!layer.ends_with("q_proj") && !layer.ends_with("v_proj")) continue;
      const std::string name = "lora" + std::to_string(added.size());
      auto& [down, up] = adapters_[layer];
      down = register_parameter(name + "_down",
                                torch::randn({rank, linear->options.in_features()}, floats) / rank);
      up = register_parameter(name + "_up",
                              torch::zeros({linear->options.out_features(), rank}, floats));
      added.emplace_back(layer + ".lora_A.weight", down);
      added.emplace_back(layer + ".lora_B.weight", up);
    }
    return added;
  }
  // Tokens [rows, length] to logits [rows, length, vocabulary].
  at::Tensor forward(const at::Tensor& tokens) {
    at::Tensor x = torch::embedding(weights_.at("embed_tokens.weight"), tokens) +
                   weights_.at("embed_positions.weight").narrow(0, 2, tokens.size(1));
    for (int64_t i = 0; linears_.contains("layers." + std::to_string(i) + ".fc1"); ++i) {
      const std::string layer = "layers." + std::to_string(i) + ".";
      const at::Tensor y = norm(layer + "self_attn_layer_norm", x);
      const auto heads = [&](const std::string& name) {
        return linear(layer + "self_attn." + name, y).unflatten(2, {heads_, -1}).transpose(1, 2);
      };
      const at::Tensor attended = torch::scaled_dot_product_attention(
          heads("q_proj"), heads("k_proj"), heads("v_proj"), /*attn_mask=*/{}, /*dropout_p=*/0,
          /*is_causal=*/true);
      x = x + linear(layer + "self_attn.out_proj", attended.transpose(1, 2).flatten(2));
      const at::Tensor z = linear(layer + "fc1", norm(layer + "final_layer_norm", x));
      x = x + linear(layer + "fc2", torch::relu(z));
    }
    return torch::linear(norm("final_layer_norm", x), weights_.at("embed_tokens.weight"));
  }

 private:
  at::Tensor norm(const std::string& name, const at::Tensor& x) const {
    const at::Tensor &scale = weights_.at(name + ".weight"), &bias = weights_.at(name + ".bias");
    return torch::layer_norm(x, {x.size(-1)}, scale, bias);
  }
  at::Tensor linear(const std::string& name, const at::Tensor& x) {
    const at::Tensor y = linears_.at(name)(x) + weights_.at(name + ".bias");
    if (!adapters_.contains(name)) return y;
    const auto& [down, up] = adapters_.at(name);
    return y + torch::linear(torch::linear(x, down.to(x.scalar_type())), up.to(x.scalar_type()));
  }

  const int64_t heads_;
  std::map<std::string, torch::nn::Linear> linears_;
  std::map<std::string, at::Tensor> weights_;
  std::map<std::string, std::pair<at::Tensor, at::Tensor>> adapters_;
};
TORCH_MODULE(Opt);

int train(int argc, char** argv) {
  const int64_t heads = std::stoll(flag(argc, argv, "--heads", "12"));
  const int64_t max_steps = std::stoll(flag(argc, argv, "--max_steps", "100"));
  accelerate::Accelerator accelerator;
  accelerate::set_seed(42);
  Opt net(accelerate::load(flag(argc, argv, "--model", "model.safetensors")).tensors, heads);
  auto quantized =
      accelerate::load_and_quantize_model(net, {.load_in_4bit = true,
                                                .bnb_4bit_quant_type = "nf4",
                                                .bnb_4bit_compute_dtype = "bf16",
                                                .skip_modules = std::vector<std::string>()});
  const accelerate::NamedTensors adapters = net->add_adapters(/*rank=*/8, accelerator.device());
  std::vector<at::Tensor> trained;
  for (const auto& [name, tensor] : adapters) trained.push_back(tensor);
  torch::optim::AdamW adam(trained, 1e-3);
  const auto file = accelerate::load(flag(argc, argv, "--data", "tokens.safetensors"));
  accelerate::DataLoader data(accelerate::make_tensor_dataset(file.tensors.at(0).second),
                              {.batch_size = 8, .shuffle = true});
  auto [model, optimizer, loader] = accelerator.prepare(quantized, adam, data);
  const auto losses_of = [](auto& prepared, const at::Tensor& batch) {
    const at::Tensor tokens = batch.to(torch::kLong);
    return accelerate::metrics::token_losses(prepared(tokens.slice(1, 0, -1)), tokens.slice(1, 1));
  };
  for (int64_t step = 0; step < max_steps;) {
    for (auto& [batch] : loader) {
      const auto [sums, tokens] = losses_of(model, batch);
      accelerator.backward(sums.sum() / tokens.sum());
      optimizer.step();
      optimizer.zero_grad();
      if (++step == max_steps) break;
    }
  }
  const torch::NoGradGuard no_grad;
  accelerate::metrics::Perplexity perplexity;
  for (auto& [batch] : loader) {
    const auto [sums, tokens] = accelerator.gather_for_metrics(losses_of(model, batch));
    perplexity.add(sums, tokens);
  }
  accelerator.save(adapters, "adapters.safetensors");
  if (accelerator.is_main_process())
    accelerator.print(adapters.size(), " adapters, perplexity ", perplexity.compute());
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return accelerate::run(argc, argv, train); }
