// Whole trainings on a simulated device give the CPU's losses and parameters, to the bit.
// One shape each: a model on one device against the CPU.
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "integration_tests/device/tensor_bits.h"
#include "simulator/cluster/cluster.h"

namespace accelerate::device_test {
namespace {

namespace nn = torch::nn;
using simulator::Cluster;
using simulator::Rank;
using torch::Tensor;

constexpr int kSteps = 4;

// A classifier; the batch is what it takes.
struct Classifier : nn::Module {
  virtual Tensor forward(const Tensor& input) = 0;
};

struct Batch {
  Tensor input;
  Tensor target;
};

struct ConvNet : Classifier {
  ConvNet()
      : conv1(register_module("conv1", nn::Conv2d(nn::Conv2dOptions(3, 8, 3).padding(1)))),
        norm1(register_module("norm1", nn::BatchNorm2d(8))),
        conv2(register_module("conv2", nn::Conv2d(nn::Conv2dOptions(8, 12, 3).stride(2)))),
        norm2(register_module("norm2", nn::BatchNorm2d(12))),
        dropout(register_module("dropout", nn::Dropout(0.3))),
        out(register_module("out", nn::Linear(12 * 3 * 3, 5))) {}
  Tensor forward(const Tensor& input) override {
    Tensor x = torch::max_pool2d(torch::relu(norm1(conv1(input))), 2);
    x = torch::relu(norm2(conv2(x)));
    x = torch::adaptive_avg_pool2d(x, {3, 3});
    return out(dropout(x.flatten(1)));
  }
  nn::Conv2d conv1;
  nn::BatchNorm2d norm1;
  nn::Conv2d conv2;
  nn::BatchNorm2d norm2;
  nn::Dropout dropout;
  nn::Linear out;
};

Batch images() { return {torch::randn({6, 3, 16, 16}), torch::randint(0, 5, {6}, torch::kLong)}; }
Batch sentences() {
  return {torch::randint(0, 40, {6, 9}, torch::kLong), torch::randint(0, 5, {6}, torch::kLong)};
}

struct Transformer : Classifier {
  Transformer()
      : embedding(register_module("embedding", nn::Embedding(40, 16))),
        encoder(register_module(
            "encoder",
            nn::TransformerEncoder(nn::TransformerEncoderOptions(
                nn::TransformerEncoderLayerOptions(16, 4).dim_feedforward(24).dropout(0.2), 2)))),
        out(register_module("out", nn::Linear(16, 5))) {}
  Tensor forward(const Tensor& input) override {
    return out(encoder(embedding(input).transpose(0, 1)).mean(0));
  }
  nn::Embedding embedding;
  nn::TransformerEncoder encoder;
  nn::Linear out;
};

// Written out, with the fused attention that modern models use.
struct FusedAttention : Classifier {
  FusedAttention()
      : embedding(register_module("embedding", nn::Embedding(40, 16))),
        norm1(register_module("norm1", nn::LayerNorm(nn::LayerNormOptions({16})))),
        qkv(register_module("qkv", nn::Linear(16, 48))),
        project(register_module("project", nn::Linear(16, 16))),
        norm2(register_module("norm2", nn::LayerNorm(nn::LayerNormOptions({16})))),
        up(register_module("up", nn::Linear(16, 32))),
        down(register_module("down", nn::Linear(32, 16))),
        dropout(register_module("dropout", nn::Dropout(0.1))),
        out(register_module("out", nn::Linear(16, 5))) {}
  Tensor forward(const Tensor& input) override {
    Tensor x = embedding(input);
    const int64_t batch = x.size(0);
    const int64_t length = x.size(1);
    std::vector<Tensor> heads;
    for (const Tensor& part : qkv(norm1(x)).chunk(3, -1)) {
      heads.push_back(part.view({batch, length, 4, 4}).transpose(1, 2));
    }
    const Tensor attended =
        at::scaled_dot_product_attention(heads[0], heads[1], heads[2], {}, 0.0, /*is_causal=*/true);
    x = x + dropout(project(attended.transpose(1, 2).reshape({batch, length, 16})));
    x = x + dropout(down(torch::gelu(up(norm2(x)))));
    return out(x.mean(1));
  }
  nn::Embedding embedding;
  nn::LayerNorm norm1;
  nn::Linear qkv;
  nn::Linear project;
  nn::LayerNorm norm2;
  nn::Linear up;
  nn::Linear down;
  nn::Dropout dropout;
  nn::Linear out;
};

struct Lstm : Classifier {
  Lstm()
      : embedding(register_module("embedding", nn::Embedding(40, 12))),
        lstm(register_module(
            "lstm",
            nn::LSTM(
                nn::LSTMOptions(12, 10).num_layers(2).bidirectional(true).dropout(0.2).batch_first(
                    true)))),
        out(register_module("out", nn::Linear(20, 5))) {}
  Tensor forward(const Tensor& input) override {
    return out(std::get<0>(lstm(embedding(input))).select(1, -1));
  }
  nn::Embedding embedding;
  nn::LSTM lstm;
  nn::Linear out;
};

struct Gru : Classifier {
  Gru()
      : embedding(register_module("embedding", nn::Embedding(40, 12))),
        gru(register_module("gru", nn::GRU(nn::GRUOptions(12, 10).batch_first(true)))),
        out(register_module("out", nn::Linear(10, 5))) {}
  Tensor forward(const Tensor& input) override {
    return out(std::get<0>(gru(embedding(input))).mean(1));
  }
  nn::Embedding embedding;
  nn::GRU gru;
  nn::Linear out;
};

struct SparseEmbedding : Classifier {
  SparseEmbedding()
      : embedding(register_module("embedding",
                                  nn::Embedding(nn::EmbeddingOptions(40, 5).sparse(true)))) {}
  Tensor forward(const Tensor& input) override { return embedding(input).sum(1); }
  nn::Embedding embedding;
};

using Parameters = std::vector<Tensor>;
using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(const Parameters&)>;

MakeOptimizer sgd(double momentum) {
  return [momentum](const Parameters& parameters) {
    return std::make_unique<torch::optim::SGD>(parameters,
                                               torch::optim::SGDOptions(0.1).momentum(momentum));
  };
}
std::unique_ptr<torch::optim::Optimizer> adam(const Parameters& parameters) {
  return std::make_unique<torch::optim::Adam>(parameters, torch::optim::AdamOptions(1e-2));
}
std::unique_ptr<torch::optim::Optimizer> adamw(const Parameters& parameters) {
  return std::make_unique<torch::optim::AdamW>(parameters,
                                               torch::optim::AdamWOptions(1e-2).weight_decay(0.1));
}

struct Training {
  std::string name;
  std::function<std::shared_ptr<Classifier>()> make_model;
  Batch (*make_batch)();
  MakeOptimizer make_optimizer;
  bool clip = true;
  bool autocast = false;

