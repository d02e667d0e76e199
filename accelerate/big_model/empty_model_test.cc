#include "accelerate/big_model/empty_model.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <semaphore>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/comm/random.h"
#include "accelerate/operators/default_device.h"
#include "accelerate/testing/fake_runtime.h"
#include "accelerate/testing/value_error.h"

namespace accelerate {
namespace {

namespace nn = torch::nn;

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;
using torch::Tensor;

constexpr uint64_t kSeed = 5;

Tensor random_state() { return generator_state(at::detail::getDefaultCPUGenerator()); }

// Parameters, then buffers, under all names.
std::vector<std::pair<std::string, Tensor>> tensors_of(const nn::Module& module) {
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (const auto& item : module.named_parameters()) tensors.emplace_back(item.key(), item.value());
  for (const auto& item : module.named_buffers()) tensors.emplace_back(item.key(), item.value());
  return tensors;
}

std::vector<std::string> names_on_meta(const nn::Module& module) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors_of(module)) {
    if (tensor.is_meta()) names.push_back(name);
  }
  return names;
}

// ---- Kinds of models. Constructors make values in all the ways that they do.

// A head whose weight is another module's.
struct TiedHeadImpl : nn::Module {
  explicit TiedHeadImpl(const Tensor& of) : weight(register_parameter("weight", of)) {}
  Tensor weight;
};
TORCH_MODULE(TiedHead);

// Learned positions, a block, a head that is tied to the tokens' embedding, and values of its own.
struct Gpt : nn::Module {
  Gpt()
      : tokens(register_module("tokens", nn::Embedding(11, 8))),
        positions(register_parameter("positions", torch::empty({6, 8}))),
        block(register_module(
            "block", nn::TransformerEncoderLayer(
                         nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(16).dropout(0)))),
        head(register_module("head", TiedHead(tokens->weight))) {
    const torch::NoGradGuard no_grad;
    for (Tensor& parameter : parameters()) {
      if (parameter.dim() > 1) parameter.normal_(0, 0.02);
    }
    // Through a second tensor of the same memory.
    positions.data().mul_(2);
    head->weight[3].zero_();
  }
  Tensor forward(const Tensor& ids) {
    const Tensor x = tokens(ids) + positions.slice(0, 0, ids.size(1));
    return torch::linear(block(x), head->weight);
  }
  nn::Embedding tokens;
  Tensor positions;
  nn::TransformerEncoderLayer block;
  TiedHead head;
};

// Rotary tables, which are buffers that are computed from others.
struct Llama : nn::Module {
  Llama() {
    tokens = register_module("tokens", nn::Embedding(11, 8));
    const Tensor speeds = torch::pow(10000.0, -torch::arange(0, 4, 2, torch::kFloat) / 4);
    const Tensor angles = torch::outer(torch::arange(6), speeds * torch::tensor({1.0F, 0.5F}));
    cos = register_buffer("cos", angles.cos());
    sin = register_buffer("sin", angles.sin());
    mask = register_buffer("mask", torch::full({6, 6}, -INFINITY).triu(1));
    for (int i = 0; i < 2; ++i) {
      blocks->push_back(nn::Linear(nn::LinearOptions(8, 8).bias(false)));
    }
    register_module("blocks", blocks);
    scale = register_parameter("scale", torch::ones({8}) * 0.5);
    head = register_module("head", nn::Linear(nn::LinearOptions(8, 11).bias(false)));
    const torch::NoGradGuard no_grad;
    head->weight.copy_(tokens->weight);
    head->weight.add_(1);
  }
  Tensor forward(const Tensor& ids) {
    Tensor x = tokens(ids) * scale;
    for (const auto& block : *blocks) x = x + block->as<nn::Linear>()->forward(x);
    const Tensor attention =
        torch::softmax(x.matmul(x.transpose(-1, -2)) + mask.slice(0, 0, 3).slice(1, 0, 3), -1);
    x = attention.matmul(x);
    const auto halves = x.view({x.size(0), x.size(1), 4, 2}).unbind(-1);
    return head(torch::cat({halves[0] * cos.repeat({1, 2}).slice(0, 0, 3),
                            halves[1] * sin.repeat({1, 2}).slice(0, 0, 3)},
                           -1));
  }
  nn::Embedding tokens{nullptr};
  nn::ModuleList blocks;
  nn::Linear head{nullptr};
  Tensor cos, sin, mask, scale;
};

