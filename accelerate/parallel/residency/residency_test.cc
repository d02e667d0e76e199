// Modules whose parameters are in memory only while they are used compute what they compute
// otherwise, bit by bit.
#include "accelerate/parallel/residency/residency.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/ThreadLocalState.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/operators/checkpoint.h"
#include "accelerate/operators/managed_storage.h"
#include "accelerate/testing/fake_runtime.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using torch::Tensor;
namespace nn = torch::nn;

int64_t live_bytes = 0, peak_bytes = 0;  // of all sources' memory

void free_block(void* block) {
  live_bytes -= *static_cast<int64_t*>(block);
  std::free(block);
}

// Keeps the values in tensors of its own.
class Copies final : public ParameterSource {
 public:
  Copies(std::string name, std::vector<Tensor> parameters)
      : name_(std::move(name)), parameters_(std::move(parameters)) {
    for (const Tensor& parameter : parameters_) values_.push_back(parameter.detach().clone());
  }

  void begin() override {
    if (fails) throw std::runtime_error("the values are lost");
    calls.push_back("begin " + name_);
  }
  void drop() override { calls.push_back("drop " + name_); }
  std::vector<c10::DataPtr> finish() override {
    calls.push_back("finish " + name_);
    std::vector<c10::DataPtr> memory;
    for (const Tensor& values : values_) {
      constexpr size_t kHeader = 64;
      const size_t bytes = values.nbytes();
      auto* block =
          static_cast<char*>(std::aligned_alloc(kHeader, kHeader + (bytes + 63) / 64 * 64));
      *reinterpret_cast<int64_t*>(block) = static_cast<int64_t>(bytes);
      live_bytes += static_cast<int64_t>(bytes);
      peak_bytes = std::max(peak_bytes, live_bytes);
      std::memcpy(block + kHeader, values.const_data_ptr(), bytes);
      memory.emplace_back(block + kHeader, block, &free_block, c10::Device(c10::kCPU));
    }
    return memory;
  }
  void store() override {
    for (size_t i = 0; i < values_.size(); ++i) values_[i].copy_(parameters_[i]);
  }

  static inline bool fails = false;
  static inline std::vector<std::string> calls;  // of all, in order

 private:
  const std::string name_;
  const std::vector<Tensor> parameters_;
  std::vector<Tensor> values_;
};

// A group for each module with parameters.
std::shared_ptr<Residency> managed(const nn::Module& module, Residency::Options options = {}) {
  auto residency = std::make_shared<Residency>(std::move(options));
  for (const auto& part : module.named_modules("", /*include_self=*/true)) {
    Residency::Group group;
    std::vector<Tensor> parameters;
    for (const auto& item : part.value()->named_parameters(/*recurse=*/false)) {
      if (storage_owner(item.value()) != nullptr) continue;  // tied
      group.parameters.push_back({part.key() + "." + item.key(), item.value()});
      parameters.push_back(item.value());
    }
    if (parameters.empty()) continue;
    group.source = std::make_unique<Copies>(part.key(), std::move(parameters));
    residency->add(std::move(group), c10::kCPU);
  }
  return residency;
}

struct Outcome {
  Tensor loss;
  std::vector<Tensor> gradients;
};

using Loss = std::function<Tensor()>;

Outcome run(const nn::Module& module, const Loss& loss, Residency* residency = nullptr) {
  torch::manual_seed(3);
  for (const Tensor& parameter : module.parameters()) parameter.mutable_grad().reset();
  Tensor result;
  if (residency != nullptr) {
    const Residency::Pass pass(*residency);
    result = loss();
  } else {
    result = loss();
  }
  // Everything goes between the passes, so that the backward pass brings what autograd saved.
  if (residency != nullptr) residency->release_all();
  result.backward();
  Outcome outcome{.loss = result.detach()};
  for (const Tensor& parameter : module.parameters()) outcome.gradients.push_back(parameter.grad());
  return outcome;
}

void expect_equal(const Outcome& a, const Outcome& b) {
  EXPECT_TRUE(torch::equal(a.loss, b.loss)) << a.loss << b.loss;
  ASSERT_EQ(a.gradients.size(), b.gradients.size());
  for (size_t i = 0; i < a.gradients.size(); ++i) {
    ASSERT_EQ(a.gradients[i].defined(), b.gradients[i].defined()) << i;
    if (a.gradients[i].defined()) EXPECT_TRUE(torch::equal(a.gradients[i], b.gradients[i])) << i;
  }
}

