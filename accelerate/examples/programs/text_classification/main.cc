// Text classification with BERT. MODEL is a folder as Hugging Face has it, with config.json and
// model.safetensors, whose encoder is loaded; the classifier begins anew. DATA has the tensors
// input_ids [rows, length] and labels [rows], which its tokenizer makes of texts:
//
//   ids = AutoTokenizer.from_pretrained(MODEL)(texts, padding=True, return_tensors="pt").input_ids
//   safetensors.torch.save_file({"input_ids": ids, "labels": torch.tensor(labels)}, DATA)
//
// HF Accelerate's counterpart: examples/nlp_example.py.
//
//   text_classification --model MODEL --data DATA --epochs 3
//   accelerate launch --num_processes 2 text_classification --model MODEL --data DATA
//   accelerate launch --simulate 2x4:h100 text_classification --model MODEL --data DATA
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/adamw.h>

#include "accelerate/accelerate.h"

namespace {

std::string flag(int argc, char** argv, const std::string& name, std::string value) {
  for (int i = 1; i + 1 < argc; ++i)
    if (argv[i] == name) value = argv[i + 1];
  return value;
}

// The parameters are those of the file, under its names, such as
// "bert.encoder.layer.0.output.dense.weight", and a classifier.
class BertImpl : public torch::nn::Module {
 public:
  BertImpl(const nlohmann::json& config, const accelerate::NamedTensors& weights, int64_t classes)
      : layers_(config.at("num_hidden_layers")), heads_(config.at("num_attention_heads")) {
    for (const auto& [name, tensor] : weights)
      if (name.starts_with("bert.") && tensor.is_floating_point())
        add(name, tensor.to(torch::kFloat).clone());
    add("classifier.weight",
        torch::randn({classes, config.at("hidden_size").get<int64_t>()}) * 0.02);
    add("classifier.bias", torch::zeros({classes}));
  }

  // Tokens [rows, length], of which 0 is padding, to scores [rows, classes].
  at::Tensor forward(const at::Tensor& ids) {
    const at::Tensor mask = ids.ne(0).unsqueeze(1).unsqueeze(1);
    const auto embedded = [&](const std::string& kind, const at::Tensor& numbers) {
      return torch::embedding(weights_.at("bert.embeddings." + kind + "_embeddings.weight"),
                              numbers);
    };
    const at::Tensor places = torch::arange(ids.size(1), ids.options());
    at::Tensor x =
        norm("bert.embeddings.LayerNorm", embedded("word", ids) + embedded("position", places) +
                                              embedded("token_type", torch::zeros_like(ids)));
    for (int64_t i = 0; i < layers_; ++i) {
      const auto heads = [&](const std::string& name) {
        const at::Tensor y = linear(layer(i) + "attention.self." + name, x);
        return y.unflatten(2, {heads_, -1}).transpose(1, 2);
      };
      at::Tensor y =
          torch::scaled_dot_product_attention(heads("query"), heads("key"), heads("value"), mask);
      y = linear(layer(i) + "attention.output.dense", y.transpose(1, 2).flatten(2));
      x = norm(layer(i) + "attention.output.LayerNorm", x + y);
      y = linear(layer(i) + "output.dense",
                 torch::gelu(linear(layer(i) + "intermediate.dense", x)));
      x = norm(layer(i) + "output.LayerNorm", x + y);
    }
    return linear("classifier", torch::tanh(linear("bert.pooler.dense", x.select(1, 0))));
  }

 private:
  static std::string layer(int64_t i) { return "bert.encoder.layer." + std::to_string(i) + "."; }
  void add(const std::string& path, const at::Tensor& value) {
    torch::nn::Module* parent = this;
    size_t begin = 0;
    for (size_t dot; (dot = path.find('.', begin)) != std::string::npos; begin = dot + 1) {
      const std::string name = path.substr(begin, dot - begin);
      if (!parent->named_children().contains(name))
        parent->register_module(name, std::make_shared<torch::nn::Module>(name));
      parent = parent->named_children()[name].get();
    }
    weights_[path] = parent->register_parameter(path.substr(begin), value);
  }
  at::Tensor linear(const std::string& path, const at::Tensor& x) const {
    return torch::linear(x, weights_.at(path + ".weight"), weights_.at(path + ".bias"));
  }
  at::Tensor norm(const std::string& path, const at::Tensor& x) const {
    return torch::layer_norm(x, {x.size(-1)}, weights_.at(path + ".weight"),
                             weights_.at(path + ".bias"), 1e-12);
  }

  const int64_t layers_, heads_;
  std::map<std::string, at::Tensor> weights_;
};
TORCH_MODULE(Bert);

int train(int argc, char** argv) {
  const std::string folder = flag(argc, argv, "--model", "model");
  const std::string data = flag(argc, argv, "--data", "data.safetensors");
  const int epochs = std::stoi(flag(argc, argv, "--epochs", "3"));
  const double rate = std::stod(flag(argc, argv, "--learning_rate", "2e-5"));
  accelerate::Accelerator accelerator;
  accelerate::set_seed(42);
  const accelerate::StateDict file = accelerate::load(data);
  TORCH_CHECK_VALUE(file.tensors.size() == 2, data, " is not input_ids and labels");
  const at::Tensor ids = file.tensors[0].second.to(torch::kLong);
  const at::Tensor labels = file.tensors[1].second.to(torch::kLong);
  const int64_t test_rows = ids.size(0) / 5, train_rows = ids.size(0) - test_rows;
  const auto rows = [&](int64_t begin, int64_t count) {
    return accelerate::make_tensor_dataset(ids.narrow(0, begin, count),
                                           labels.narrow(0, begin, count));
  };
  accelerate::DataLoader train_data(rows(0, train_rows), {.batch_size = 16, .shuffle = true});
  accelerate::DataLoader test_data(rows(train_rows, test_rows), {.batch_size = 16});
  std::ifstream config(folder + "/config.json");
  TORCH_CHECK_VALUE(config, "cannot read ", folder, "/config.json");
  Bert net(nlohmann::json::parse(config), accelerate::load(folder + "/model.safetensors").tensors,
           /*classes=*/2);
  torch::optim::AdamW adam(net->parameters(), rate);
  auto [model, optimizer, train_loader, test_loader] =
      accelerator.prepare(net, adam, train_data, test_data);
  for (int epoch = 1; epoch <= epochs; ++epoch) {
    model->train();
    for (auto& [x, y] : train_loader) {
      accelerator.backward(torch::cross_entropy_loss(model(x), y));
      accelerator.clip_grad_norm_(model, 1.0);
      optimizer.step();
      optimizer.zero_grad();
    }
    model->eval();
    const torch::NoGradGuard no_grad;
    accelerate::metrics::F1 f1;
    for (auto& [x, y] : test_loader) {
      const auto [predicted, expected] =
          accelerator.gather_for_metrics(std::pair(model(x).argmax(1), y));
      f1.add(predicted, expected);
    }
    if (accelerator.is_main_process()) accelerator.print("epoch ", epoch, ": f1 ", f1.compute());
  }
  accelerator.save_model(model, "classifier");
  accelerator.end_training();
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return accelerate::run(argc, argv, train); }