// Initialisation of every kind, seeds in between, and random values that stay nowhere.
struct Custom : nn::Module {
  Custom() {
    torch::randn({7});
    w = register_parameter("w", torch::empty({4, 4}));
    nn::init::orthogonal_(w);
    torch::manual_seed(3);
    conv = register_module("conv", nn::Conv2d(2, 4, 3));
    nn::init::dirac_(conv->weight);
    nn::init::kaiming_normal_(conv->weight, 0.1);
    torch::manual_seed(3);
    noise = register_buffer("noise", torch::rand({3}));
    half = register_module("half", nn::Linear(4, 4));
    half->to(torch::kDouble);
    nn::init::xavier_uniform_(half->weight);
    const Tensor both = torch::randn({2, 4});
    first = register_parameter("first", both[0]);
    second = register_parameter("second", both[1]);
    here = register_buffer("here", torch::rand({2}, torch::TensorOptions(torch::kCPU)));
    last = register_parameter(
        "last", torch::eye(4).narrow(0, 1, 2) * torch::tensor({1.0F, 2.0F, 3.0F, 4.0F}));
    torch::nn::init::uniform_(last);
    const torch::NoGradGuard no_grad;
    last.mul_(torch::ones({2, 4}).gt(0.5));
    torch::rand({2});
  }
  Tensor forward(const Tensor& x) {
    return (x.matmul(w) * first + second).sum() + conv->weight.sum() + noise.sum() + here.sum() +
           half(x.to(torch::kDouble)).sum() + last.sum();
  }
  Tensor w, noise, first, second, here, last;
  nn::Conv2d conv{nullptr};
  nn::Linear half{nullptr};
};

// A model, and what a forward pass of it gives.
struct Built {
  std::shared_ptr<nn::Module> module;
  std::function<Tensor()> forward;
};

Tensor tokens() { return torch::arange(6).view({2, 3}).remainder(11); }
Tensor floats(torch::IntArrayRef sizes) {
  return torch::arange(c10::multiply_integers(sizes), torch::kFloat).view(sizes).sin();
}

Tensor square() { return floats({4, 4}); }

template <typename Holder, typename Forward>
Built built(Holder holder, Forward forward) {
  return {holder.ptr(), [holder, forward]() mutable { return forward(holder); }};
}
template <typename Module>
Built built(std::shared_ptr<Module> module, Tensor (*input)()) {
  return {module, [module, input] { return module->forward(input()); }};
}

struct Kind {
  const char* name;
  std::function<Built()> build;
};

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> kinds = {
      {"perceptron",
       [] {
         return built(nn::Sequential(nn::Linear(4, 5), nn::ReLU(), nn::Linear(5, 3)),
                      [](auto& m) { return m->forward(floats({2, 4})); });
       }},
      {"convolutions",
       [] {
         return built(nn::Sequential(nn::Conv2d(3, 4, 3), nn::BatchNorm2d(4), nn::ReLU(),
                                     nn::GroupNorm(2, 4), nn::ConvTranspose2d(4, 2, 2)),
                      [](auto& m) { return m->forward(floats({2, 3, 5, 5})); });
       }},
      {"LSTM",
       [] {
         return built(nn::LSTM(nn::LSTMOptions(4, 3).num_layers(2).bidirectional(true)),
                      [](auto& m) { return std::get<0>(m(floats({3, 2, 4}))); });
       }},
      {"GRU",
       [] {
         return built(nn::GRU(nn::GRUOptions(4, 3).num_layers(2)),
                      [](auto& m) { return std::get<0>(m(floats({3, 2, 4}))); });
       }},
      {"attention",
       [] {
         return built(nn::MultiheadAttention(nn::MultiheadAttentionOptions(4, 2)), [](auto& m) {
           const Tensor x = floats({3, 2, 4});
           return std::get<0>(m(x, x, x));
         });
       }},
      {"encoder",
       [] {
         return built(
             nn::TransformerEncoder(
                 nn::TransformerEncoderLayer(
                     nn::TransformerEncoderLayerOptions(4, 2).dim_feedforward(6).dropout(0)),
                 2),
             [](auto& m) { return m(floats({3, 2, 4})); });
       }},
      {"encoder and decoder",
       [] {
         return built(
             nn::Transformer(nn::TransformerOptions(4, 2, 1, 2).dim_feedforward(6).dropout(0)),
             [](auto& m) { return m(floats({3, 2, 4}), floats({2, 2, 4})); });
       }},
      {"GPT", [] { return built(std::make_shared<Gpt>(), tokens); }},
      {"Llama", [] { return built(std::make_shared<Llama>(), tokens); }},
      {"embedding",
       [] {
         return built(nn::Embedding(nn::EmbeddingOptions(11, 4).padding_idx(3)),
                      [](auto& m) { return m(tokens()); });
       }},
      {"custom", [] { return built(std::make_shared<Custom>(), square); }},
  };
  return kinds;
}

