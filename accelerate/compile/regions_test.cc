// Models whose regions are recorded and run operator by operator, against the same models called
// plainly: equal values, equal gradients, bit by bit.
#include "accelerate/compile/regions.h"

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/autocast_mode.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/UndefinedTensorImpl.h>
#include <c10/util/intrusive_ptr.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "accelerate/base/message_text.h"
#include "accelerate/compile/backends.h"
#include "accelerate/compile/compile_regions.h"
#include "accelerate/compile/packages/package.h"
#include "accelerate/platform/environment.h"
#include "accelerate/platform/file_system.h"
#include "accelerate/platform/host_files.h"
#include "accelerate/platform/simulated_run.h"
#include "accelerate/testing/fake_runtime.h"
#include "accelerate/testing/recorded_warnings.h"
#include "accelerate/testing/transformer_blocks.h"
#include "accelerate/testing/value_error.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using torch::Tensor;
namespace nn = torch::nn;

class RegionsTest : public ::testing::Test {
 protected:
  FakeRuntime runtime_;
  RuntimeScope scope_{runtime_};
};

// With a cache of packages in a folder of its own, which is empty.
class RegionPackagesTest : public RegionsTest {
 protected:
  RegionPackagesTest() { runtime_.environment().set(env::kCompileCache, folder_.path()); }

  const TemporaryFolder folder_;
  const TorchDynamoPlugin packages_ = {.backend = DynamoBackend::kInductor};
};

const TorchDynamoPlugin kInterpreted = {.backend = DynamoBackend::kAotEager};
// What is not recorded is an error.
const TorchDynamoPlugin kStrict = {.backend = DynamoBackend::kAotEager, .fullgraph = true};

// ---- Models.

struct ConvNetImpl : nn::Module {
  ConvNetImpl() {
    conv = register_module("conv", nn::Conv2d(nn::Conv2dOptions(2, 4, 3).padding(1)));
    norm = register_module("norm", nn::BatchNorm2d(4));
    head = register_module("head", nn::Linear(4, 3));
  }
  Tensor forward(const Tensor& x) { return head(torch::relu(norm(conv(x))).mean({2, 3})); }
  nn::Conv2d conv{nullptr};
  nn::BatchNorm2d norm{nullptr};
  nn::Linear head{nullptr};
};
TORCH_MODULE(ConvNet);

struct TransformerImpl : nn::Module {
  TransformerImpl() {
    embed = register_module("embed", nn::Embedding(11, 8));
    blocks = register_module("blocks", nn::ModuleList());
    for (int i = 0; i < 3; ++i) blocks->push_back(DroppingAttention(8));
    norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({8})));
    head = register_module("head", nn::Linear(8, 3));
  }
  Tensor forward(const Tensor& tokens) {
    Tensor x = embed(tokens);
    for (size_t i = 0; i < blocks->size(); ++i) x = block(blocks->ptr<DroppingAttentionImpl>(i), x);
    return head(norm(x).mean(1));
  }
  nn::Embedding embed{nullptr};
  nn::ModuleList blocks{nullptr};
  nn::LayerNorm norm{nullptr};
  nn::Linear head{nullptr};
};
TORCH_MODULE(Transformer);

struct RecurrentImpl : nn::Module {
  RecurrentImpl() {
    lstm = register_module("lstm", nn::LSTM(nn::LSTMOptions(4, 5).num_layers(2).batch_first(true)));
    head = register_module("head", nn::Linear(5, 3));
  }
  Tensor forward(const Tensor& x) { return head(std::get<0>(lstm(x)).select(1, -1)); }
  nn::LSTM lstm{nullptr};
  nn::Linear head{nullptr};
};
TORCH_MODULE(Recurrent);

struct WordsImpl : nn::Module {
  WordsImpl() {
    embed = register_module("embed", nn::Embedding(11, 6));
    head = register_module("head", nn::Linear(6, 3));
  }
  Tensor forward(const Tensor& tokens) { return head(torch::tanh(embed(tokens)).mean(1)); }
  nn::Embedding embed{nullptr};
  nn::Linear head{nullptr};
};
TORCH_MODULE(Words);

// ---- Training.

// What a training run leaves behind, and every loss.
std::vector<Tensor> values_of(const nn::Module& module, std::vector<Tensor> losses) {
  std::vector<Tensor> values = std::move(losses);
  for (const Tensor& each : module.parameters()) values.push_back(each.detach());
  for (const Tensor& each : module.buffers()) values.push_back(each);
  return values;
}