void expect_same(const nn::Module& module, const Loss& loss) {
  const Outcome plain = run(module, loss);
  const auto residency = managed(module);
  for (const Tensor& parameter : module.parameters()) EXPECT_TRUE(is_absent(parameter));
  for (int i = 0; i < 2; ++i) expect_equal(run(module, loss, residency.get()), plain);
  EXPECT_EQ(residency->bytes_in_memory(), 0);
  EXPECT_EQ(live_bytes, 0);
}

struct TwoImpl : nn::Module {
  TwoImpl() {
    a = register_module("a", nn::Linear(8, 8));
    b = register_module("b", nn::Linear(8, 8));
    table = register_module("table", nn::Embedding(10, 8));
    norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({8})));
  }
  nn::Linear a{nullptr}, b{nullptr};
  nn::Embedding table{nullptr};
  nn::LayerNorm norm{nullptr};
};
TORCH_MODULE(Two);

TEST(Residency, ComputesTheSameInLayersThatReadTheirWeightsInTheirOwnWays) {
  const Tensor sequence = torch::randn({5, 4, 16});
  nn::LSTM lstm(nn::LSTMOptions(16, 32).num_layers(2).bidirectional(true));
  expect_same(*lstm, [&] { return std::get<0>(lstm(sequence)).square().mean(); });
  nn::GRU gru(nn::GRUOptions(16, 32).num_layers(2));
  expect_same(*gru, [&] { return std::get<0>(gru(sequence)).square().mean(); });
  nn::MultiheadAttention attention(16, 4);
  expect_same(*attention,
              [&] { return std::get<0>(attention(sequence, sequence, sequence)).square().mean(); });
  nn::TransformerEncoderLayer encoder(nn::TransformerEncoderLayerOptions(16, 4));
  expect_same(*encoder, [&] { return encoder(sequence).square().mean(); });
  nn::Sequential images(nn::Conv2d(nn::Conv2dOptions(3, 8, 3)), nn::BatchNorm2d(8),
                        nn::Functional([](Tensor x) { return torch::relu_(x); }), nn::Flatten(),
                        nn::Linear(8 * 36, 10));
  const Tensor pixels = torch::randn({4, 3, 8, 8});
  expect_same(*images, [&] { return images->forward(pixels).square().mean(); });
}

TEST(Residency, ComputesTheSameWithTiesViewsAndSeveralGroupsAtOnce) {
  const Tensor x = torch::randn({4, 8}), words = torch::randint(10, {4, 3});
  Two net;
  expect_same(*net, [&] {
    return torch::matmul(net->norm(net->table(words)), net->table->weight.t()).square().mean();
  });
  net = Two();
  expect_same(*net, [&] { return x.matmul(net->a->weight.t().contiguous()).square().mean(); });
  net = Two();
  expect_same(*net, [&] {
    const Tensor both = torch::cat({net->a->weight, net->b->weight, net->table->weight});
    return x.matmul(both.t()).square().mean();
  });
  net = Two();
  expect_same(*net,
              [&] { return torch::addmm(net->a->bias, x, net->b->weight.t()).square().mean(); });
  net = Two();
  expect_same(*net, [&] {
    const auto halves = net->a->weight.chunk(2, 0);
    const Tensor column = net->b->weight.index({torch::indexing::Slice(0, 4), 0});
    return (x.matmul((halves[0] + 0.1).t()) + column).square().mean();
  });
  // A module that two others share.
  nn::Linear shared(8, 8);
  nn::Sequential twice(shared, nn::Tanh(), shared);
  expect_same(*twice, [&] { return twice->forward(x).square().mean(); });
}

TEST(Residency, ComputesTheSameWhenPassesAreRepeated) {
  FakeRuntime runtime;
  const RuntimeScope scope(runtime);
  Two net;
  const Tensor x = torch::randn({4, 8}).requires_grad_();
  expect_same(*net, [&] {
    return checkpoint([&](Tensor in) { return torch::tanh(net->b(net->a(std::move(in)))); }, x * 2)
        .square()
        .mean();
  });
  net = Two();
  expect_same(*net, [&] {
    const Tensor loss = net->b(torch::tanh(net->a(x))).square().mean();
    return torch::autograd::grad({loss}, {x}, {}, true, /*create_graph=*/true)[0].square().sum();
  });
  net = Two();
  expect_same(*net, [&] {
    const Tensor loss = net->b(torch::tanh(net->a(x))).square().mean();
    loss.backward({}, /*keep_graph=*/true);
    return loss;
  });
}