// A model that was built in the ordinary way, and the state of the generator afterwards.
struct Eager {
  explicit Eager(const Kind& kind) {
    torch::manual_seed(kSeed);
    model = kind.build();
    after = random_state();
  }
  Built model;
  Tensor after;
};

Built build_empty(const Kind& kind, std::optional<bool> include_buffers = {}) {
  torch::manual_seed(kSeed);
  const EmptyInit empty = init_empty_weights(include_buffers);
  return kind.build();
}

// Values, gradients and results, bit by bit.
void expect_equal(const Built& model, const Built& expected) {
  const auto tensors = tensors_of(*model.module);
  const auto others = tensors_of(*expected.module);
  ASSERT_EQ(tensors.size(), others.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto& [name, tensor] = tensors[i];
    EXPECT_EQ(name, others[i].first);
    EXPECT_EQ(tensor.device(), others[i].second.device()) << name;
    EXPECT_EQ(tensor.requires_grad(), others[i].second.requires_grad()) << name;
    EXPECT_EQ(tensor.strides(), others[i].second.strides()) << name;
    EXPECT_TRUE(tensor.equal(others[i].second)) << name;
  }
  const auto run = [](const Built& each) {
    const Tensor loss = each.forward().pow(2).sum();
    loss.backward();
    std::vector<Tensor> results{loss.detach()};
    for (const auto& [name, tensor] : tensors_of(*each.module)) {
      results.push_back(tensor.grad().defined() ? tensor.grad().clone() : torch::zeros({1}));
      if (tensor.grad().defined()) tensor.mutable_grad() = Tensor();
    }
    return results;
  };
  const auto results = run(model), wanted = run(expected);
  for (size_t i = 0; i < results.size(); ++i) EXPECT_TRUE(results[i].equal(wanted[i])) << i;
}

class EmptyModel : public ::testing::TestWithParam<size_t> {
 protected:
  const Kind& kind() const { return kinds()[GetParam()]; }
};

INSTANTIATE_TEST_SUITE_P(Kinds, EmptyModel, ::testing::Range<size_t>(0, kinds().size()));

TEST_P(EmptyModel, HasBuffersAndNoParameters) {
  SCOPED_TRACE(kind().name);
  const Eager eager(kind());
  const Built empty = build_empty(kind());
  size_t parameters = 0;
  for (const auto& item : empty.module->named_parameters()) {
    EXPECT_TRUE(item.value().is_meta()) << item.key();
    EXPECT_TRUE(item.value().requires_grad()) << item.key();
    ++parameters;
  }
  EXPECT_GT(parameters, 0);
  for (const auto& item : empty.module->named_buffers()) {
    EXPECT_TRUE(item.value().equal(eager.model.module->named_buffers()[item.key()])) << item.key();
  }
}

TEST_P(EmptyModel, IsReplayedWhole) {
  SCOPED_TRACE(kind().name);
  for (const bool include_buffers : {false, true}) {
    const Eager eager(kind());
    const Built empty = build_empty(kind(), include_buffers);
    materialize(*empty.module);
    EXPECT_TRUE(random_state().equal(eager.after));
    expect_equal(empty, eager.model);
  }
}

