#include "integration_tests/shapes/programs.h"

#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "accelerate/accelerate.h"
#include "accelerate/config/deepspeed_plugin.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/examples/lm/training.h"
#include "accelerate/operators/checkpoint.h"
#include "accelerate/operators/default_device.h"
#include "accelerate/optim/foreach_optimizers.h"
#include "accelerate/optim/fused_optimizers.h"

namespace accelerate {
namespace {

using simulator::Rank;
using torch::Tensor;
namespace nn = torch::nn;

constexpr int kSteps = 3;
constexpr int64_t kBatch = 24;
constexpr int64_t kClasses = 10;

// ---- Models: what they take, and their loss.

struct Model : nn::Module {
  virtual Tensor input() const = 0;  ///< on the host
  virtual Tensor forward(Tensor x) = 0;
};
using Models = std::shared_ptr<Model> (*)();

Tensor loss_of(const Tensor& output) {
  const auto classes = torch::TensorOptions(output.device()).dtype(torch::kLong);
  return nn::functional::cross_entropy(output, torch::zeros({output.size(0)}, classes));
}

struct Mlp : Model {
  Mlp()
      : hidden(register_module("hidden", nn::Linear(48, 96))),
        middle(register_module("middle", nn::Linear(96, 96))),
        output(register_module("output", nn::Linear(96, kClasses))) {}
  Tensor input() const override { return torch::ones({kBatch, 48}); }
  Tensor forward(Tensor x) override { return output(torch::gelu(middle(torch::relu(hidden(x))))); }
  nn::Linear hidden, middle, output;
};

struct ConvNet : Model {
  ConvNet()
      : conv1(register_module("conv1", nn::Conv2d(nn::Conv2dOptions(3, 16, 3).padding(1)))),
        norm1(register_module("norm1", nn::BatchNorm2d(16))),
        conv2(register_module("conv2", nn::Conv2d(nn::Conv2dOptions(16, 24, 3).stride(2)))),
        norm2(register_module("norm2", nn::BatchNorm2d(24))),
        output(register_module("output", nn::Linear(24 * 3 * 3, kClasses))) {}
  Tensor input() const override { return torch::ones({kBatch, 3, 16, 16}); }
  Tensor forward(Tensor x) override {
    x = torch::max_pool2d(torch::relu(norm1(conv1(x))), 2);
    x = torch::relu(norm2(conv2(x)));
    return output(torch::adaptive_avg_pool2d(x, {3, 3}).flatten(1));
  }
  nn::Conv2d conv1;
  nn::BatchNorm2d norm1;
  nn::Conv2d conv2;
  nn::BatchNorm2d norm2;
  nn::Linear output;
};

struct Transformer : Model {
  Transformer()
      : embedding(register_module("embedding", nn::Embedding(60, 32))),
        encoder(register_module(
            "encoder",
            nn::TransformerEncoder(nn::TransformerEncoderOptions(
                nn::TransformerEncoderLayerOptions(32, 4).dim_feedforward(64).dropout(0.1), 2)))),
        output(register_module("output", nn::Linear(32, kClasses))) {}
  Tensor input() const override { return torch::zeros({kBatch, 20}, torch::kLong); }
  Tensor forward(Tensor x) override {
    return output(encoder(embedding(x).transpose(0, 1)).mean(0));
  }
  nn::Embedding embedding;
  nn::TransformerEncoder encoder;
  nn::Linear output;
};

// Two layers over a sequence, in both directions; the state at its end goes into the loss as well.
template <typename Layers, typename Options>
struct Recurrent : Model {
  Recurrent()
      : embedding(register_module("embedding", nn::Embedding(60, 32))),
        layers(register_module(
            "layers", Layers(Options(32, 20).num_layers(2).bidirectional(true).batch_first(true)))),
        output(register_module("output", nn::Linear(60, kClasses))) {}
  Tensor input() const override { return torch::zeros({kBatch, 20}, torch::kLong); }
  Tensor forward(Tensor x) override {
    const auto [sequence, state] = layers(embedding(x));
    return output(torch::cat({sequence.mean(1), last(state)[3]}, 1));
  }
  static const Tensor& last(const Tensor& state) { return state; }
  static const Tensor& last(const std::tuple<Tensor, Tensor>& states) {
    return std::get<1>(states);
  }
  nn::Embedding embedding;
  Layers layers;
  nn::Linear output;
};
using Lstm = Recurrent<nn::LSTM, nn::LSTMOptions>;
using Gru = Recurrent<nn::GRU, nn::GRUOptions>;
using Rnn = Recurrent<nn::RNN, nn::RNNOptions>;

// A cell at each place of a sequence that needs no gradient.
struct Cells : Model {
  Cells()
      : cell(register_module("cell", nn::LSTMCell(24, 40))),
        output(register_module("output", nn::Linear(40, kClasses))) {}
  Tensor input() const override { return torch::ones({6, kBatch, 24}); }
  Tensor forward(Tensor x) override {
    std::tuple<Tensor, Tensor> states = cell(x[0]);
    for (int64_t i = 1; i < x.size(0); ++i) states = cell(x[i], states);
    return output(std::get<0>(states));
  }
  nn::LSTMCell cell;
  nn::Linear output;
};

struct CheckpointedMlp : Model {
  CheckpointedMlp() {
    for (int i = 0; i < 4; ++i) {
      blocks.push_back(register_module(
          "block" + std::to_string(i),
          nn::Sequential(nn::Linear(48, 96), nn::GELU(), nn::Dropout(0.2), nn::Linear(96, 48))));
    }
  }
  Tensor input() const override { return torch::ones({kBatch, 48}); }
  Tensor forward(Tensor x) override {
    for (nn::Sequential& block : blocks) {
      x = checkpoint([block](Tensor x) mutable { return block->forward(x); }, x);
    }
    return x;
  }
  std::vector<nn::Sequential> blocks;
};

// One layer is never used.
struct PartlyUsed : Mlp {
  PartlyUsed() : spare(register_module("spare", nn::Linear(48, 48))) {}
  nn::Linear spare;
};

template <typename M>
std::shared_ptr<Model> made() {
  return std::make_shared<M>();
}

// ---- Optimizers.

using Parameters = std::vector<Tensor>;
using Optimizers = std::shared_ptr<torch::optim::Optimizer> (*)(const Parameters&);

template <typename Optimizer>
std::shared_ptr<torch::optim::Optimizer> plain(const Parameters& parameters) {
  return std::make_shared<Optimizer>(parameters, 1e-3);
}

template <typename Sgd>
std::shared_ptr<torch::optim::Optimizer> momentum(const Parameters& parameters) {
  return std::make_shared<Sgd>(parameters, torch::optim::SGDOptions(0.1).momentum(0.9));
}

// ---- Training.

struct Training {
  Models model = &made<Mlp>;
  Optimizers optimizer = &plain<torch::optim::Adam>;
  AcceleratorOptions options = {};
  std::optional<double> max_norm = std::nullopt;
  std::optional<double> max_value = std::nullopt;
  std::optional<int64_t> local_steps = std::nullopt;
  bool built_on_device = false;
};

std::shared_ptr<Model> built(const Training& training, c10::Device device) {
  if (!training.built_on_device) return training.model();
  const DefaultDeviceScope scope(device);
  return training.model();
}

void train(const Training& training, const Note& note) {
  Accelerator accelerator(training.options);
  set_seed(5);
  const std::shared_ptr<Model> net = built(training, accelerator.device());
  auto [model, optimizer] = accelerator.prepare(net, training.optimizer(net->parameters()));
  note("prepared");
  std::optional<LocalSGD> local;
  if (training.local_steps) local.emplace(accelerator, model, *training.local_steps);
  const int64_t micro_steps = accelerator.gradient_accumulation_steps();
  for (int64_t step = 0; step < kSteps * micro_steps; ++step) {
    auto scope = accelerator.accumulate(model);
    const Tensor x = net->input().to(accelerator.device());
    const Tensor loss = loss_of(model(x));
    note("forward");
    accelerator.backward(loss);
    note("backward");
    if (training.max_norm) accelerator.clip_grad_norm_(model, *training.max_norm);
    if (training.max_value) accelerator.clip_grad_value_(model, *training.max_value);
    optimizer.step();
    optimizer.zero_grad();
    if (local) local->step();
    note("step");
  }
}

Program training(std::string name, Training setup) {
  return {std::move(name),
          [setup = std::move(setup)](Rank&, const Note& note) { train(setup, note); }};
}

// Among all ranks.
Program sharded_training(std::string name, Training setup) {
  return {std::move(name), [setup = std::move(setup)](Rank& rank, const Note& note) {
            Training own = setup;
            own.options.parallelism_config =
                ParallelismConfig({.dp_shard_size = rank.runtime().topology().world_size});
            train(own, note);
          }};
}

Program zero_training(int stage, const std::string& offload = "none") {
  const std::string name =
      "zero_" + std::to_string(stage) + (offload == "none" ? "" : "_offload_" + offload);
  return training(
      name,
      {.model = &made<Transformer>,
       .options = {.deepspeed_plugin = DeepSpeedPlugin{
                       .hf_ds_config = nlohmann::ordered_json{
                           {"train_micro_batch_size_per_gpu", 8},
                           {"gradient_clipping", 1.0},
                           {"zero_optimization",
                            {{"stage", stage}, {"offload_optimizer", {{"device", offload}}}}}}}}});
}

AcceleratorOptions with(PrecisionType precision) { return {.mixed_precision = precision}; }
AcceleratorOptions with(DistributedDataParallelKwargs ddp) {
  return {.kwargs_handlers = {std::move(ddp)}};
}

// Batches come from a prepared loader, and what an evaluation gathers stays on the device.
void evaluate(Rank&, const Note& note) {
  Accelerator accelerator;
  set_seed(5);
  auto net = std::make_shared<Mlp>();
  const Tensor labels = torch::zeros({131}, torch::kLong);
  DataLoader data(make_tensor_dataset(torch::ones({131, 48}), labels), {.batch_size = 16});
  auto [model, loader] = accelerator.prepare(net, data);
  const torch::NoGradGuard no_grad;
  model->eval();
  std::vector<Tensor> correct;
  for (auto& [inputs, targets] : loader) {
    correct.push_back(accelerator.gather_for_metrics(model(inputs).argmax(1).eq(targets)));
    note("batch of " + std::to_string(correct.back().size(0)));
  }
  const Tensor right = torch::cat(correct).sum();
  note("sum of " + std::to_string(right.numel()));
}

lm::Options small_lm(lm::Blocks blocks, const std::string& precision) {
  return {
      .data = "accelerate/examples/lm/kjv.txt",
      .config = lm::model_config(
          "tiny", {.blocks = blocks, .layers = 2, .hidden = 32, .heads = 2, .sequence_length = 32}),
      .mixed_precision = precision,
      .warmup_steps = 0,
      .max_steps = kSteps,
      .log_every = 0,
      .evaluation_sequences = 0};
}

Program language_model(std::string name, lm::Options options) {
  return {std::move(name),
          [options = std::move(options)](Rank&, const Note&) { lm::train(options); }};
}

Program gpt_that_reads_its_loss() {
  lm::Options options = small_lm(lm::Blocks::kGpt, "bf16");
  options.activation_checkpointing = true;
  options.log_every = 1;
  options.evaluation_sequences = 24;
  return language_model("gpt_bf16_reads_its_loss", options);
}

Program gpt_fp16() {
  lm::Options options = small_lm(lm::Blocks::kGpt, "fp16");
  options.activation_checkpointing = true;
  options.optimizer = "sgd";
  return language_model("gpt_fp16", options);
}

}  // namespace

const std::vector<Program>& programs() {
  static const auto& made_once = *new std::vector<Program>{
      training("mlp", {}),
      training("convolutions",
               {.model = &made<ConvNet>, .optimizer = &momentum<torch::optim::SGD>}),
      training("transformer", {.model = &made<Transformer>}),
      training("built_on_the_device", {.model = &made<Transformer>, .built_on_device = true}),
      training("lstm", {.model = &made<Lstm>}),
      training("gru", {.model = &made<Gru>}),
      training("rnn", {.model = &made<Rnn>}),
      training("lstm_cells", {.model = &made<Cells>}),
      training("accumulation", {.options = {.gradient_accumulation_steps = 2}}),
      training("bf16", {.model = &made<Transformer>, .options = with(PrecisionType::kBf16)}),
      training("bf16_convolutions",
               {.model = &made<ConvNet>, .options = with(PrecisionType::kBf16)}),
      training("fp16", {.options = with(PrecisionType::kFp16)}),
      training("fp16_clipping", {.options = with(PrecisionType::kFp16), .max_norm = 1.0}),
      training("clipping", {.max_norm = 1.0, .max_value = 0.5}),
      training("checkpointing", {.model = &made<CheckpointedMlp>}),
      training("checkpointing_bf16",
               {.model = &made<CheckpointedMlp>, .options = with(PrecisionType::kBf16)}),
      training("local_sgd", {.optimizer = &momentum<optim::SGD>, .local_steps = 2}),
      training("fused_sgd", {.optimizer = &momentum<optim::SGD>}),
      training("fused_adam", {.optimizer = &plain<optim::Adam>}),
      training("fused_adamw", {.optimizer = &plain<optim::AdamW>}),
      training("lion", {.optimizer = &plain<optim::Lion>}),
      training("lamb", {.optimizer = &plain<optim::Lamb>}),
      training("gradients_in_buckets",
               {.options = with(DistributedDataParallelKwargs{.bucket_cap_mb = 0.01,
                                                              .gradient_as_bucket_view = true})}),
      training("bf16_hook", {.options = with(DistributedDataParallelKwargs{
                                 .comm_hook = DDPCommunicationHookType::kBf16})}),
      training("unused_parameters",
               {.model = &made<PartlyUsed>,
                .options = with(DistributedDataParallelKwargs{.find_unused_parameters = true})}),
      sharded_training("sharded", {.model = &made<ConvNet>, .max_norm = 1.0}),
      sharded_training("sharded_accumulation", {.options = {.gradient_accumulation_steps = 2}}),
      zero_training(0),
      zero_training(1),
      zero_training(2),
      zero_training(3),
      zero_training(1, "cpu"),
      zero_training(2, "cpu"),
      zero_training(3, "cpu"),
      {"evaluation", &evaluate},
      language_model("gpt", small_lm(lm::Blocks::kGpt, "no")),
      language_model("llama_bf16", small_lm(lm::Blocks::kLlama, "bf16")),
      gpt_that_reads_its_loss(),
      gpt_fp16(),
  };
  return made_once;
}

}  // namespace accelerate