TEST(Residency, HasTwoGroupsInMemoryAndNoneBetweenSteps) {
  nn::Sequential net;
  for (int i = 0; i < 6; ++i) net->push_back(nn::Linear(16, 16));
  const auto residency = managed(*net);
  constexpr int64_t kLayer = (16 * 16 + 16) * 4;
  const Tensor x = torch::randn({2, 16});
  Tensor loss;
  {
    const Residency::Pass pass(*residency);
    Tensor y = x;
    for (auto& layer : *net) {
      y = layer.forward<Tensor>(y);
      EXPECT_LE(live_bytes, 2 * kLayer);
    }
    loss = y.sum();
  }
  EXPECT_EQ(live_bytes, 2 * kLayer) << "the backward pass begins with the last layers";
  EXPECT_EQ(residency->bytes_in_memory(), live_bytes);
  EXPECT_EQ(residency->times_brought(), 6);
  loss.backward();
  EXPECT_EQ(live_bytes, 0);
  EXPECT_EQ(residency->times_brought(), 9);
  {
    const torch::NoGradGuard no_grad;
    const Residency::Pass pass(*residency);
    net->forward(x);
  }
  EXPECT_EQ(live_bytes, 0);
  {
    const torch::InferenceMode inference;
    const Residency::Pass pass(*residency);
    net->forward(x);
  }
  EXPECT_EQ(live_bytes, 0);
}