TEST_P(EmptyModel, IsReplayedPieceByPieceInAnyOrder) {
  SCOPED_TRACE(kind().name);
  std::mt19937 random(7);
  for (int repeat = 0; repeat < 4; ++repeat) {
    const Eager eager(kind());
    const Built empty = build_empty(kind(), repeat % 2 == 0);
    std::vector<std::string> names = names_on_meta(*empty.module);
    std::shuffle(names.begin(), names.end(), random);
    for (const std::string& name : names) {
      materialize(*empty.module, {.filter = [&](const std::string& each) { return each == name; }});
    }
    EXPECT_TRUE(random_state().equal(eager.after));
    expect_equal(empty, eager.model);
  }
}

// ---- What the scopes do.

TEST(InitEmptyWeights, IncludesBuffersAsTheEnvironmentSays) {
  const auto built = [](std::optional<bool> include_buffers) {
    const EmptyInit empty = init_empty_weights(include_buffers);
    return nn::BatchNorm1d(3);
  };
  EXPECT_THAT(names_on_meta(*built({})), UnorderedElementsAre("weight", "bias"));
  FakeRuntime runtime;
  const RuntimeScope scope(runtime);
  EXPECT_THAT(names_on_meta(*built({})), UnorderedElementsAre("weight", "bias"));
  runtime.environment().set("ACCELERATE_INIT_INCLUDE_BUFFERS", "yes");
  EXPECT_EQ(names_on_meta(*built({})).size(), 5u);
  EXPECT_THAT(names_on_meta(*built(false)), UnorderedElementsAre("weight", "bias"));
}

TEST(InitEmptyWeights, DrawsNothingUntilValuesAreAskedFor) {
  torch::manual_seed(kSeed);
  const Tensor before = random_state();
  {
    const Built empty = build_empty(kinds()[0]);
    EXPECT_TRUE(random_state().equal(before));
  }
  EXPECT_TRUE(random_state().equal(before));
  const Built empty = build_empty(kinds()[0]);
  torch::rand({1});
  const Tensor used = random_state();
  materialize(*empty.module);
  EXPECT_TRUE(random_state().equal(used)) << "others have used the generator since";
  expect_equal(empty, Eager(kinds()[0]).model);
}

TEST(InitEmptyWeights, ScopesNest) {
  const auto build = [](bool scoped) {
    std::optional<EmptyInit> outer, inner;
    if (scoped) outer.emplace(c10::kMeta, /*include_buffers=*/true);
    nn::Sequential net(nn::Linear(3, 3));
    if (scoped) inner.emplace(c10::kMeta, /*include_buffers=*/false);
    net->push_back(nn::BatchNorm1d(3));
    net->push_back(nn::Linear(3, 2));
    inner.reset();
    net->push_back(nn::BatchNorm1d(2));
    net->push_back(nn::Linear(2, 2));
    return built(net, [](auto& m) { return m->forward(floats({4, 3})); });
  };
  torch::manual_seed(kSeed);
  const Built eager = build(false);
  const Tensor after = random_state();
  torch::manual_seed(kSeed);
  const Built empty = build(true);
  EXPECT_FALSE(empty.module->named_buffers()["1.running_var"].is_meta());
  EXPECT_TRUE(empty.module->named_buffers()["3.running_var"].is_meta());
  EXPECT_TRUE(empty.module->named_parameters()["2.weight"].is_meta());
  materialize(*empty.module);
  EXPECT_TRUE(random_state().equal(after));
  expect_equal(empty, eager);
}