constexpr int kSteps = 20;

// `call` is the model's, plain or compiled.
template <typename Net>
std::vector<Tensor> train(const Net& net, int seed, const std::function<Tensor(int)>& input,
                          const std::function<Tensor(const Tensor&)>& call) {
  torch::manual_seed(seed);
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  std::vector<Tensor> losses;
  for (int step = 0; step < kSteps; ++step) {
    sgd.zero_grad();
    const Tensor target = torch::randint(3, {4});
    const Tensor loss = torch::nn::functional::cross_entropy(call(input(step)), target);
    loss.backward();
    sgd.step();
    losses.push_back(loss.detach());
  }
  return values_of(*net, std::move(losses));
}

template <typename Net>
CompileReport expect_equal_training(const std::function<Tensor(int)>& input, int seed) {
  torch::manual_seed(seed);
  Net plain;
  torch::manual_seed(seed);
  Net compiled;
  const auto model = compile_regions(compiled, kStrict);
  const auto expected =
      train(plain, seed, input, [&](const Tensor& x) { return plain->forward(x); });
  const auto got = train(compiled, seed, input,
                         [&, handle = model](const Tensor& x) mutable { return handle(x); });
  EXPECT_EQ(expected.size(), got.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(torch::equal(expected[i], got[i])) << "seed " << seed << ", value " << i;
  }
  return *compile_report(model);
}

Tensor images(int /*step*/) { return torch::randn({4, 2, 6, 6}); }
Tensor sequences(int /*step*/) { return torch::randn({4, 7, 4}); }
Tensor tokens(int /*step*/) { return torch::randint(11, {4, 5}); }

// The first two calls are recorded.
void expect_compiled(const CompileReport& report, int64_t regions) {
  EXPECT_THAT(report.not_compiled, IsEmpty());
  EXPECT_EQ(report.regions, regions);
  EXPECT_EQ(report.compiled, regions);
  EXPECT_EQ(report.recorded_calls, 2 * regions);
  EXPECT_EQ(report.compiled_calls, (kSteps - 2) * regions);
  EXPECT_EQ(report.eager_calls, 0);
}

TEST_F(RegionsTest, AConvolutionWithBatchNormTrainsAsWithoutThem) {
  for (int seed = 1; seed <= 20; ++seed) {
    expect_compiled(expect_equal_training<ConvNet>(&images, seed), 1);
  }
}

TEST_F(RegionsTest, TheBlocksOfATransformerTrainAsWithoutThemAndShareOneProgram) {
  for (int seed = 1; seed <= 20; ++seed) {
    const CompileReport report = expect_equal_training<Transformer>(&tokens, seed);
    expect_compiled(report, 3);
    EXPECT_EQ(report.programs, 1);
  }
}

TEST_F(RegionsTest, AnLstmTrainsAsWithoutThem) {
  for (int seed = 1; seed <= 20; ++seed) {
    expect_compiled(expect_equal_training<Recurrent>(&sequences, seed), 1);
  }
}

TEST_F(RegionsTest, AnEmbeddingTrainsAsWithoutThem) {
  for (int seed = 1; seed <= 20; ++seed) {
    expect_compiled(expect_equal_training<Words>(&tokens, seed), 1);
  }
}

TEST_F(RegionsTest, GradientsAccumulateOverPassesBeforeABackwardPass) {
  torch::manual_seed(3);
  ConvNet plain;
  torch::manual_seed(3);
  ConvNet compiled;
  auto model = compile_regions(compiled, kStrict);
  for (int step = 0; step < 4; ++step) {
    const Tensor first = images(0), second = images(0);
    (plain->forward(first).square().mean() + plain->forward(second).square().mean()).backward();
    (model(first).square().mean() + model(second).square().mean()).backward();
    for (size_t i = 0; i < plain->parameters().size(); ++i) {
      EXPECT_TRUE(torch::equal(plain->parameters()[i].grad(), compiled->parameters()[i].grad()))
          << "step " << step << ", parameter " << i;
    }
  }
  // The second pass of the first step comes before the region is known.
  EXPECT_EQ(compile_report(model)->eager_calls, 1);
}

// ---- Modules made of a function.

using Body = std::function<Tensor(const Tensor&, const Tensor&)>;