template <typename Body>
std::string error_of(Body body) {
  try {
    body();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

// Layers "0" to "3", each a group; those in `path` are used.
Tensor loss_along(nn::Sequential& net, const std::vector<int>& path, const Tensor& x) {
  Tensor y = x;
  for (const int layer : path) y = torch::tanh(net->at<nn::LinearImpl>(layer).forward(y));
  return y.square().sum();
}

struct Step {
  Outcome outcome;
  std::vector<std::string> calls;
};

Step step_along(nn::Sequential& net, const std::vector<int>& path, const Tensor& x,
                Residency* residency) {
  for (const Tensor& parameter : net->parameters()) parameter.mutable_grad().reset();
  Copies::calls.clear();
  Tensor loss;
  if (residency != nullptr) {
    const Residency::Pass pass(*residency);
    loss = loss_along(net, path, x);
    EXPECT_LE(live_bytes, 2 * (16 * 16 + 16) * 4);
  } else {
    loss = loss_along(net, path, x);
  }
  loss.backward();
  EXPECT_EQ(live_bytes, 0);
  Step step{.outcome = {.loss = loss.detach()}, .calls = std::exchange(Copies::calls, {})};
  for (const Tensor& parameter : net->parameters()) {
    step.outcome.gradients.push_back(parameter.grad());
  }
  return step;
}

nn::Sequential four_layers() {
  nn::Sequential net;
  for (int i = 0; i < 4; ++i) net->push_back(nn::Linear(16, 16));
  return net;
}

TEST(Residency, BringsTheNextGroupWhileOneIsUsed) {
  const Tensor x = torch::randn({2, 16});
  nn::Sequential net = four_layers();
  const std::vector<int> all = {0, 1, 2, 3};
  const Outcome plain = step_along(net, all, x, nullptr).outcome;
  const auto residency = managed(*net);
  for (int i = 0; i < 3; ++i) {
    const Step step = step_along(net, all, x, residency.get());
    EXPECT_THAT(step.calls, ElementsAre("begin 0", "finish 0", "begin 1", "finish 1", "begin 2",
                                        "finish 2", "begin 3", "finish 3", "begin 1", "finish 1"));
    expect_equal(step.outcome, plain);
  }
  // The next one is on its way while one is used, once a step was recorded.
  const torch::NoGradGuard no_grad;
  for (const bool knows : {false, true}) {
    Copies::calls.clear();
    const Residency::Pass pass(*residency);
    net->at<nn::LinearImpl>(0).forward(x);
    EXPECT_EQ(Copies::calls.back(), knows ? "begin 1" : "finish 0");
    net->at<nn::LinearImpl>(1).forward(x);
  }
}

TEST(Residency, BringsNothingAheadWithoutPrefetch) {
  nn::Sequential net = four_layers();
  const auto residency = managed(*net, {.prefetch = false});
  const torch::NoGradGuard no_grad;
  for (int i = 0; i < 2; ++i) {
    Copies::calls.clear();
    const Residency::Pass pass(*residency);
    net->at<nn::LinearImpl>(0).forward(torch::ones({1, 16}));
    EXPECT_THAT(Copies::calls, ElementsAre("begin 0", "finish 0"));
    net->at<nn::LinearImpl>(1).forward(torch::ones({1, 16}));
  }
}

TEST(Residency, BringsTheListedGroupsWhileOneIsUsed) {
  nn::Sequential net = four_layers();
  const auto residency = managed(*net);
  residency->set_ahead(0, /*in_backward=*/false, {1, 2});
  residency->set_ahead(1, /*in_backward=*/false, {3});
  residency->set_ahead(2, /*in_backward=*/false, {});
  const torch::NoGradGuard no_grad;
  for (int i = 0; i < 2; ++i) {
    Copies::calls.clear();
    {
      const Residency::Pass pass(*residency);
      Tensor x = torch::ones({1, 16});
      for (int layer = 0; layer < 4; ++layer) x = net->at<nn::LinearImpl>(layer).forward(x);
    }
    EXPECT_THAT(Copies::calls, ElementsAre("begin 0", "finish 0", "begin 1", "begin 2", "finish 1",
                                           "begin 3", "finish 2", "finish 3"));
  }
}

TEST(Residency, HoldsAGroupUntilAPassHasUsedIt) {
  nn::Sequential net = four_layers();
  const auto residency = managed(*net);
  const Tensor x = torch::ones({1, 16}), weight = net->at<nn::LinearImpl>(2).weight;
  const torch::NoGradGuard no_grad;
  EXPECT_THROW(weight.sum(), c10::Error);
  residency->unshard(2);
  weight.sum();
  {
    const Residency::Pass pass(*residency);
    net->at<nn::LinearImpl>(0).forward(x);
    net->at<nn::LinearImpl>(1).forward(x);
    EXPECT_THROW(residency->unshard(1), c10::ValueError);
    net->at<nn::LinearImpl>(2).forward(x);
  }
  EXPECT_TRUE(is_absent(weight));
  residency->unshard(2);
  residency->reshard(2);
  EXPECT_THROW(weight.sum(), c10::Error);
  EXPECT_EQ(live_bytes, 0);
}

TEST(Residency, RecordsAStepAnewThatUsesOtherGroups) {
  const Tensor x = torch::randn({2, 16});
  nn::Sequential net = four_layers();
  const std::vector<int> all = {0, 1, 2, 3}, some = {0, 2, 1};
  const Outcome plain_all = step_along(net, all, x, nullptr).outcome;
  const Outcome plain_some = step_along(net, some, x, nullptr).outcome;
  std::vector<int> compared;
  const auto residency =
      managed(*net, {.compare_use = [&](int group) { compared.push_back(group); }});
  for (int i = 0; i < 2; ++i) step_along(net, all, x, residency.get());
  EXPECT_THAT(compared, ElementsAre(0, 1, 2, 3, 2, 1, UseTrace::kNone)) << "in the first step";
  const UseTrace& trace = residency->with_gradients();
  EXPECT_FALSE(trace.departed());
  const Step other = step_along(net, some, x, residency.get());
  expect_equal(other.outcome, plain_some);
  EXPECT_THAT(other.calls, ElementsAre("begin 0", "finish 0", "begin 1", "drop 1", "begin 2",
                                       "finish 2", "begin 1", "finish 1"));
  EXPECT_THAT(trace.uses(), ElementsAre(0, 2, 1, 2));
  EXPECT_TRUE(trace.departed());
  expect_equal(step_along(net, some, x, residency.get()).outcome, plain_some);
  expect_equal(step_along(net, all, x, residency.get()).outcome, plain_all);
  // A pass that no backward pass follows leaves the record as it is.
  {
    const Residency::Pass pass(*residency);
    loss_along(net, all, x);
  }
  expect_equal(step_along(net, all, x, residency.get()).outcome, plain_all);
  EXPECT_EQ(compared.size(), 7);
}

TEST(Residency, DropsWhatIsOnItsWayWhenAPassFails) {
  const Tensor x = torch::randn({2, 16});
  nn::Sequential net = four_layers();
  const std::vector<int> all = {0, 1, 2, 3};
  const auto residency = managed(*net);
  const Outcome first = step_along(net, all, x, residency.get()).outcome;
  EXPECT_THAT(error_of([&] {
                const Residency::Pass pass(*residency);
                net->at<nn::LinearImpl>(0).forward(x);
                throw std::runtime_error("in forward");
              }),
              HasSubstr("in forward"));
  EXPECT_EQ(Copies::calls.back(), "begin 1");
  EXPECT_EQ(live_bytes, 0);
  const Step next = step_along(net, all, x, residency.get());
  EXPECT_EQ(next.calls.front(), "drop 1");
  expect_equal(next.outcome, first);
}

TEST(Residency, RefusesUsesOutsideOfPassesByName) {
  FakeRuntime runtime({.rank = 1, .world_size = 2});
  const RuntimeScope scope(runtime);
  Two net;
  const auto residency = managed(*net);
  const Tensor x = torch::ones({1, 8}), weight = net->b->weight;
  EXPECT_THAT(
      error_of([&] { net->b(x); }),
      AllOf(HasSubstr("uses parameter \"b.bias\" on rank 1 outside of a forward or backward pass"),
            HasSubstr("full_parameters")));
  EXPECT_THAT(error_of([&] { weight.sum(); }), HasSubstr("\"b.weight\""));
  EXPECT_THAT(error_of([&] { net->to(torch::kDouble); }), HasSubstr("\"a.weight\""));
  // What needs no values works.
  EXPECT_EQ(weight.t().sizes(), (std::vector<int64_t>{8, 8}));
  net->b->weight.set_requires_grad(false);
}

TEST(Residency, RefusesWritesInPasses) {
  Two net;
  const auto residency = managed(*net);
  const torch::NoGradGuard no_grad;
  const Residency::Pass pass(*residency);
  net->a(torch::ones({1, 8}));  // brings it
  EXPECT_THAT(
      error_of([&] { net->a->weight.add_(1); }),
      AllOf(HasSubstr("aten::add_ writes to parameter \"a.weight\""), HasSubstr("with writeback")));
  EXPECT_THAT(error_of([&] { net->a->weight[0].copy_(torch::ones({8})); }),
              HasSubstr("writes to parameter \"a.weight\""));
  EXPECT_THAT(error_of([&] { torch::add_out(net->b->bias, torch::ones({8}), 1); }),
              HasSubstr("writes to parameter \"b.bias\""));
}

TEST(Residency, LeavesParametersThatSayWhyTheyAreEmpty) {
  Two net;
  auto residency = managed(*net);
  residency.reset();
  EXPECT_THAT(error_of([&] { net->b(torch::ones({1, 8})); }),
              HasSubstr("\"b.bias\", whose prepared model was freed"));
}

TEST(Residency, SeesOnlyOperatorsThatUseParameters) {
  const auto is_seen = [](const Tensor& tensor) {
    return tensor.key_set().has(c10::DispatchKey::TESTING_ONLY_GenericWrapper);
  };
  Two net;
  const auto residency = managed(*net);
  const Residency::Pass pass(*residency);
  EXPECT_TRUE(is_seen(net->a->weight));
  EXPECT_TRUE(is_seen(net->a->weight.t()));
  EXPECT_TRUE(is_seen(net->a->weight.detach()));
  EXPECT_TRUE(is_seen(net->a->weight.chunk(2)[1].index({0})));
  for (const Tensor& other : {net->a(torch::ones({1, 8})), net->a->weight.clone(),
                              torch::zeros_like(net->a->weight), net->a->weight + 1}) {
    EXPECT_FALSE(is_seen(other));
  }
  EXPECT_FALSE(
      c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::TESTING_ONLY_GenericWrapper));
}

TEST(Residency, IsRightAfterAnException) {
  Two net;
  const Tensor x = torch::randn({4, 8});
  const Loss loss = [&] { return net->b(torch::tanh(net->a(x))).square().mean(); };
  const Outcome plain = run(*net, loss);
  const auto residency = managed(*net);
  Copies::fails = true;
  EXPECT_THAT(error_of([&] { run(*net, loss, residency.get()); }), HasSubstr("values are lost"));
  Copies::fails = false;
  expect_equal(run(*net, loss, residency.get()), plain);
  EXPECT_THAT(error_of([&] {
                const Residency::Pass pass(*residency);
                net->a(x);
                throw std::runtime_error("in forward");
              }),
              HasSubstr("in forward"));
  EXPECT_EQ(live_bytes, 0);
  Tensor failing;
  {
    const Residency::Pass pass(*residency);
    failing = loss();
  }
  residency->release_all();
  Copies::fails = true;
  EXPECT_THAT(error_of([&] { failing.backward(); }), HasSubstr("values are lost"));
  Copies::fails = false;
  expect_equal(run(*net, loss, residency.get()), plain);
  EXPECT_EQ(live_bytes, 0);
}

// As the threads of LibTorch's backward passes are, while the rank's thread waits.
TEST(Residency, IsThereOnEveryThread) {
  Two net;
  const Tensor x = torch::randn({4, 8}), expected = net->a(x).detach();
  const auto residency = managed(*net);
  const Residency::Pass pass(*residency);
  Tensor result;
  std::thread([&] { result = net->a(x).detach(); }).join();
  EXPECT_TRUE(torch::equal(result, expected));
  // With the state that the engine copies to them.
  const at::ThreadLocalState state;
  std::thread([&] {
    const at::ThreadLocalStateGuard guard(state);
    result = net->b(net->a(x)).sum();
    result.backward();
  }).join();
  EXPECT_TRUE(net->a->weight.grad().any().item<bool>());
  EXPECT_EQ(residency->bytes_in_memory(), 0);
}

TEST(WholeParameters, TakesOverParametersThatWereGivenOtherMemory) {
  Two net, other;
  std::stringstream file;
  torch::save(other, file);
  const auto residency = managed(*net);
  const auto expect_weights_of_the_other = [&] {
    for (const auto& item : net->named_parameters()) EXPECT_TRUE(is_absent(item.value()));
    const WholeParameters whole(residency, {.writeback = false});
    for (const auto& item : net->named_parameters()) {
      EXPECT_TRUE(torch::equal(item.value(), other->named_parameters()[item.key()])) << item.key();
    }
  };
  {
    const WholeParameters whole(residency);
    torch::load(net, file);
  }
  expect_weights_of_the_other();
  {
    const WholeParameters whole(residency);
    const torch::NoGradGuard no_grad;
    for (Tensor* weight : {&other->a->weight, &other->table->weight}) weight->mul_(3);
    net->a->weight.set_data(other->a->weight.detach().t().contiguous().t());
    net->table->weight.set_(other->table->weight.detach().clone());
  }
  expect_weights_of_the_other();
  // What is refused, or not to be written back, changes nothing.
  EXPECT_THAT(error_of([&] {
                const WholeParameters whole(residency);
                {
                  const torch::NoGradGuard no_grad;
                  net->a->weight.zero_();
                }
                net->b->to(torch::kDouble);
              }),
              AllOf(HasSubstr("\"b.weight\""), HasSubstr("replaced by one of type Double")));
  EXPECT_EQ(net->b->weight.scalar_type(), torch::kFloat);
  expect_weights_of_the_other();
  {
    const WholeParameters whole(residency, {.writeback = false});
    net->b->weight.set_data(torch::zeros({8, 8}));
  }
  expect_weights_of_the_other();
  EXPECT_EQ(live_bytes, 0);
  // A pass reads the parameters' own memory.
  const Tensor x = torch::randn({4, 8});
  const Loss loss = [&] { return net->b(torch::tanh(net->a(x))).square().mean(); };
  const Loss other_loss = [&] { return other->b(torch::tanh(other->a(x))).square().mean(); };
  expect_equal(run(*net, loss, residency.get()), run(*other, other_loss));
  EXPECT_THAT(error_of([&] { net->b->weight.set_data(torch::zeros({8, 8})); }),
              HasSubstr("uses parameter \"b.weight\" outside of "));
}

TEST(WholeParameters, FillsHostMemoryGroupByGroup) {
  nn::Sequential net(nn::Linear(16, 16), nn::Linear(16, 16), nn::Linear(16, 16));
  constexpr int64_t kLayer = (16 * 16 + 16) * 4;
  std::vector<Tensor> before;
  for (const Tensor& each : net->parameters()) before.push_back(each.detach().clone());
  const auto residency = managed(*net);
  peak_bytes = 0;
  {
    const WholeParameters whole(residency, {.offload_to_cpu = true});
    EXPECT_EQ(peak_bytes, kLayer);
    EXPECT_EQ(live_bytes, 0);
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < before.size(); ++i) {
      EXPECT_TRUE(torch::equal(net->parameters()[i], before[i]));
      net->parameters()[i].mul_(2);
    }
    // In another order in memory.
    Tensor& weight = net->ptr<nn::LinearImpl>(0)->weight;
    weight.set_data(weight.t().contiguous().t());
    for (const auto& options : {WholeParametersOptions{}, {.offload_to_cpu = true}}) {
      EXPECT_THAT(error_of([&] { const WholeParameters inner(residency, options); }),
                  HasSubstr("cannot be inside of"));
    }
    EXPECT_THAT(error_of([&] { const Residency::Pass pass(*residency); }),
                HasSubstr("makes no passes inside"));
  }
  EXPECT_EQ(peak_bytes, kLayer);
  for (const Tensor& each : net->parameters()) EXPECT_TRUE(is_absent(each));
  {
    const WholeParameters whole(residency, {.writeback = false, .offload_to_cpu = true});
    for (size_t i = 0; i < before.size(); ++i) {
      EXPECT_TRUE(torch::equal(net->parameters()[i], before[i] * 2));
    }
    const torch::NoGradGuard no_grad;
    net->parameters()[0].zero_();
  }
  {
    const WholeParameters whole(residency, {.writeback = false});
    EXPECT_TRUE(torch::equal(net->parameters()[0], before[0] * 2));
    EXPECT_THAT(error_of([&] { const WholeParameters inner(residency, {.offload_to_cpu = true}); }),
                HasSubstr("cannot be inside of"));
  }
  EXPECT_EQ(live_bytes, 0);
}