// Its random numbers come at once, so those before it are drawn, too.
TEST(InitEmptyWeights, AChildMayHaveValuesAtOnce) {
  const auto build = [](bool scoped) {
    std::optional<EmptyInit> outer, inner;
    if (scoped) outer.emplace(c10::kMeta, /*include_buffers=*/false);
    nn::Sequential net(nn::Linear(3, 3));
    if (scoped) inner.emplace(c10::kCPU, /*include_buffers=*/false);
    nn::Linear child(3, 2);
    if (child->weight.sum().item<float>() > 100) throw std::runtime_error("too large");
    net->push_back(child);
    inner.reset();
    net->push_back(nn::Linear(2, 2));
    return built(net, [](auto& m) { return m->forward(floats({4, 3})); });
  };
  torch::manual_seed(kSeed);
  const Built eager = build(false);
  const Tensor after = random_state();
  torch::manual_seed(kSeed);
  const Built empty = build(true);
  EXPECT_THAT(names_on_meta(*empty.module),
              UnorderedElementsAre("0.weight", "0.bias", "2.weight", "2.bias"));
  materialize(*empty.module);
  EXPECT_TRUE(random_state().equal(after));
  expect_equal(empty, eager);
}

TEST(InitEmptyWeights, NamesAnOperatorThatNeedsValues) {
  const Tensor before = random_state();
  std::string message;
  try {
    const EmptyInit empty = init_empty_weights();
    const nn::Linear layer(4, 3);
    layer->weight.sum().item<float>();
  } catch (const c10::NotImplementedError& error) {
    message = error.what_without_backtrace();
  }
  EXPECT_THAT(message, AllOf(HasSubstr("aten::item"), HasSubstr("init_on_device(cpu)"),
                             HasSubstr("[]"), ::testing::Not(HasSubstr("\n"))));
  EXPECT_TRUE(random_state().equal(before));
  EXPECT_TRUE(torch::ones({1}).is_cpu());
  const Tensor host = torch::ones({2});
  const EmptyInit empty = init_empty_weights();
  EXPECT_THROW(host.copy_(torch::ones({2})), c10::NotImplementedError);
  // An ordinary mistake stays what it is.
  try {
    torch::ones({2, 3}).mm(torch::ones({2, 3}));
    FAIL();
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what(), ::testing::Not(HasSubstr("init_on_device")));
  }
}

TEST(InitEmptyWeights, EndsWithAnException) {
  torch::manual_seed(kSeed);
  const Tensor before = random_state();
  try {
    const EmptyInit empty = init_empty_weights();
    const nn::Linear layer(4, 3);
    throw std::runtime_error("from a constructor");
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "from a constructor");
  }
  EXPECT_TRUE(random_state().equal(before));
  EXPECT_TRUE(torch::ones({1}).is_cpu());
}

TEST(InitEmptyWeights, WorksInInferenceMode) {
  const Eager eager(kinds()[0]);
  torch::manual_seed(kSeed);
  const c10::InferenceMode inference;
  const auto net = [] {
    const EmptyInit empty = init_empty_weights(/*include_buffers=*/true);
    return kinds()[0].build();
  }();
  materialize(*net.module);
  EXPECT_TRUE(random_state().equal(eager.after));
  for (const auto& [name, tensor] : tensors_of(*net.module)) {
    EXPECT_TRUE(tensor.is_inference());
    EXPECT_TRUE(tensor.equal(eager.model.module->named_parameters()[name])) << name;
  }
  EXPECT_TRUE(net.forward().equal(eager.model.forward()));
}

TEST(InitEmptyWeights, IsReplayedInInferenceModeForTrainingAfterwards) {
  const Eager eager(kinds()[1]);
  const Built empty = build_empty(kinds()[1]);
  {
    const c10::InferenceMode inference;
    materialize(*empty.module);
  }
  expect_equal(empty, eager.model);
}

TEST(InitEmptyWeights, KeepsTheDefaultDtypeOfTheConstruction) {
  torch::set_default_dtype(caffe2::TypeMeta::Make<double>());
  const Eager eager(kinds()[0]);
  const Built empty = build_empty(kinds()[0]);
  torch::set_default_dtype(caffe2::TypeMeta::Make<float>());
  // Others make tensors meanwhile, so the process's default stays as it is.
  static int operators = 0;
  const at::CallbackHandle observed = at::addThreadLocalCallback(at::RecordFunctionCallback(
      [](const at::RecordFunction&) -> std::unique_ptr<at::ObserverContext> {
        ++operators;
        EXPECT_EQ(torch::get_default_dtype(), caffe2::TypeMeta::Make<float>());
        return nullptr;
      }));
  materialize(*empty.module);
  at::removeCallback(observed);
  EXPECT_GT(operators, 0);
  for (const auto& item : empty.module->named_parameters()) {
    EXPECT_EQ(item.value().dtype(), torch::kDouble);
    EXPECT_TRUE(item.value().equal(eager.model.module->named_parameters()[item.key()]));
  }
}