struct FreeImpl : nn::Module {
  explicit FreeImpl(Body given) : body(std::move(given)) {
    weight = register_parameter("weight", torch::arange(1, 4).to(torch::kFloat));
    count = register_buffer("count", torch::zeros({3}));
  }
  Tensor forward(const Tensor& x) { return body(x, weight); }
  Body body;
  Tensor weight, count;
};
TORCH_MODULE(Free);

Tensor product(const Tensor& x, const Tensor& weight) { return x * weight; }

// Calls until the region runs its code, with a backward pass where there is one.
template <typename Model, typename... Inputs>
void warm(Model& model, const Inputs&... inputs) {
  for (int i = 0; i < 2; ++i) {
    const Tensor y = model(inputs...);
    if (y.requires_grad()) y.sum().backward();
  }
}

TEST_F(RegionsTest, WeightsAreWhatTheyAreAtEachCall) {
  Free net(&product);
  auto model = compile_regions(net, kStrict);
  warm(model, torch::ones({3}));
  {
    const torch::NoGradGuard no_grad;
    net->weight.fill_(7);
  }
  EXPECT_TRUE(torch::equal(model(torch::ones({3})), torch::full({3}, 7.0f)));
  net->weight.set_data(torch::full({3}, 9.0f));
  EXPECT_TRUE(torch::equal(model(torch::ones({3})), torch::full({3}, 9.0f)));
  EXPECT_EQ(compile_report(model)->compiled_calls, 2);
}

TEST_F(RegionsTest, HooksOfParametersSeeWholeGradientsOnce) {
  Free net([](const Tensor& x, const Tensor& weight) { return x * weight + weight; });
  auto model = compile_regions(net, kStrict);
  int calls = 0;
  net->weight.register_hook([&calls](const Tensor& gradient) {
    ++calls;
    EXPECT_TRUE(torch::equal(gradient, torch::full({3}, 3.0f)));
  });
  for (int i = 1; i <= 4; ++i) {
    model(torch::full({3}, 2.0f)).sum().backward();
    EXPECT_EQ(calls, i);
  }
}

// A module whose layer is replaced, unless told otherwise by one that the guards cannot tell from
// it.
struct ReplaceableImpl : nn::Module {
  ReplaceableImpl() : layer(register_module("layer", nn::Linear(3, 2))) {}
  void replace(int64_t width = 2) { layer = replace_module("layer", nn::Linear(3, width)); }
  Tensor forward(const Tensor& x) { return torch::tanh(layer(x)); }
  nn::Linear layer;
};
TORCH_MODULE(Replaceable);

TEST_F(RegionsTest, TheNodesOfParametersAloneOutliveACall) {
  using torch::autograd::impl::try_get_grad_accumulator;
  Replaceable net;
  auto model = compile_regions(net, kStrict);
  const Tensor x = torch::ones({4, 3}, torch::requires_grad());
  warm(model, x);
  ASSERT_EQ(try_get_grad_accumulator(net->layer->weight).get(), nullptr) << "plain calls keep none";
  model(x);
  EXPECT_NE(try_get_grad_accumulator(net->layer->weight).get(), nullptr);
  EXPECT_NE(try_get_grad_accumulator(net->layer->bias).get(), nullptr);
  EXPECT_EQ(try_get_grad_accumulator(x).get(), nullptr);
}

TEST_F(RegionsTest, ALayerThatIsReplacedIsTrainedAndTheOldOneFreed) {
  Replaceable net;
  auto model = compile_regions(net, kStrict);
  const Tensor x = torch::ones({4, 3});
  warm(model, x);
  model(x);
  const c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> old(
      net->layer->weight.getIntrusivePtr());
  net->replace();
  model(x).sum().backward();
  EXPECT_EQ(compile_report(model)->compiled_calls, 2);
  EXPECT_TRUE(old.expired());
  const Tensor gradient = net->layer->weight.grad();
  ASSERT_TRUE(gradient.defined());
  net->zero_grad();
  net->forward(x).sum().backward();
  EXPECT_TRUE(torch::equal(gradient, net->layer->weight.grad()));
}