TEST(WholeParameters, TakesPartWithoutValuesOnOtherRanksThanTheFirst) {
  FakeRuntime runtime({.rank = 1, .world_size = 2});
  const RuntimeScope scope(runtime);
  Two net;
  const auto residency = managed(*net);
  peak_bytes = 0;
  {
    const WholeParameters whole(residency, {.writeback = false, .rank0_only = true});
    EXPECT_EQ(residency->times_brought(), 4);
    EXPECT_EQ(live_bytes, 0);
    EXPECT_TRUE(is_absent(net->a->weight));
    EXPECT_THAT(error_of([&] { net->a->weight.sum(); }), HasSubstr("\"a.weight\""));
    EXPECT_THAT(error_of([&] { const Residency::Pass pass(*residency); }),
                HasSubstr("makes no passes inside"));
  }
  EXPECT_LT(peak_bytes, 500) << "the largest group has 10 rows of 8 numbers";
  const WholeParameters whole(residency);
  EXPECT_FALSE(is_absent(net->a->weight));
}

TEST(WholeParameters, ReadsAndChangesValues) {
  Two net;
  const Tensor before = net->a->weight.detach().clone();
  const auto residency = managed(*net);
  {
    const WholeParameters whole(residency);
    EXPECT_TRUE(torch::equal(net->a->weight, before));
    EXPECT_FALSE(is_absent(net->table->weight));
    const torch::NoGradGuard no_grad;
    net->a->weight.mul_(2);
    net->b->bias.data_ptr<float>()[3] = 7;
  }
  EXPECT_EQ(live_bytes, 0);
  EXPECT_TRUE(is_absent(net->a->weight));
  {
    const WholeParameters whole(residency, {.writeback = false});
    EXPECT_TRUE(torch::equal(net->a->weight, before * 2));
    EXPECT_EQ(net->b->bias[3].item<float>(), 7);
    const torch::NoGradGuard no_grad;
    EXPECT_THAT(error_of([&] { net->a->weight.mul_(2); }), HasSubstr("with writeback"));
  }
  EXPECT_THAT(error_of([&] {
                const WholeParameters whole(residency);
                const torch::NoGradGuard no_grad;
                net->a->weight.zero_();
                throw std::runtime_error("changed by mistake");
              }),
              HasSubstr("changed by mistake"));
  {
    const WholeParameters whole(residency, {.writeback = false});
    EXPECT_TRUE(torch::equal(net->a->weight, before * 2));
  }
  EXPECT_EQ(live_bytes, 0);
}

}  // namespace
}  // namespace accelerate
