// Training on a simulated device gives the bits that training on the CPU gives: all losses and all
// parameters.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::Rank;
using torch::Tensor;
namespace nn = torch::nn;

constexpr int kSteps = 4;

// One batch and what a model makes of it: a scalar to minimise.
struct Task {
  std::function<std::shared_ptr<nn::Module>()> make_model;
  std::function<std::vector<Tensor>()> make_batch;
  std::function<Tensor(nn::Module&, const std::vector<Tensor>&)> loss;
  std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<Tensor>)> make_optimizer;
};

template <typename Optimizer, typename Options>
auto optimizer(Options options) {
  return [options](std::vector<Tensor> parameters) {
    return std::make_unique<Optimizer>(std::move(parameters), options);
  };
}

struct Outcome {
  std::vector<Tensor> losses;
  std::vector<Tensor> parameters;
};

// Casts to bfloat16 for as long as it lives.
class Autocast {
 public:
  explicit Autocast(c10::DeviceType type) : type_(type) {
    at::autocast::set_autocast_enabled(type_, true);
    at::autocast::set_autocast_dtype(type_, at::kBFloat16);
    at::autocast::increment_nesting();
  }
  ~Autocast() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(type_, false);
  }

 private:
  const c10::DeviceType type_;
};

Outcome train(const Task& task, c10::Device device, bool autocast) {
  torch::manual_seed(3);
  std::shared_ptr<nn::Module> model = task.make_model();
  std::vector<Tensor> batch = task.make_batch();
  model->to(device);
  for (Tensor& tensor : batch) tensor = tensor.to(device);
  auto optimizer = task.make_optimizer(model->parameters());
  torch::manual_seed(4);  // of dropout, on this device
  Outcome outcome;
  for (int step = 0; step < kSteps; ++step) {
    Tensor loss;
    {
      std::unique_ptr<Autocast> scope;
      if (autocast) scope = std::make_unique<Autocast>(device.type());
      loss = task.loss(*model, batch);
    }
    loss.backward();
    optimizer->step();
    optimizer->zero_grad();
    outcome.losses.push_back(loss.detach().cpu());
  }
  for (const Tensor& parameter : model->parameters()) {
    outcome.parameters.push_back(parameter.detach().cpu());
  }
  return outcome;
}

void expect_same_bits(const std::vector<Tensor>& on_cpu, const std::vector<Tensor>& on_device) {
  ASSERT_EQ(on_cpu.size(), on_device.size());
  for (size_t i = 0; i < on_cpu.size(); ++i) {
    EXPECT_TRUE(on_cpu[i].equal(on_device[i]))
        << i << ": " << on_cpu[i].sub(on_device[i]).abs().max();
    EXPECT_TRUE(on_cpu[i].isfinite().all().item<bool>()) << i;
  }
}

void expect_equal_training(const Task& task, const std::string& kind = "h100",
                           bool autocast = false) {
  Cluster cluster("1x1:" + kind);
  cluster.run_on_every_rank([&](Rank& rank) {
    ASSERT_EQ(rank.runtime().device(), c10::Device("sim:0"));
    const Outcome on_cpu = train(task, c10::kCPU, autocast);
    const Outcome on_device = train(task, rank.runtime().device(), autocast);
    expect_same_bits(on_cpu.losses, on_device.losses);
    expect_same_bits(on_cpu.parameters, on_device.parameters);
    EXPECT_FALSE(on_cpu.losses.front().equal(on_cpu.losses.back())) << "nothing was learnt";
  });
}

struct ConvNet : nn::Module {
  ConvNet() { register_module("body", body); }
  nn::Sequential body{nn::Conv2d(nn::Conv2dOptions(3, 8, 3).padding(1)),
                      nn::BatchNorm2d(8),
                      nn::ReLU(),
                      nn::MaxPool2d(2),
                      nn::Conv2d(nn::Conv2dOptions(8, 16, 3).stride(2).groups(2)),
                      nn::GroupNorm(nn::GroupNormOptions(4, 16)),
                      nn::GELU(),
                      nn::AdaptiveAvgPool2d(nn::AdaptiveAvgPool2dOptions({2, 2})),
                      nn::Flatten(),
                      nn::Dropout(0.3),
                      nn::Linear(64, 10)};
};