// Whichever region is called next.
TEST_F(RegionsTest, ALayerThatIsReplacedIsFreedByACallOfAnotherRegion) {
  for (const bool is_evaluated : {false, true}) {
    Replaceable net;
    auto model = compile_regions(net, kStrict);
    const Tensor x = torch::ones({4, 3});
    warm(model, x);
    model(x);
    const c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> old(
        net->layer->weight.getIntrusivePtr());
    net->replace(is_evaluated ? 2 : 5);
    const at::AutoGradMode grad_mode(!is_evaluated);
    model(x);
    EXPECT_EQ(compile_report(model)->regions, 2) << is_evaluated;
    EXPECT_TRUE(old.expired()) << is_evaluated;
  }
}

TEST_F(RegionsTest, MixedPrecisionTrainsAsWithoutThem) {
  const auto autocast = [](const std::function<Tensor()>& fn) {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    const Tensor y = fn();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
    return y.to(torch::kFloat);
  };
  torch::manual_seed(2);
  Words plain;
  torch::manual_seed(2);
  Words compiled;
  auto model = compile_regions(compiled, kStrict);
  const auto expected = train(plain, 2, &tokens, [&](const Tensor& x) {
    return autocast([&] { return plain->forward(x); });
  });
  const auto got = train(compiled, 2, &tokens,
                         [&](const Tensor& x) { return autocast([&] { return model(x); }); });
  for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(torch::equal(expected[i], got[i])) << i;
  EXPECT_EQ(compile_report(model)->compiled_calls, kSteps - 2);
}

// ---- Backward passes.

TEST_F(RegionsTest, ABackwardPassComesAgainWithRetainGraphOnly) {
  Free net([](const Tensor& x, const Tensor& weight) { return (x * weight).exp(); });
  auto model = compile_regions(net, kStrict);
  for (int call = 0; call < 4; ++call) {
    const Tensor y = model(torch::ones({3})).sum();
    net->zero_grad();
    y.backward({}, /*retain_graph=*/true);
    const Tensor once = net->weight.grad().clone();
    y.backward();
    EXPECT_TRUE(torch::equal(net->weight.grad(), once * 2)) << call;
    EXPECT_THAT(c10_error_of([&] { y.backward(); }), HasSubstr("second"));
  }
}

TEST_F(RegionsTest, GradientsOfGradientsAreAnError) {
  Free net(&product);
  auto model = compile_regions(net, kStrict);
  warm(model, torch::ones({3}));
  const Tensor y = model(torch::ones({3})).square().sum();
  EXPECT_THAT(c10_error_of([&] { torch::autograd::grad({y}, {net->weight}, {}, true, true); }),
              HasSubstr("gradients of gradients"));
}

TEST_F(RegionsTest, AChangeInPlaceBeforeTheBackwardPassIsAnError) {
  Free net([](const Tensor& x, const Tensor& weight) { return (x * weight).exp(); });
  auto model = compile_regions(net, kStrict);
  warm(model, torch::ones({3}));
  const Tensor x = torch::ones({3});
  const Tensor y = model(x);
  {
    const torch::NoGradGuard no_grad;
    y.mul_(2);  // exp's result is needed
  }
  EXPECT_THAT(c10_error_of([&] { y.sum().backward(); }), HasSubstr("was changed in place"));
}

TEST_F(RegionsTest, AGradientThatLiesOtherwiseInMemoryIsTheSame) {
  Free net([](const Tensor& x, const Tensor& weight) { return x * weight; });
  auto model = compile_regions(net, kStrict);
  const Tensor x = torch::rand({3, 3});
  warm(model, x);
  net->zero_grad();
  const Tensor gradient = torch::rand({3, 3}).t();
  model(x).backward(gradient);
  EXPECT_TRUE(torch::allclose(net->weight.grad(), (x * gradient).sum(0)));
  EXPECT_EQ(compile_report(model)->compiled_calls, 1);
}

struct TwinsImpl : nn::Module {
  TwinsImpl() { weight = register_parameter("weight", torch::ones({3})); }
  std::tuple<Tensor, Tensor> forward(const Tensor& x) { return {x * weight, x * weight * 5}; }
  Tensor weight;
};
TORCH_MODULE(Twins);

// A sum gives both of its terms the same tensor as their gradients, as it does when the backward
// pass is recorded here. Later they have one each.
TEST_F(RegionsTest, GradientsThatAreOneTensorAreTwo) {
  Twins net;
  auto model = compile_regions(net, kStrict);
  const Tensor x = torch::full({3}, 2.0f), gradient = torch::arange(1, 4).to(torch::kFloat);
  for (int call = 0; call < 4; ++call) {
    net->zero_grad();
    const auto [y, z] = model(x);
    const int times = call < 2 ? 1 : 3;
    (times == 1 ? y + z : y + z * times).backward(gradient);
    EXPECT_TRUE(torch::equal(net->weight.grad(), gradient * 2 * (1 + 5 * times))) << call;
  }
  EXPECT_EQ(compile_report(model)->compiled_calls, 2);
}