  friend std::ostream& operator<<(std::ostream& out, const Training& training) {
    return out << training.name;
  }
};

// Casts to bfloat16 on `device`, or does nothing.
class Autocast {
 public:
  Autocast(c10::DeviceType device, bool enabled) : device_(device), enabled_(enabled) {
    if (!enabled_) return;
    at::autocast::set_autocast_dtype(device_, at::kBFloat16);
    at::autocast::set_autocast_enabled(device_, true);
    at::autocast::increment_nesting();
  }
  ~Autocast() {
    if (!enabled_) return;
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(device_, false);
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  const c10::DeviceType device_;
  const bool enabled_;
};

struct Result {
  std::vector<Tensor> losses;
  std::vector<std::pair<std::string, Tensor>> state;  // parameters and buffers
  at::ScalarType output_dtype = at::kFloat;
  int64_t num_moved = 0;  // parameters that training changed
};

Result train(const Training& training, c10::Device device) {
  torch::manual_seed(11);
  std::shared_ptr<Classifier> model = training.make_model();
  std::vector<Batch> batches;
  for (int step = 0; step < kSteps; ++step) batches.push_back(training.make_batch());
  std::vector<Tensor> before;
  for (const Tensor& parameter : model->parameters()) before.push_back(parameter.detach().clone());
  model->to(device);
  auto optimizer = training.make_optimizer(model->parameters());
  torch::manual_seed(12);
  Result result;
  for (const Batch& batch : batches) {
    optimizer->zero_grad();
    Tensor loss;
    {
      const Autocast autocast(device.type(), training.autocast);
      const Tensor output = model->forward(batch.input.to(device));
      result.output_dtype = output.scalar_type();
      loss = torch::nn::functional::cross_entropy(output, batch.target.to(device));
    }
    loss.backward();
    if (training.clip) nn::utils::clip_grad_norm_(model->parameters(), 1.0);
    optimizer->step();
    result.losses.push_back(loss.detach());
  }
  for (const auto& item : model->named_parameters()) {
    result.state.emplace_back(item.key(), item.value().detach());
  }
  for (size_t i = 0; i < before.size(); ++i) {
    result.num_moved += !at::equal(before[i], result.state[i].second.cpu());
  }
  for (const auto& item : model->named_buffers())
    result.state.emplace_back(item.key(), item.value());
  return result;
}

// The differences, one line each.
std::string differences(const Result& expected, const Result& actual, c10::Device device) {
  std::string text;
  auto note = [&](const std::string& what, const Tensor& left, const Tensor& right) {
    const std::string found = difference(left, right, device);
    if (!found.empty()) text += what + ": " + found + "\n";
  };
  for (size_t step = 0; step < expected.losses.size(); ++step) {
    note("loss " + std::to_string(step), expected.losses[step], actual.losses.at(step));
  }
  for (size_t i = 0; i < expected.state.size(); ++i) {
    note(expected.state[i].first, expected.state[i].second, actual.state.at(i).second);
  }
  return text;
}

class ModelEquality : public ::testing::TestWithParam<Training> {};

TEST_P(ModelEquality, HoldsToTheBit) {
  const Training& training = GetParam();
  // The CPU's lists of what to cast are those of the kind "cpu".
  Cluster cluster(training.autocast ? "1x1:cpu" : "1x1:h100");
  std::string found = "nothing was compared";
  int64_t num_moved = 0;
  at::ScalarType output_dtype = at::kFloat;
  cluster.run_on_every_rank([&](Rank& rank) {
    const c10::Device device = rank.runtime().device();
    const Result expected = train(training, c10::Device(c10::kCPU));
    const Result actual = train(training, device);
    found = differences(expected, actual, device);
    num_moved = actual.num_moved;
    output_dtype = actual.output_dtype;
  });
  EXPECT_EQ(found, "");
  EXPECT_GE(num_moved, 1);
  EXPECT_EQ(output_dtype, training.autocast ? at::kBFloat16 : at::kFloat);
}

template <typename Model>
std::shared_ptr<Classifier> make() {
  return std::make_shared<Model>();
}

INSTANTIATE_TEST_SUITE_P(
    Models, ModelEquality,
    ::testing::Values(
        Training{"convnet_sgd", make<ConvNet>, images, sgd(0.9)},
        Training{"convnet_adam", make<ConvNet>, images, adam},
        Training{"convnet_adamw", make<ConvNet>, images, adamw},
        Training{"transformer_sgd", make<Transformer>, sentences, sgd(0.9)},
        Training{"transformer_adam", make<Transformer>, sentences, adam},
        Training{"transformer_adamw", make<Transformer>, sentences, adamw},
        Training{"attention_sgd", make<FusedAttention>, sentences, sgd(0.9)},
        Training{"attention_adamw", make<FusedAttention>, sentences, adamw},
        Training{"lstm_sgd", make<Lstm>, sentences, sgd(0.9)},
        Training{"lstm_adam", make<Lstm>, sentences, adam},
        Training{"gru_adamw", make<Gru>, sentences, adamw},
        // Neither clipping nor momentum knows sparse gradients.
        Training{"sparse_embedding_sgd", make<SparseEmbedding>, sentences, sgd(0), /*clip=*/false},
        Training{"convnet_bfloat16", make<ConvNet>, images, sgd(0.9), true, /*autocast=*/true},
        Training{"convnet_bfloat16_adam", make<ConvNet>, images, adam, true, true},
        Training{"transformer_bfloat16", make<Transformer>, sentences, adamw, true, true},
        Training{"attention_bfloat16", make<FusedAttention>, sentences, adamw, true, true},
        Training{"lstm_bfloat16", make<Lstm>, sentences, adam, true, true}),
    [](const ::testing::TestParamInfo<Training>& info) { return info.param.name; });

// On accelerators autocast follows the accelerators' lists, which differ from the CPU's.
TEST(AcceleratorAutocast, CastsByTheAcceleratorsLists) {
  for (const char* spec : {"1x1:h100", "1x1:cpu"}) {
    Cluster cluster(spec);
    std::vector<at::ScalarType> dtypes;
    cluster.run_on_every_rank([&](Rank& rank) {
      const c10::Device device = rank.runtime().device();
      const Autocast autocast(device.type(), true);
      const Tensor x = torch::ones({4, 4}, device);
      dtypes = {x.mm(x).scalar_type(), x.matmul(x).softmax(1).scalar_type(),
                torch::nn::functional::layer_norm(x.mm(x),
                                                  torch::nn::functional::LayerNormFuncOptions({4}))
                    .scalar_type()};
    });
    const bool accelerator = std::string(spec) == "1x1:h100";
    EXPECT_EQ(dtypes[0], at::kBFloat16) << spec;
    EXPECT_EQ(dtypes[1], accelerator ? at::kFloat : at::kBFloat16) << spec;
    EXPECT_EQ(dtypes[2], accelerator ? at::kFloat : at::kBFloat16) << spec;
  }
}

}  // namespace
}  // namespace accelerate::device_test
