// Trains three models with packages beside the same models as they are, for ci/compile.sh.
//
//   packages --version      the release of LibTorch
//   accelerate compile packages [--memory_budget SHARE]
//   packages [--memory_budget SHARE]
//   packages --once [WHAT]  calls of a small region, for packages that were tampered with, or with
//                           another size, stride, dtype, count or device
//   packages --times ROUNDS
//   packages --transformer blocks|whole
//
// Each model trains 20 steps; weights are changed in place behind the 10th, and load_state brings
// back those of the 5th behind the 15th. A line for each model tells the largest relative
// difference of losses and parameters; the exit code is 1 if one is above 1e-5, or if a region ran
// without its package.
//
// With --times it prints what packages bring to a block of a transformer, in rows of the table of
// accelerate/docs/compile.md: the median of so many rounds, in which 20 steps with and 20 without a
// package take turns, on one thread. With 0 rounds the blocks are only recorded.
//
// With --transformer it calls the transformer alone, whose 24 blocks are regions that share one
// package, or which is one region as a whole.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>
#include <torch/version.h>
#include <nlohmann/json.hpp>

#include "accelerate/accelerate.h"
#include "accelerate/compile/backends.h"
#include "accelerate/compile/compile_regions.h"
#include "accelerate/compile/packages/package.h"
#include "accelerate/compile/technique.h"
#include "accelerate/platform/environment.h"
#include "accelerate/platform/host_files.h"
#include "accelerate/process/run.h"
#include "accelerate/testing/transformer_blocks.h"