// ---- Outputs and inputs of other forms.

struct FormsImpl : nn::Module {
  FormsImpl() { weight = register_parameter("weight", torch::ones({3})); }
  std::tuple<Tensor, std::vector<Tensor>> forward(const std::map<std::string, Tensor>& batch) {
    const Tensor y = batch.at("x") * weight;
    return {y, {y.detach().round().to(torch::kLong), y + batch.at("z")}};
  }
  Tensor weight;
};
TORCH_MODULE(Forms);

TEST_F(RegionsTest, OutputsHaveTheFormOfTheModules) {
  Forms net;
  auto model = compile_regions(net, kStrict);
  for (int i = 0; i < 4; ++i) {
    const std::map<std::string, Tensor> batch = {{"x", torch::full({3}, i + 0.5f)},
                                                 {"z", torch::ones({3})}};
    const auto [y, rest] = model(batch);
    ASSERT_EQ(rest.size(), 2);
    EXPECT_TRUE(torch::equal(y, batch.at("x")));
    EXPECT_EQ(rest[0].scalar_type(), torch::kLong);
    EXPECT_FALSE(rest[0].requires_grad());
    EXPECT_TRUE(torch::equal(rest[1], batch.at("x") + 1));
    net->zero_grad();
    rest[1].sum().backward();  // no gradient for the first one
    EXPECT_TRUE(torch::equal(net->weight.grad(), batch.at("x")));
  }
  EXPECT_EQ(compile_report(model)->compiled_calls, 2);
}

// ---- How many regions a module has.

TEST_F(RegionsTest, FurtherSizesThanSixtyFourRunAsTheyAre) {
  constexpr int64_t kMost = 64;
  RecordedWarnings warnings;
  Free net(&product);
  auto model = compile_regions(net, kInterpreted);
  const torch::NoGradGuard no_grad;
  const auto call = [&](int64_t rows) {
    const Tensor x = torch::ones({rows, 3});
    EXPECT_TRUE(torch::equal(model(x), x * net->weight)) << rows;
  };
  for (int64_t rows = 1; rows <= kMost; ++rows) call(rows);
  EXPECT_THAT(warnings.texts(), IsEmpty());
  call(kMost + 1);
  ASSERT_EQ(warnings.texts().size(), 1);
  EXPECT_THAT(warnings.texts()[0], HasSubstr("too many different sizes"));
  // Those that are known go on.
  for (int i = 0; i < 2; ++i) call(kMost);
  const CompileReport report = *compile_report(model);
  EXPECT_EQ(report.regions, kMost);
  EXPECT_EQ(report.recorded_calls, kMost + 1);
  EXPECT_EQ(report.compiled_calls, 1);
  EXPECT_EQ(report.eager_calls, 1);
}

// ---- Backends.

TEST_F(RegionsTest, EagerCountsWhatWouldBeRegions) {
  Transformer net;
  auto model = compile_regions(net, {.backend = DynamoBackend::kEager});
  for (int i = 0; i < 3; ++i) model(tokens(i)).sum().backward();
  const CompileReport report = *compile_report(model);
  EXPECT_EQ(report.regions, 3);
  EXPECT_EQ(report.eager_calls, 9);
  EXPECT_EQ(report.recorded_calls, 0);
}

TEST_F(RegionPackagesTest, WithoutAPackageRegionsRunAsTheyAre) {
  RecordedWarnings warnings;
  Free net(&product);
  auto model = compile_regions(net, packages_);
  for (int i = 0; i < 4; ++i) {
    const Tensor y = model(torch::ones({3}));
    EXPECT_TRUE(torch::equal(y, net->weight));
    y.sum().backward();
  }
  ASSERT_EQ(warnings.texts().size(), 1);
  EXPECT_THAT(warnings.texts()[0],
              AllOf(HasSubstr("there is no package for it in " + folder_.path()),
                    HasSubstr("; this makes it: ")));
  EXPECT_EQ(compile_report(model)->compiled_calls, 0);
  EXPECT_EQ(compile_report(model)->not_compiled.begin()->second, 1);
  EXPECT_THAT(list_regions(folder_.path()).value(), IsEmpty()) << "nothing is written unasked";
}