Task convnet() {
  return {[] { return std::make_shared<ConvNet>(); },
          [] {
            return std::vector<Tensor>{torch::randn({8, 3, 12, 12}),
                                       torch::randint(0, 10, {8}, torch::kLong)};
          },
          [](nn::Module& model, const std::vector<Tensor>& batch) {
            return nn::functional::cross_entropy(
                dynamic_cast<ConvNet&>(model).body->forward(batch[0]), batch[1]);
          },
          optimizer<torch::optim::SGD>(torch::optim::SGDOptions(0.05).momentum(0.9))};
}

struct Transformer : nn::Module {
  Transformer()
      : embedding(register_module("embedding", nn::Embedding(40, 32))),
        encoder(register_module(
            "encoder",
            nn::TransformerEncoder(nn::TransformerEncoderOptions(
                nn::TransformerEncoderLayerOptions(32, 4).dim_feedforward(64).dropout(0.1), 2)))),
        query(register_module("query", nn::Linear(32, 96))),
        output(register_module("output", nn::Linear(32, 40))) {}
  Tensor forward(const Tensor& tokens) {  // [time, batch]
    Tensor x = encoder(embedding(tokens));
    // A causal block on LibTorch's fused attention.
    const auto parts = query(x).transpose(0, 1).unflatten(2, {3, 4, 8}).unbind(2);
    const Tensor attended = at::scaled_dot_product_attention(
        parts[0].transpose(1, 2), parts[1].transpose(1, 2), parts[2].transpose(1, 2), {}, 0.0,
        /*is_causal=*/true);
    return output(x + attended.transpose(1, 2).flatten(2).transpose(0, 1));
  }

  nn::Embedding embedding;
  nn::TransformerEncoder encoder;
  nn::Linear query, output;
};

Task transformer() {
  return {
      [] { return std::make_shared<Transformer>(); },
      [] { return std::vector<Tensor>{torch::randint(0, 40, {13, 4}, torch::kLong)}; },
      [](nn::Module& model, const std::vector<Tensor>& batch) {
        const Tensor logits = dynamic_cast<Transformer&>(model).forward(batch[0].slice(0, 0, 12));
        return nn::functional::cross_entropy(logits.flatten(0, 1), batch[0].slice(0, 1).flatten());
      },
      optimizer<torch::optim::AdamW>(torch::optim::AdamWOptions(1e-2))};
}

template <typename Layer, typename Options>
struct Recurrent : nn::Module {
  explicit Recurrent(Options options)
      : layer(this->register_module("layer", Layer(options))),
        output(this->register_module("output", nn::Linear(2 * 12, 5))) {}
  Tensor forward(const Tensor& x) { return output(std::get<0>(layer(x)).select(1, -1)); }

  Layer layer;
  nn::Linear output;
};

template <typename Layer, typename Options>
Task recurrent() {
  using Net = Recurrent<Layer, Options>;
  return {[] {
            return std::make_shared<Net>(
                Options(7, 12).num_layers(2).bidirectional(true).batch_first(true).dropout(0.2));
          },
          [] {
            return std::vector<Tensor>{torch::randn({6, 9, 7}),
                                       torch::randint(0, 5, {6}, torch::kLong)};
          },
          [](nn::Module& model, const std::vector<Tensor>& batch) {
            return nn::functional::cross_entropy(dynamic_cast<Net&>(model).forward(batch[0]),
                                                 batch[1]);
          },
          optimizer<torch::optim::Adam>(torch::optim::AdamOptions(1e-2))};
}

struct Bag : nn::Module {
  Bag()
      : table(register_module("table", nn::Embedding(nn::EmbeddingOptions(50, 6).sparse(true)))),
        output(register_module("output", nn::Linear(6, 3))) {}
  nn::Embedding table;
  nn::Linear output;
};

Task sparse_embedding() {
  return {[] { return std::make_shared<Bag>(); },
          [] {
            return std::vector<Tensor>{torch::randint(0, 50, {8, 5}, torch::kLong),
                                       torch::randint(0, 3, {8}, torch::kLong)};
          },
          [](nn::Module& model, const std::vector<Tensor>& batch) {
            auto& bag = dynamic_cast<Bag&>(model);
            return nn::functional::cross_entropy(bag.output(bag.table(batch[0]).mean(1)), batch[1]);
          },
          optimizer<torch::optim::SGD>(torch::optim::SGDOptions(0.5))};
}

