/// Models of several kinds, each with a plain way to call it, and the places where tests put their
/// parts.
///
/// Threads: the rank's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/rms_norm.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>
#include <torch/nn/modules/transformer.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "absl/strings/str_cat.h"
#include "accelerate/dispatch/dispatch.h"
#include "accelerate/examples/lm/model.h"
#include "simulator/device/sim_device.h"

namespace accelerate {

using torch::Tensor;

inline constexpr char kFolder[] = "/sim/offload";

inline c10::Device sim(int index) { return simulator::torch_device(index); }

inline std::string error_of(const std::function<void()>& body) {
  try {
    body();
    return "";
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
}

// ---- Models, each with the parts of which a map consists, in the order of their use.

inline lm::Config lm_config(lm::Blocks blocks, bool tied) {
  return lm::model_config("tiny", {.blocks = blocks,
                                   .layers = 4,
                                   .hidden = 32,
                                   .heads = 4,
                                   .sequence_length = 40,
                                   .vocabulary = 41,
                                   .tied_head = tied ? 1 : 0});
}

// An encoder and a decoder of LibTorch, whose masks the model makes.
struct TranslatorImpl : torch::nn::Module {
  TranslatorImpl() {
    tokens = register_module("tokens", torch::nn::Embedding(31, 16));
    transformer = register_module(
        "transformer",
        torch::nn::Transformer(
            torch::nn::TransformerOptions(16, 2, 2, 2).dim_feedforward(32).dropout(0)));
    head = register_module("head", torch::nn::Linear(16, 31));
  }
  Tensor forward(const std::pair<Tensor, Tensor>& texts) {
    const Tensor mask = at::full({texts.second.size(0), texts.second.size(0)}, -1e9,
                                 at::TensorOptions(texts.second.device()))
                            .triu(1);
    return head(transformer(tokens(texts.first), tokens(texts.second), Tensor(), mask));
  }
  torch::nn::Embedding tokens{nullptr};
  torch::nn::Transformer transformer{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Translator);

// Residual connections in place and not, a norm with running statistics, and pooling.
struct ConvnetImpl : torch::nn::Module {
  ConvnetImpl() {
    first =
        register_module("first", torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 6, 3).padding(1)));
    norm = register_module("norm", torch::nn::BatchNorm2d(6));
    second =
        register_module("second", torch::nn::Conv2d(torch::nn::Conv2dOptions(6, 6, 3).padding(1)));
    third =
        register_module("third", torch::nn::Conv2d(torch::nn::Conv2dOptions(6, 6, 3).padding(1)));
    head = register_module("head", torch::nn::Linear(6, 5));
  }
  Tensor forward(const Tensor& images) {
    Tensor x = at::relu(norm(first(images)));
    x = x + second(x);
    Tensor y = third(x);
    y += x;
    return head(y.relu_().mean({2, 3}));
  }
  torch::nn::Conv2d first{nullptr}, second{nullptr}, third{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Convnet);

struct TaggerImpl : torch::nn::Module {
  TaggerImpl() {
    tokens = register_module("tokens", torch::nn::Embedding(23, 12));
    lower = register_module("lower",
                            torch::nn::LSTM(torch::nn::LSTMOptions(12, 10).bidirectional(true)));
    upper = register_module("upper", torch::nn::LSTM(torch::nn::LSTMOptions(20, 10).num_layers(2)));
    head = register_module("head", torch::nn::Linear(10, 7));
  }
  std::vector<Tensor> forward(const Tensor& words) {
    auto [hidden, state] = upper(std::get<0>(lower(tokens(words))));
    return {head(hidden), std::get<0>(state)};
  }
  torch::nn::Embedding tokens{nullptr};
  torch::nn::LSTM lower{nullptr}, upper{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Tagger);

// A residual connection beside a norm that LibTorch composes of operators, which use its input
// twice.
struct NormedBlockImpl : torch::nn::Module {
  NormedBlockImpl() {
    weight = register_parameter("weight", at::full({16}, 1.5));
    linear = register_module("linear", torch::nn::Linear(16, 16));
  }
  Tensor forward(const Tensor& x) { return x + linear(at::rms_norm(x, {16}, weight, 1e-5)); }
  Tensor weight;
  torch::nn::Linear linear{nullptr};
};
TORCH_MODULE(NormedBlock);

struct NormedTowerImpl : torch::nn::Module {
  NormedTowerImpl() {
    tokens = register_module("tokens", torch::nn::Embedding(29, 16));
    for (int i = 0; i < 3; ++i) {
      blocks.push_back(register_module(absl::StrCat("block", i), NormedBlock()));
    }
  }
  Tensor forward(const Tensor& words) {
    Tensor x = tokens(words);
    for (NormedBlock& block : blocks) x = block(x);
    return x;
  }
  torch::nn::Embedding tokens{nullptr};
  std::vector<NormedBlock> blocks;
};
TORCH_MODULE(NormedTower);

struct Case {
  std::string name;
  std::vector<std::string> parts;
  std::function<std::shared_ptr<torch::nn::Module>()> make;
  // The outputs of the model, dispatched or not, for an input on a device.
  std::function<std::vector<Tensor>(const std::shared_ptr<torch::nn::Module>&,
                                    const std::shared_ptr<DispatchedModel>&, c10::Device)>
      run;
};

template <typename Module, typename Input>
std::vector<Tensor> call(const std::shared_ptr<torch::nn::Module>& module,
                         const std::shared_ptr<DispatchedModel>& model, const Input& input) {
  const auto typed = std::dynamic_pointer_cast<Module>(module);
  std::vector<Tensor> outputs;
  const auto add = [&](const Tensor& output) { outputs.push_back(output); };
  if (model == nullptr) {
    tree_for_each(typed->forward(input), add);
  } else {
    tree_for_each(Dispatched<Module>(typed, model)(input), add);
  }
  return outputs;
}

inline Tensor tokens_of(std::vector<int64_t> sizes, int64_t vocabulary) {
  int64_t count = 1;
  for (const int64_t size : sizes) count *= size;
  return ((at::arange(count) * 7 + 3) % vocabulary).view(sizes);
}

inline Case lm_case(const std::string& name, lm::Blocks blocks, bool tied = false,
                    bool checkpoints = false) {
  std::vector<std::string> parts = {"tokens"};
  if (blocks == lm::Blocks::kGpt) parts.emplace_back("positions");
  for (int i = 0; i < 4; ++i) parts.push_back(absl::StrCat("blocks.", i));
  parts.emplace_back("norm");
  if (!tied) parts.emplace_back("head");
  return {name, parts,
          [=] { return std::make_shared<lm::LmImpl>(lm_config(blocks, tied), checkpoints); },
          [](const auto& module, const auto& model, c10::Device device) {
            return call<lm::LmImpl>(module, model, tokens_of({2, 9}, 41).to(device));
          }};
}

inline std::vector<Case> cases() {
  return {
      lm_case("GPT", lm::Blocks::kGpt),
      lm_case("Llama", lm::Blocks::kLlama),
      lm_case("tied GPT", lm::Blocks::kGpt, /*tied=*/true),
      lm_case("GPT that recomputes blocks", lm::Blocks::kGpt, /*tied=*/false,
              /*checkpoints=*/true),
      {"encoder and decoder",
       {"tokens", "transformer.encoder.layers.0", "transformer.encoder.layers.1",
        "transformer.encoder.norm", "transformer.decoder.layers.0", "transformer.decoder.layers.1",
        "transformer.decoder.norm", "head"},
       [] { return std::make_shared<TranslatorImpl>(); },
       [](const auto& module, const auto& model, c10::Device device) {
         return call<TranslatorImpl>(
             module, model,
             std::pair(tokens_of({5, 2}, 31).to(device), tokens_of({4, 2}, 31).to(device)));
       }},
      {"conv net",
       {"first", "norm", "second", "third", "head"},
       [] { return std::make_shared<ConvnetImpl>(); },
       [](const auto& module, const auto& model, c10::Device device) {
         const Tensor images = at::arange(3. * 2 * 64).sin().view({3, 2, 8, 8});
         return call<ConvnetImpl>(module, model, images.to(torch::kFloat).to(device));
       }},
      {"LSTM",
       {"tokens", "lower", "upper", "head"},
       [] { return std::make_shared<TaggerImpl>(); },
       [](const auto& module, const auto& model, c10::Device device) {
         return call<TaggerImpl>(module, model, tokens_of({6, 3}, 23).to(device));
       }},
      {"torch::rms_norm",
       {"tokens", "block0", "block1", "block2"},
       [] { return std::make_shared<NormedTowerImpl>(); },
       [](const auto& module, const auto& model, c10::Device device) {
         return call<NormedTowerImpl>(module, model, tokens_of({2, 9}, 29).to(device));
       }},
  };
}

inline std::shared_ptr<torch::nn::Module> make(const Case& each) {
  torch::manual_seed(11);
  return each.make();
}

// The parts divided evenly among placements, in order.
inline DeviceMap cut(const std::vector<std::string>& parts,
                     const std::vector<std::string>& placements) {
  DeviceMap map;
  for (size_t i = 0; i < parts.size(); ++i) {
    map.set(parts[i], *DevicePlacement::parse(placements[i * placements.size() / parts.size()]));
  }
  return map;
}

inline DeviceMap whole(const std::string& placement) {
  DeviceMap map;
  map.set("", *DevicePlacement::parse(placement));
  return map;
}

struct Placing {
  std::string name;
  std::vector<std::string> placements;
  bool has_files = false;

  DeviceMap map(const Case& each) const {
    return placements.size() == 1 ? whole(placements[0]) : cut(each.parts, placements);
  }
};

inline std::vector<Placing> placings() {
  return {{"one device", {"0"}},
          {"two devices", {"0", "1"}},
          {"back and forth", {"1", "0", "1"}},
          {"two devices and the host", {"0", "1", "cpu"}},
          {"one device, host and disk", {"0", "cpu", "disk"}, true},
          {"host and disk", {"cpu", "disk"}, true},
          {"disk", {"disk"}, true}};
}

inline void expect_equal(const std::vector<Tensor>& outputs, const std::vector<Tensor>& expected,
                         const std::string& what, double tolerance = 0) {
  ASSERT_EQ(outputs.size(), expected.size()) << what;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const Tensor output = outputs[i].detach().cpu(), other = expected[i].detach().cpu();
    EXPECT_TRUE(tolerance == 0 ? at::equal(output, other)
                               : at::allclose(output, other, tolerance, tolerance))
        << what << ", tensor " << i;
  }
}

}  // namespace accelerate