// The command with which this program was started, and what it found set.
TEST_F(RegionPackagesTest, WithoutAPackageTheCommandThatMakesItIsSaid) {
  const std::string cache = folder_.path() + "/a b";
  runtime_.environment().set("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "2");
  runtime_.environment().set("ACCELERATE_DYNAMO_BACKEND", "INDUCTOR");
  runtime_.environment().set("ACCELERATE_USE_CPU", "True");
  const auto warning = [&](std::optional<nlohmann::ordered_json> options) {
    RecordedWarnings warnings;
    Free net(&product);
    auto model =
        compile_regions(net, {.backend = DynamoBackend::kInductor, .options = std::move(options)});
    warm(model, torch::ones({3}));
    return warnings.texts().size() == 1 ? warnings.texts()[0] : "not one warning";
  };
  const std::string command = " accelerate compile --cpu --num_processes 1 --no_default_config " +
                              shell_line(command_line());
  const auto names_cache = HasSubstr(" ACCELERATE_COMPILE_CACHE='" + cache + "' ");
  const auto fits = AllOf(HasSubstr("this makes it: "), HasSubstr(command),
                          HasSubstr("ACCELERATE_GRADIENT_ACCUMULATION_STEPS=2 "),
                          Not(HasSubstr("ACCELERATE_DYNAMO_BACKEND")));
  runtime_.environment().set("HOME", folder_.path());
  runtime_.environment().unset("XDG_CACHE_HOME");
  runtime_.environment().unset(env::kCompileCache);
  EXPECT_THAT(warning(std::nullopt), AllOf(fits, Not(HasSubstr("ACCELERATE_COMPILE_CACHE"))));
  EXPECT_THAT(warning(nlohmann::ordered_json{{"package", cache}}), AllOf(fits, names_cache));
  runtime_.environment().set(env::kCompileCache, cache);
  EXPECT_THAT(warning(std::nullopt), AllOf(fits, names_cache));
}

TEST_F(RegionPackagesTest, AreWrittenIntoTheCacheWhereTheyAreToBeRecorded) {
  runtime_.environment().set(env::kCompileRecord, "true");
  RecordedWarnings warnings;
  Transformer net;
  auto model = compile_regions(net, {.backend = DynamoBackend::kInductor, .fullgraph = true});
  for (int i = 0; i < 3; ++i) model(tokens(i)).sum().backward();
  EXPECT_THAT(warnings.texts(), IsEmpty());
  EXPECT_EQ(compile_report(model)->compiled_calls, 3) << "operator by operator";
  const auto regions = list_regions(folder_.path());
  ASSERT_TRUE(regions.ok()) << regions.status();
  ASSERT_EQ(regions->size(), 1) << "equal blocks share one";
  EXPECT_TRUE(regions->front().has_backward);
  EXPECT_EQ(regions->front().bytes, 0);
}

TEST_F(RegionPackagesTest, AModeAndOptionsAreOfARegionInTheCacheAndTheFolderIsNot) {
  runtime_.environment().unset(env::kCompileCache);
  runtime_.environment().set(env::kCompileRecord, "true");
  const auto regions_with = [&](std::optional<std::string> mode,
                                std::optional<nlohmann::ordered_json> options) {
    Free net(&product);
    auto model = compile_regions(net, {.backend = DynamoBackend::kInductor,
                                       .mode = std::move(mode),
                                       .options = std::move(options)});
    warm(model, torch::ones({3}));
    return list_regions(folder_.path()).value().size();
  };
  using Json = nlohmann::ordered_json;
  EXPECT_EQ(regions_with(std::nullopt, Json{{"package", folder_.path()}}), 1);
  runtime_.environment().set(env::kCompileCache, folder_.path());
  EXPECT_EQ(regions_with(std::nullopt, std::nullopt), 1) << "the same region in the same folder";
  EXPECT_EQ(regions_with("default", std::nullopt), 1);
  EXPECT_EQ(regions_with("max-autotune", std::nullopt), 2);
  EXPECT_EQ(regions_with(std::nullopt, Json{{"memory_budget", 0.5}}), 3);
}

TEST_F(RegionPackagesTest, APackageThatIsNotAsItWasMadeIsNotLoaded) {
  runtime_.environment().set(env::kCompileRecord, "true");
  Free net(&product);
  auto recording = compile_regions(net, packages_);
  warm(recording, torch::ones({3}));
  const auto regions = list_regions(folder_.path());
  ASSERT_TRUE(regions.ok()) << regions.status();
  ASSERT_EQ(regions->size(), 1);
  HostFiles files(1);
  const std::string package =
      join_path(join_path(folder_.path(), regions->front().libtorch), regions->front().id);
  ASSERT_TRUE(write_file(files, join_path(package, "package.json"), "{").ok());
  std::filesystem::permissions(package, std::filesystem::perms::owner_all);
  std::filesystem::permissions(join_path(package, "package.json"),
                               std::filesystem::perms::owner_read);
  runtime_.environment().unset(env::kCompileRecord);
  RecordedWarnings warnings;
  auto model = compile_regions(net, packages_);
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(torch::equal(model(torch::ones({3})), net->weight));
    model(torch::ones({3})).sum().backward();
  }
  ASSERT_EQ(warnings.texts().size(), 1);
  EXPECT_THAT(warnings.texts()[0],
              AllOf(HasSubstr(package + " is not loaded: package.json cannot be read"),
                    HasSubstr("remove that folder, and `accelerate compile` makes it anew")));
}