TEST(Models, AConvolutionalNetTrainsToTheSameBits) { expect_equal_training(convnet()); }
TEST(Models, ATransformerTrainsToTheSameBits) { expect_equal_training(transformer()); }
TEST(Models, AnLstmTrainsToTheSameBits) {
  expect_equal_training(recurrent<nn::LSTM, nn::LSTMOptions>());
}
TEST(Models, AGruTrainsToTheSameBits) {
  expect_equal_training(recurrent<nn::GRU, nn::GRUOptions>());
}
TEST(Models, AnEmbeddingWithSparseGradientsTrainsToTheSameBits) {
  expect_equal_training(sparse_embedding());
}

TEST(Autocast, OnADeviceOfKindCpuAConvolutionalNetTrainsToTheCpusBits) {
  expect_equal_training(convnet(), "cpu", /*autocast=*/true);
}
TEST(Autocast, OnADeviceOfKindCpuATransformerTrainsToTheCpusBits) {
  expect_equal_training(transformer(), "cpu", /*autocast=*/true);
}
TEST(Autocast, OnADeviceOfKindCpuAnLstmTrainsToTheCpusBits) {
  expect_equal_training(recurrent<nn::LSTM, nn::LSTMOptions>(), "cpu", /*autocast=*/true);
}
TEST(Autocast, OnADeviceOfKindCpuSparseEmbeddingsTrainToTheCpusBits) {
  expect_equal_training(sparse_embedding(), "cpu", /*autocast=*/true);
}

// Accelerators and the CPU disagree about these: LibTorch's lists say so.
TEST(Autocast, CastsByTheListsOfTheKind) {
  struct Case {
    const char* name;
    std::function<Tensor(const Tensor&)> op;
    at::ScalarType input, on_accelerator, on_cpu;
  };
  const std::vector<Case> cases{
      {"mm", [](const Tensor& x) { return x.mm(x); }, at::kFloat, at::kBFloat16, at::kBFloat16},
      {"linear", [](const Tensor& x) { return at::linear(x, x); }, at::kFloat, at::kBFloat16,
       at::kBFloat16},
      {"addmv", [](const Tensor& x) { return at::addmv(x[0], x, x[0]); }, at::kFloat, at::kBFloat16,
       at::kFloat},
      {"einsum", [](const Tensor& x) { return at::einsum("ij,jk->ik", {x, x}); }, at::kFloat,
       at::kBFloat16, at::kBFloat16},
      {"exp", [](const Tensor& x) { return x.exp(); }, at::kBFloat16, at::kFloat, at::kBFloat16},
      {"softmax", [](const Tensor& x) { return x.softmax(0); }, at::kBFloat16, at::kFloat,
       at::kBFloat16},
      {"sum", [](const Tensor& x) { return x.sum(); }, at::kBFloat16, at::kFloat, at::kBFloat16},
      {"layer_norm", [](const Tensor& x) { return at::layer_norm(x, {4}); }, at::kBFloat16,
       at::kFloat, at::kBFloat16},
      {"mse_loss", [](const Tensor& x) { return at::mse_loss(x, x); }, at::kBFloat16, at::kFloat,
       at::kFloat},
      {"norm", [](const Tensor& x) { return at::norm(x, 2); }, at::kBFloat16, at::kFloat,
       at::kBFloat16},
      {"reflection_pad1d", [](const Tensor& x) { return at::reflection_pad1d(x, {1, 1}); },
       at::kBFloat16, at::kBFloat16, at::kFloat},
      {"cat", [](const Tensor& x) { return at::cat({x, x.to(at::kFloat)}); }, at::kBFloat16,
       at::kFloat, at::kFloat},
      {"relu", [](const Tensor& x) { return x.relu(); }, at::kBFloat16, at::kBFloat16,
       at::kBFloat16}};
  for (const bool cpu : {false, true}) {
    Cluster cluster(cpu ? "1x1:cpu" : "1x1:h100");
    cluster.run_on_every_rank([&](Rank& rank) {
      const Autocast scope(c10::kPrivateUse1);
      for (const Case& one : cases) {
        const Tensor input =
            torch::ones({4, 4}, torch::device(rank.runtime().device()).dtype(one.input));
        EXPECT_EQ(one.op(input).scalar_type(), cpu ? one.on_cpu : one.on_accelerator)
            << one.name << (cpu ? " on a CPU" : " on an accelerator");
      }
    });
  }
}

}  // namespace
}  // namespace accelerate