namespace accelerate {
namespace {

using torch::Tensor;
namespace nn = torch::nn;

constexpr int kSteps = 20;
constexpr double kTolerance = 1e-5;
constexpr int kBlocks = 24;

// ---- Models.

struct ConvNetImpl : nn::Module {
  Tensor forward(const Tensor& x) { return head(torch::relu(norm(conv(x))).mean({2, 3})); }
  nn::Conv2d conv = register_module("conv", nn::Conv2d(nn::Conv2dOptions(2, 8, 3).padding(1)));
  nn::BatchNorm2d norm = register_module("norm", nn::BatchNorm2d(8));
  nn::Linear head = register_module("head", nn::Linear(8, 5));
};
TORCH_MODULE(ConvNet);

struct TransformerImpl : nn::Module {
  TransformerImpl() {
    for (int i = 0; i < kBlocks; ++i)
      blocks->push_back(TransformerBlock(/*width=*/32, /*heads=*/2));
  }
  Tensor forward(const Tensor& tokens) {
    Tensor x = embed(tokens);
    for (size_t i = 0; i < blocks->size(); ++i) x = block(blocks->ptr<TransformerBlockImpl>(i), x);
    return head(x.mean(1));
  }
  nn::Embedding embed = register_module("embed", nn::Embedding(50, 32));
  nn::ModuleList blocks = register_module("blocks", nn::ModuleList());
  nn::Linear head = register_module("head", nn::Linear(32, 5));
};
TORCH_MODULE(Transformer);

struct WordsImpl : nn::Module {
  Tensor forward(const Tensor& tokens) { return head(torch::tanh(embed(tokens)).mean(1)); }
  nn::Embedding embed = register_module("embed", nn::Embedding(50, 16));
  nn::Linear head = register_module("head", nn::Linear(16, 5));
};
TORCH_MODULE(Words);

// ---- Training.

double difference(const Tensor& a, const Tensor& b) {
  const double scale = std::max(1.0, a.abs().max().item<double>());
  return (a - b).abs().max().item<double>() / scale;
}

struct Step {
  Tensor input, target;
};

// Losses and at last all parameters and buffers.
template <typename Net>
std::vector<Tensor> train(const Net& net, const std::vector<Step>& steps,
                          const std::function<Tensor(const Tensor&)>& call) {
  const TemporaryFolder folder;
  Accelerator accelerator;
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  std::vector<Tensor> values;
  for (size_t step = 0; step < steps.size(); ++step) {
    optimizer.zero_grad();
    const Tensor loss = nn::functional::cross_entropy(call(steps[step].input), steps[step].target);
    accelerator.backward(loss);
    optimizer.step();
    values.push_back(loss.detach());
    if (step == 5) accelerator.save_state(folder.path("state"));
    if (step == 10) {
      const torch::NoGradGuard no_grad;
      for (Tensor& each : net->parameters()) each.mul_(0.9);
    }
    if (step == 15) accelerator.load_state(folder.path("state"));
  }
  for (const Tensor& each : net->parameters()) values.push_back(each.detach());
  for (const Tensor& each : net->buffers()) values.push_back(each);
  return values;
}

template <typename Net>
bool compare(const char* name, const TorchDynamoPlugin& plugin, int regions,
             const std::function<Tensor()>& input) {
  torch::manual_seed(1);
  std::vector<Step> steps;
  for (int i = 0; i < kSteps; ++i) steps.push_back({input(), torch::randint(5, {4})});
  torch::manual_seed(2);
  Net plain;
  torch::manual_seed(2);
  Net compiled;
  auto model = compile_regions(compiled, plugin);
  const auto expected = train(plain, steps, [&](const Tensor& x) { return plain->forward(x); });
  const auto got = train(compiled, steps, [&](const Tensor& x) { return Tensor(model(x)); });
  double largest = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    largest = std::max(largest, difference(expected[i].to(at::kDouble), got[i].to(at::kDouble)));
  }
  const CompileReport report = *compile_report(model);
  const bool is_compiled = report.programs == 1 && report.compiled == regions &&
                           report.compiled_calls == regions * (kSteps - 2);
  std::printf("%s: %d regions, %d program, %d calls of it; largest difference %.1e\n", name,
              static_cast<int>(report.regions), static_cast<int>(report.programs),
              static_cast<int>(report.compiled_calls), largest);
  for (const auto& [why, count] : report.not_compiled) std::printf("  %s\n", why.c_str());
  return is_compiled && largest <= kTolerance;
}

// That a package alone checks nothing of what it gets, and that the region's guards do.
bool is_unchecked(const TorchDynamoPlugin& plugin) {
  Words net;
  auto model = compile_regions(net, plugin);
  const torch::NoGradGuard no_grad;
  net->eval();
  for (int i = 0; i < 2; ++i) model(torch::zeros({4, 6}, at::kLong));
  const std::vector<std::string> texts = find_technique<CompileTechnique>(model)->texts();
  if (texts.size() != 1) return false;
  const Environment& environment = Runtime::current().environment();
  const auto cache =
      region_cache([&](std::string_view each) { return environment.get_or(each, ""); });
  nlohmann::ordered_json options = *plugin.options;
  const auto package =
      find_package(*cache, {.libtorch = TORCH_VERSION, .options = options.dump(), .text = texts[0]},
                   RegionMachine::current());
  if (!package.ok()) return true;  // nothing to show where it is only recorded
  const auto code = load_package(*package, parse_region(texts[0]));
  // Undefined: an operator that the package calls refuses what it gets.
  const auto alone = [&](const Tensor& tokens, at::ScalarType dtype) {
    std::vector<Tensor> inputs;
    for (const Tensor& each : net->parameters()) inputs.push_back(each.to(dtype));
    inputs.push_back(tokens);
    try {
      return code->forward(inputs).outputs.at(0).to(at::kDouble);
    } catch (const std::exception&) {
      return Tensor();
    }
  };
  bool is_well = true;
  const auto check = [&](const char* what, const Tensor& tokens, const Tensor& given) {
    const Tensor expected = net->forward(tokens).to(at::kDouble);
    const bool is_wrong = !given.defined() || !given.sizes().equals(expected.sizes()) ||
                          !(difference(given, expected) < 1e-3);
    const bool is_guarded = difference(model(tokens).to(at::kDouble), expected) < kTolerance;
    std::printf("another %s: the package alone is %s, the region %s\n", what,
                given.defined() ? (is_wrong ? "wrong" : "right") : "an error",
                is_guarded ? "right" : "wrong");
    is_well &= is_wrong && is_guarded;
  };
  const Tensor words = torch::arange(24).view({4, 6});
  is_well &= difference(alone(words, at::kFloat), net->forward(words).to(at::kDouble)) < kTolerance;
  const Tensor more = torch::arange(48).view({8, 6});
  check("size", more, alone(more, at::kFloat));
  const Tensor turned = torch::arange(24).view({6, 4}).t();
  check("stride", turned, alone(turned, at::kFloat));
  const Tensor garbage = alone(words, at::kDouble);
  net->to(at::kDouble);
  check("dtype", words, garbage);
  return is_well;
}

struct ElsewhereImpl : nn::Module {
  Tensor forward(const Tensor& x) { return torch::tanh(x.mm(weight)); }
  Tensor weight = register_parameter("weight", torch::ones({4, 5}, torch::kMeta));
};
TORCH_MODULE(Elsewhere);

template <typename Net>
int call_thrice(Net& net, const TorchDynamoPlugin& plugin, const Tensor& input) {
  auto model = compile_regions(net, plugin);
  for (int i = 0; i < 3; ++i) {
    const Tensor y = model(input);
    const Tensor expected = net->forward(input);
    if (!y.is_meta() && difference(y.detach(), expected.detach()) > kTolerance) return 1;
    y.sum().backward();
  }
  const CompileReport report = *compile_report(model);
  std::printf("%d calls of a package\n", static_cast<int>(report.compiled_calls));
  return 0;
}

// `change`: what is not as in the region that a package was made of; empty: nothing.
int once(const TorchDynamoPlugin& plugin, const std::string& change) {
  torch::manual_seed(3);
  if (change == "device") {
    Elsewhere net;
    return call_thrice(net, plugin, torch::ones({2, 4}, torch::kMeta));
  }
  Words net;
  Tensor tokens = torch::randint(50, {4, 6});
  if (change == "size") tokens = torch::randint(50, {5, 6});
  if (change == "stride") tokens = torch::randint(50, {6, 4}).t();
  if (change == "dtype") net->to(at::kDouble);
  if (change == "count") net->register_parameter("more", torch::zeros({1}));
  return call_thrice(net, plugin, tokens);
}

// ---- What packages bring.

// The seconds of 20 steps, of which each has a forward and a backward pass.
double seconds_of(nn::Module& module, const std::function<Tensor()>& call) {
  const auto start = std::chrono::steady_clock::now();
  for (int step = 0; step < 20; ++step) {
    module.zero_grad();
    call().square().mean().backward();
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

int times(const TorchDynamoPlugin& plugin, int rounds) {
  at::set_num_threads(1);
  for (const int64_t width : {64, 128, 256, 512}) {
    torch::manual_seed(4);
    const int64_t heads = std::max<int64_t>(2, width / 64);
    TransformerBlock plain(width, heads), compiled(width, heads);
    auto model = compile_regions(compiled, plugin);
    const Tensor x = torch::randn({4, 64, width});
    for (int i = 0; i < 3; ++i) Tensor(model(x)).square().mean().backward();
    std::vector<double> shares;
    for (int round = 0; round < rounds; ++round) {
      const double without = seconds_of(*plain, [&] { return plain->forward(x); });
      shares.push_back(seconds_of(*compiled, [&] { return Tensor(model(x)); }) / without);
    }
    if (shares.empty()) continue;
    const auto middle = shares.begin() + rounds / 2;
    std::ranges::nth_element(shares, middle);
    const double less = 100 * (1 - *middle);
    std::printf(
        "| one block of gpt on a CPU, width %d | measured, one thread | %.0f %% %s time |\n",
        static_cast<int>(width), std::abs(less), less < 0 ? "more" : "less");
  }
  return 0;
}

int call_transformer(TorchDynamoPlugin plugin, bool is_whole) {
  plugin.use_regional_compilation = !is_whole;
  torch::manual_seed(5);
  Transformer net;
  Accelerator accelerator({.dynamo_plugin = plugin});
  auto model = accelerator.prepare(net);
  double largest = 0;
  for (int i = 0; i < 4; ++i) {
    const Tensor tokens = torch::randint(50, {4, 12});
    const Tensor got = model(tokens);
    largest = std::max(largest, difference(got.detach(), net->forward(tokens).detach()));
    got.square().sum().backward();
  }
  const CompileReport report = *compile_report(model);
  std::printf("%d regions, %d program, %d calls of it; largest difference %.1e\n",
              static_cast<int>(report.regions), static_cast<int>(report.programs),
              static_cast<int>(report.compiled_calls), largest);
  return largest <= kTolerance ? 0 : 1;
}

int train_and_compare(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  TorchDynamoPlugin plugin{.backend = DynamoBackend::kInductor,
                           .options = nlohmann::ordered_json::object()};
  if (const auto found = std::ranges::find(words, "--once"); found != words.end()) {
    return once(plugin, found + 1 != words.end() ? *(found + 1) : "");
  }
  plugin.fullgraph = true;
  if (const auto found = std::ranges::find(words, "--times"); found != words.end()) {
    return times(plugin, std::stoi(*(found + 1)));
  }
  if (const auto found = std::ranges::find(words, "--transformer"); found != words.end()) {
    return call_transformer(plugin, found + 1 != words.end() && *(found + 1) == "whole");
  }
  TorchDynamoPlugin budget = plugin;
  if (const auto found = std::ranges::find(words, "--memory_budget"); found != words.end()) {
    (*budget.options)["memory_budget"] = std::stod(*(found + 1));
  }
  bool is_well = true;
  is_well &= compare<ConvNet>("convnet with batch norm", plugin, 1,
                              [] { return torch::randn({4, 2, 8, 8}); });
  is_well &= compare<Transformer>("transformer", budget, kBlocks,
                                  [] { return torch::randint(50, {4, 12}); });
  is_well &= compare<Words>("embedding", plugin, 1, [] { return torch::randint(50, {4, 6}); });
  plugin.fullgraph = false;
  is_well &= is_unchecked(plugin);
  return is_well ? 0 : 1;
}

}  // namespace
}  // namespace accelerate

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "--version") == 0) {
    std::puts(TORCH_VERSION);
    return 0;
  }
  return accelerate::run(argc, argv, accelerate::train_and_compare);
}