TEST(CompileBackends, AreRefusedByNameOrRegistered) {
  EXPECT_THAT(c10_error_of([] { check_compile_backend(DynamoBackend::kHpuBackend); }),
              HasSubstr("the nearest that works is aot_eager"));
  for (const DynamoBackend backend :
       {DynamoBackend::kEager, DynamoBackend::kAotEager, DynamoBackend::kInductor}) {
    EXPECT_EQ(c10_error_of([&] { check_compile_backend(backend); }), "no error");
  }
  struct Nothing : CompileBackend {
    std::unique_ptr<const RegionCode> compile(std::shared_ptr<const RegionProgram>) override {
      return nullptr;
    }
  };
  register_compile_backend(DynamoBackend::kNeuron,
                           [](const TorchDynamoPlugin&) { return std::make_unique<Nothing>(); });
  EXPECT_EQ(c10_error_of([] { check_compile_backend(DynamoBackend::kNeuron); }), "no error");
}

// ---- Which modules are regions.

TEST(RepeatedBlocks, AreListsOfOneClass) {
  Transformer net;
  EXPECT_TRUE(is_repeated_blocks(*net->blocks));
  EXPECT_FALSE(is_repeated_blocks(*net));
  EXPECT_TRUE(has_repeated_blocks(*net));
  EXPECT_EQ(region_names(*net), (std::vector<std::string>{"embed", "blocks.0", "blocks.1",
                                                          "blocks.2", "norm", "head"}));
  EXPECT_FALSE(has_repeated_blocks(*Words()));
  EXPECT_EQ(region_names(*Words()), std::vector<std::string>{""});
  EXPECT_FALSE(is_repeated_blocks(*nn::ModuleList()));
  nn::ModuleList mixed;
  mixed->push_back(nn::Linear(1, 1));
  mixed->push_back(nn::Dropout());
  EXPECT_FALSE(is_repeated_blocks(*mixed));
}

TEST(CompileRegions, AskAboutHandles) {
  Words words;
  const auto whole = compile_regions(words, kInterpreted);
  EXPECT_TRUE(is_compiled_module(whole));
  EXPECT_TRUE(has_compiled_regions(whole));
  EXPECT_FALSE(is_compiled_module(*words)) << "the module is untouched";
  EXPECT_FALSE(has_compiled_regions(*words));
  Transformer net;
  const auto blocks = compile_regions(net, kInterpreted);
  EXPECT_FALSE(is_compiled_module(blocks));
  EXPECT_TRUE(has_compiled_regions(blocks));
  EXPECT_EQ(blocks.module(), net.ptr());
  const auto off = compile_regions(net, {.backend = DynamoBackend::kAotEager, .disable = true});
  EXPECT_FALSE(has_compiled_regions(off));
  EXPECT_FALSE(compile_report(off).has_value());
  compile_regions_deepspeed(off, kInterpreted);
  EXPECT_TRUE(has_compiled_regions(off));
  EXPECT_EQ(compile_regions_fsdp2(off, kInterpreted).module(), net.ptr());
}

}  // namespace
}  // namespace accelerate