TEST(InitEmptyWeights, KeepsTheDtypeOfQuotientsOfIntegers) {
  torch::set_default_dtype(caffe2::TypeMeta::Make<double>());
  const auto scale = [] { return (torch::arange(1, 4) / torch::full({}, 7)).requires_grad_(); };
  const Tensor eager = scale();
  nn::ParameterDict net;
  {
    const EmptyInit empty = init_empty_weights();
    net->insert("scale", scale());
  }
  torch::set_default_dtype(caffe2::TypeMeta::Make<float>());
  EXPECT_TRUE(net->get("scale").is_meta());
  materialize(*net);
  EXPECT_EQ(torch::get_default_dtype(), caffe2::TypeMeta::Make<float>());
  EXPECT_TRUE(net->get("scale").equal(eager));
}

// Threads that take turns at one generator have its numbers as without scopes.
TEST(InitEmptyWeights, ThreadsThatRecordAtOnceShareAGenerator) {
  torch::manual_seed(kSeed);
  const std::vector<nn::Linear> eager = {nn::Linear(3, 3), nn::Linear(3, 2), nn::Linear(2, 3)};
  const Tensor after = random_state();
  for (const bool second_first : {false, true}) {
    torch::manual_seed(kSeed);
    std::vector<nn::Linear> layers(3, nullptr);
    std::binary_semaphore go(0), back(0);
    std::thread other([&] {
      const EmptyInit empty = init_empty_weights();
      go.acquire();
      layers[1] = nn::Linear(3, 2);
      back.release();
      go.acquire();
    });
    {
      const EmptyInit empty = init_empty_weights();
      layers[0] = nn::Linear(3, 3);
      go.release();
      back.acquire();
      layers[2] = nn::Linear(2, 3);
    }
    go.release();
    other.join();
    for (const size_t i :
         second_first ? std::vector<size_t>{1, 2, 0} : std::vector<size_t>{0, 1, 2}) {
      materialize(*layers[i]);
    }
    for (size_t i = 0; i < layers.size(); ++i) {
      EXPECT_TRUE(layers[i]->weight.equal(eager[i]->weight)) << i;
      EXPECT_TRUE(layers[i]->bias.equal(eager[i]->bias)) << i;
    }
    EXPECT_TRUE(random_state().equal(after));
  }
}

TEST(InitEmptyWeights, ThreadsHaveScopesOfTheirOwn) {
  std::vector<nn::Linear> layers(2, nullptr);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < layers.size(); ++i) {
    threads.emplace_back([&layers, i] {
      for (int repeat = 0; repeat < 20; ++repeat) {
        const EmptyInit empty = init_empty_weights();
        layers[i] = nn::Linear(8, 8);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (nn::Linear& layer : layers) {
    EXPECT_TRUE(layer->weight.is_meta());
    materialize(*layer);
    EXPECT_TRUE(layer->weight.abs().le(1 / std::sqrt(8.0)).all().item<bool>());
  }
}

TEST(InitEmptyWeights, AnEmptyModelSaysSoInAForwardPass) {
  const Built empty = build_empty(kinds()[0]);
  try {
    empty.forward();
    FAIL();
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("meta"));
  }
}

// LibTorch makes a clone by constructing it anew and copying into it.
TEST(InitEmptyWeights, AnEmptyModuleIsClonedInsideAScope) {
  torch::manual_seed(kSeed);
  const nn::Linear eager(4, 3);
  torch::manual_seed(kSeed);
  auto layer = [] {
    const EmptyInit empty = init_empty_weights();
    return nn::Linear(4, 3);
  }();
  EXPECT_THROW(layer->clone(), c10::Error) << "values that there are not cannot be copied";
  const auto copy = [&] {
    const EmptyInit empty = init_empty_weights();
    return std::dynamic_pointer_cast<nn::LinearImpl>(layer->clone());
  }();
  EXPECT_TRUE(copy->weight.is_meta());
  materialize(*copy);
  EXPECT_TRUE(copy->weight.equal(eager->weight));
  EXPECT_TRUE(layer->weight.is_meta());
  materialize(*layer);
  EXPECT_TRUE(layer->weight.equal(eager->weight));
  EXPECT_FALSE(layer->weight.is_alias_of(copy->weight));
}

TEST(InitEmptyWeights, RefusesToInitialiseAModelOfAnEarlierScope) {
  const Built empty = build_empty(kinds()[0]);
  const EmptyInit scope = init_empty_weights();
  const torch::NoGradGuard no_grad;
  EXPECT_THROW(empty.module->parameters()[0].zero_(), c10::Error);
}

TEST(Materialize, NamesTensorsOfWhichNothingIsKnown) {
  auto net = [] {
    const DefaultDeviceScope meta(c10::kMeta);
    return nn::Linear(2, 3);
  }();
  EXPECT_THAT(value_error_of([&] { materialize(*net); }),
              AllOf(HasSubstr("weight, bias"), HasSubstr("init_empty_weights")));
  EXPECT_THAT(value_error_of([&] { recorded_values({net->weight}); }), HasSubstr("recorded"));
  nn::Linear with_memory(2, 3);
  materialize(*with_memory);
}

TEST(Materialize, GivesATieItsValuesUnderAnyOfItsNames) {
  const Eager eager(kinds()[7]);
  const Built empty = build_empty(kinds()[7]);
  materialize(*empty.module, {.filter = [](const auto& name) { return name == "head.weight"; }});
  const auto parameters = empty.module->named_parameters();
  EXPECT_TRUE(parameters["tokens.weight"].is_same(parameters["head.weight"]));
  EXPECT_TRUE(
      parameters["tokens.weight"].equal(eager.model.module->named_parameters()["tokens.weight"]));
  EXPECT_TRUE(parameters["positions"].is_meta());
}

TEST(Materialize, GivesValuesWithoutChangingTheModel) {
  const Eager eager(kinds()[7]);
  const Built empty = build_empty(kinds()[7]);
  const auto parameters = empty.module->named_parameters();
  const Tensor& weight = parameters["block.self_attn.in_proj_weight"];
  const std::vector<Tensor> values = recorded_values({weight, weight});
  EXPECT_TRUE(weight.is_meta());
  EXPECT_TRUE(values[0].is_alias_of(values[1]));
  EXPECT_TRUE(
      values[0].equal(eager.model.module->named_parameters()["block.self_attn.in_proj_weight"]));
  values[0].zero_();
  materialize(*empty.module);
  EXPECT_TRUE(random_state().equal(eager.after));
  expect_equal(empty, eager.model);
}

TEST(Materialize, RefusesWhenAnInputHasChanged) {
  const Tensor initial = torch::ones({3});
  nn::Linear net{nullptr};
  {
    const EmptyInit empty = init_empty_weights();
    net = nn::Linear(3, 1);
    const torch::NoGradGuard no_grad;
    net->weight.copy_(initial);
  }
  initial.zero_();
  EXPECT_THAT(value_error_of([&] { materialize(*net); }), HasSubstr("changed since"));
  EXPECT_TRUE(net->weight.is_meta());
}

TEST(Materialize, LeavesTensorsWithMemoryAlone) {
  const Built empty = build_empty(kinds()[0]);
  materialize(*empty.module, {.filter = [](const auto& name) { return name == "0.weight"; }});
  const Tensor weight = empty.module->named_parameters()["0.weight"];
  {
    const torch::NoGradGuard no_grad;
    weight.fill_(3);
  }
  materialize(*empty.module);
  EXPECT_TRUE(weight.eq(3).all().item<bool>());
}

TEST(Materialize, ResetsAGradientAccumulatorThatThereWas) {
  const Built empty = build_empty(kinds()[0]);
  // Makes the accumulators of tensors without memory.
  const Tensor unused = empty.module->parameters()[0].sum();
  materialize(*empty.module);
  expect_equal(empty, Eager(kinds()[0]).model);
}

}  // namespace
}  // namespace accelerate
