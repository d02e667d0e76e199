// What makes another region of a call, shown with code that is as blind as a package's: without the
// guard it would give another result than the module.
#include "accelerate/compile/region_key.h"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/autocast_mode.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/ScalarTypeToTypeMeta.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "accelerate/compile/backends.h"
#include "accelerate/compile/compile_regions.h"
#include "accelerate/compile/packages/package.h"
#include "accelerate/compile/region_program.h"
#include "accelerate/platform/environment.h"
#include "accelerate/platform/host_files.h"
#include "accelerate/testing/fake_runtime.h"
#include "accelerate/testing/recorded_warnings.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using torch::Tensor;
namespace nn = torch::nn;

// Takes tensors to be as they were when the region was recorded, whatever they are.
class Blind final : public RegionCode {
 public:
  explicit Blind(std::shared_ptr<const RegionProgram> program)
      : program_(std::move(program)),
        recorded_(
            nlohmann::json::parse(program_->text.substr(0, program_->text.find('\n')))["inputs"]) {}

  // More inputs than were recorded are not seen.
  RegionResult forward(const std::vector<Tensor>& inputs) const override {
    std::vector<Tensor> seen;
    for (size_t i = 0; i < recorded_.size(); ++i) {
      const auto sizes = recorded_[i].at("sizes").get<std::vector<int64_t>>();
      const auto strides = recorded_[i].at("strides").get<std::vector<int64_t>>();
      const auto dtype = static_cast<at::ScalarType>(recorded_[i].at("dtype").get<int>());
      const c10::Device device(recorded_[i].at("device").get<std::string>());
      const Tensor& input = inputs.at(i);
      // An address of another device cannot be read on this one.
      if (!device.is_cpu() || !input.is_cpu()) {
        seen.push_back(torch::ones(sizes, torch::dtype(dtype).device(device)));
        continue;
      }
      seen.push_back(torch::from_blob(
          input.data_ptr(), sizes, strides, [input](void*) {}, torch::dtype(dtype)));
    }
    return run_forward(*program_, seen);
  }
  std::vector<Tensor> backward(const std::vector<Tensor>& saved,
                               const std::vector<Tensor>& grads) const override {
    std::vector<Tensor> seen;
    for (size_t i = 0; i < grads.size(); ++i) {
      const Tensor& grad = grads[i];
      seen.push_back(torch::from_blob(
          grad.data_ptr(), grad.sizes(), program_->gradient_strides.at(i), [grad](void*) {},
          torch::dtype(grad.scalar_type())));
    }
    return run_backward(*program_, saved, seen);
  }

 private:
  const std::shared_ptr<const RegionProgram> program_;
  const nlohmann::json recorded_;
};

// The codes that were made, which live as long as their models.
std::vector<const RegionCode*>& codes() {
  static std::vector<const RegionCode*> codes;
  return codes;
}

struct BlindBackend final : CompileBackend {
  std::unique_ptr<const RegionCode> compile(std::shared_ptr<const RegionProgram> program) override {
    auto code = std::make_unique<Blind>(std::move(program));
    codes().push_back(code.get());
    return code;
  }
};

const TorchDynamoPlugin kBlind = {.backend = DynamoBackend::kNeuron, .fullgraph = true};

class GuardsTest : public ::testing::Test {
 protected:
  GuardsTest() {
    register_compile_backend(DynamoBackend::kNeuron, [](const TorchDynamoPlugin&) {
      return std::make_unique<BlindBackend>();
    });
    codes().clear();
  }

  FakeRuntime runtime_;
  RuntimeScope scope_{runtime_};
};

bool is_equal(const Tensor& a, const Tensor& b) {
  return a.scalar_type() == b.scalar_type() && torch::equal(a, b);
}

struct GuardedImpl : nn::Module {
  GuardedImpl() {
    linear = register_module("linear", nn::Linear(3, 3));
    drop = register_module("drop", nn::Dropout(0.5));
  }
  // Whatever is guarded makes another result.
  Tensor forward(const Tensor& x, const std::optional<Tensor>& shift = std::nullopt,
                 double factor = 1) {
    factor *= static_cast<double>(x.dim());
    Tensor y = drop(linear(x)).reshape({x.numel() / 3, 3}) * factor;
    if (shift) y = y + shift->reshape({-1}).sum() * static_cast<double>(shift->size(0));
    if (x.requires_grad()) y = y * 2;
    if (!linear->bias.requires_grad()) y = y - 1;
    if (!torch::GradMode::is_enabled()) y = y * 3;
    return y.to(x.scalar_type());
  }
  nn::Linear linear{nullptr};
  nn::Dropout drop{nullptr};
};
TORCH_MODULE(Guarded);

// Called after the region of the plain call has code.
struct Guard {
  const char* what;
  std::function<void(Guarded& net)> change;
  std::function<Tensor(std::function<Tensor(Tensor, std::optional<Tensor>, double)> call)> call;
};

std::vector<Guard> guards() {
  const Tensor x = torch::arange(6).to(torch::kFloat).view({2, 3});
  const auto nothing = [](Guarded&) {};
  return {
      {"a size", nothing, [](auto call) { return call(torch::ones({4, 3}), {}, 1); }},
      {"a dimension", nothing, [](auto call) { return call(torch::ones({2, 1, 3}), {}, 1); }},
      {"a stride", nothing,
       [](auto call) { return call(torch::arange(6).to(torch::kFloat).view({3, 2}).t(), {}, 1); }},
      {"a dtype", [](Guarded& net) { net->to(torch::kDouble); },
       [](auto call) { return call(torch::ones({2, 3}, torch::kDouble), {}, 1); }},
      {"a gradient of an input", nothing,
       [](auto call) { return call(torch::ones({2, 3}).requires_grad_(), {}, 1); }},
      {"a gradient of a parameter",
       [](Guarded& net) { net->linear->bias.set_requires_grad(false); },
       [x](auto call) { return call(x, {}, 1); }},
      {"no gradients", nothing,
       [x](auto call) {
         const torch::NoGradGuard no_grad;
         return call(x, {}, 1);
       }},
      {"training", [](Guarded& net) { net->train(); }, [x](auto call) { return call(x, {}, 1); }},
      {"one of the submodules", [](Guarded& net) { net->drop->train(); },
       [x](auto call) { return call(x, {}, 1); }},
      {"one more tensor", nothing, [x](auto call) { return call(x, torch::full({2}, 3.0), 1); }},
      {"a number", nothing, [x](auto call) { return call(x, {}, 5); }},
      {"mixed precision", nothing,
       [x](auto call) {
         at::autocast::set_autocast_enabled(at::kCPU, true);
         at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
         const Tensor y = call(x, {}, 1);
         at::autocast::set_autocast_enabled(at::kCPU, false);
         at::autocast::clear_cache();
         return y;
       }},
  };
}

TEST_F(GuardsTest, AChangeOfAnythingThatIsGuardedMakesAnotherRegion) {
  for (const Guard& guard : guards()) {
    codes().clear();
    Guarded net;
    net->eval();
    auto model = compile_regions(net, kBlind);
    const Tensor x = torch::arange(6).to(torch::kFloat).view({2, 3});
    const std::optional<Tensor> no_shift;
    for (int i = 0; i < 3; ++i) model(x, no_shift, 1.0).sum().backward();
    ASSERT_EQ(compile_report(model)->compiled_calls, 1) << guard.what;
    ASSERT_EQ(codes().size(), 1) << guard.what;
    net->zero_grad();
    guard.change(net);
    torch::manual_seed(7);
    std::vector<Tensor> tensors;
    const Tensor expected =
        guard.call([&](Tensor input, std::optional<Tensor> shift, double by) -> Tensor {
          tensors = net->parameters();
          tensors.push_back(input);
          if (shift) tensors.push_back(*shift);
          return net->forward(input, shift, by);
        });
    torch::manual_seed(7);
    EXPECT_FALSE(is_equal(codes().front()->forward(tensors).outputs.at(0), expected))
        << guard.what << ": the code alone does not show what the guard is for";
    // Recorded twice, and run.
    for (int i = 0; i < 3; ++i) {
      torch::manual_seed(7);
      const Tensor got =
          guard.call([&model](Tensor input, std::optional<Tensor> shift, double by) -> Tensor {
            return model(input, shift, by);
          });
      EXPECT_TRUE(is_equal(got, expected)) << guard.what << ", call " << i;
      if (got.requires_grad()) got.sum().backward();
    }
    const CompileReport report = *compile_report(model);
    EXPECT_EQ(report.regions, 2) << guard.what;
    EXPECT_EQ(report.compiled_calls, 2) << guard.what;
  }
}

struct PairImpl : nn::Module {
  Tensor forward(const Tensor& a, const Tensor& b) { return a * 2 + b; }
};
TORCH_MODULE(Pair);

TEST_F(GuardsTest, TensorsThatShareMemoryAreAnotherRegionThanThoseThatDoNot) {
  Pair net;
  auto model = compile_regions(net, kBlind);
  const Tensor x = torch::ones({4});
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(torch::equal(model(x, x), x * 3));
  const Tensor y = torch::full({4}, 5.0f);
  ASSERT_EQ(codes().size(), 1);
  EXPECT_TRUE(torch::equal(codes().front()->forward({x, y}).outputs.at(0), x * 3));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(torch::equal(model(x, y), x * 2 + y));
  const Tensor both = torch::arange(8).to(torch::kFloat);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(torch::equal(model(both.slice(0, 0, 4), both.slice(0, 4)),
                             both.slice(0, 0, 4) * 2 + both.slice(0, 4)));
  }
  EXPECT_EQ(compile_report(model)->regions, 3);
  EXPECT_EQ(compile_report(model)->compiled_calls, 3);
}

// Two tensors in one place are recorded as one.
TEST_F(GuardsTest, PlacesInMemoryThatTensorsShareAreGuarded) {
  Pair net;
  auto model = compile_regions(net, kBlind);
  const Tensor both = torch::arange(8).to(torch::kFloat);
  const Tensor first = both.slice(0, 0, 4), same = both.slice(0, 0, 4), second = both.slice(0, 4);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(torch::equal(model(first, same), first * 3));
  ASSERT_EQ(codes().size(), 1);
  EXPECT_TRUE(torch::equal(codes().front()->forward({first, second}).outputs.at(0), first * 3));
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(torch::equal(model(first, second), first * 2 + second)) << i;
  }
  EXPECT_EQ(compile_report(model)->regions, 2);
  EXPECT_EQ(compile_report(model)->compiled_calls, 2);
}

TEST_F(GuardsTest, AnotherDtypeOfMixedPrecisionIsAnotherRegion) {
  nn::Linear net(3, 3);
  auto model = compile_regions(net, {.backend = DynamoBackend::kAotEager, .fullgraph = true});
  const torch::NoGradGuard no_grad;
  const Tensor x = torch::ones({2, 3});
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    for (int i = 0; i < 3; ++i) {
      at::autocast::set_autocast_enabled(at::kCPU, true);
      at::autocast::set_autocast_dtype(at::kCPU, dtype);
      const Tensor y = model(x);
      at::autocast::set_autocast_enabled(at::kCPU, false);
      at::autocast::clear_cache();
      EXPECT_EQ(y.scalar_type(), dtype) << i;
    }
  }
  EXPECT_EQ(compile_report(model)->regions, 2);
  EXPECT_EQ(compile_report(model)->compiled_calls, 2);
}

struct ProductImpl : nn::Module {
  ProductImpl() { weight = register_parameter("weight", torch::ones({3, 3})); }
  Tensor forward(const Tensor& x) { return x * weight; }
  Tensor weight;
};
TORCH_MODULE(Product);

TEST_F(GuardsTest, GradientsLieInMemoryAsTheyDidWhenTheyWereRecorded) {
  Product net;
  auto model = compile_regions(net, kBlind);
  const Tensor x = torch::arange(9).to(torch::kFloat).view({3, 3});
  for (int i = 0; i < 2; ++i) model(x).backward(torch::ones({3, 3}));
  for (const Tensor& gradient : {x + 1, (x + 1).t(), torch::full({1, 1}, 2.0f).expand({3, 3})}) {
    net->zero_grad();
    model(x).backward(gradient);
    EXPECT_TRUE(torch::equal(net->weight.grad(), x * gradient)) << gradient;
  }
  EXPECT_EQ(compile_report(model)->compiled_calls, 3);
}

TEST_F(GuardsTest, AnotherDeviceIsAnotherRegion) {
  Pair net;
  auto model = compile_regions(net, kBlind);
  const Tensor x = torch::ones({4});
  for (int i = 0; i < 3; ++i) model(x, x);
  const Tensor nowhere = torch::ones({4}, torch::kMeta);
  ASSERT_EQ(codes().size(), 1);
  EXPECT_TRUE(codes().front()->forward({nowhere, nowhere}).outputs.at(0).is_cpu())
      << "the code alone computes where it was recorded";
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(model(nowhere, nowhere).is_meta());
  EXPECT_EQ(compile_report(model)->regions, 2);
  EXPECT_EQ(compile_report(model)->compiled_calls, 2);
}

// Its activation may be replaced by one of another class, which has no tensors either.
struct ActivatedImpl : nn::Module {
  ActivatedImpl() { register_module("activation", nn::ReLU()); }
  Tensor forward(const Tensor& x) {
    nn::Module& activation = *children().front();
    if (auto* relu = dynamic_cast<nn::ReLUImpl*>(&activation)) return relu->forward(x);
    return dynamic_cast<nn::TanhImpl&>(activation).forward(x);
  }
};
TORCH_MODULE(Activated);

TEST_F(GuardsTest, ALayerOfAnotherClassMakesAnotherRegion) {
  Activated net;
  auto model = compile_regions(net, kBlind);
  const Tensor x = torch::full({4}, 0.5f);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(torch::equal(model(x), x));
  ASSERT_EQ(codes().size(), 1);
  net->replace_module("activation", nn::Tanh());
  EXPECT_TRUE(torch::equal(codes().front()->forward({x}).outputs.at(0), x))
      << "the code alone computes with the layer that was there";
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(torch::equal(model(x), x.tanh())) << i;
  EXPECT_EQ(compile_report(model)->regions, 2);
  EXPECT_EQ(compile_report(model)->compiled_calls, 2);
}

// Tensors that are given no dtype have this one.
class DefaultDtype {
 public:
  explicit DefaultDtype(at::ScalarType dtype) {
    c10::set_default_dtype(c10::scalarTypeToTypeMeta(dtype));
  }
  ~DefaultDtype() { c10::set_default_dtype(before_); }
  DefaultDtype(const DefaultDtype&) = delete;
  DefaultDtype& operator=(const DefaultDtype&) = delete;

 private:
  const caffe2::TypeMeta before_ = c10::get_default_dtype();
};

struct RaisedImpl : nn::Module {
  Tensor forward(const Tensor& x) { return x * weight + torch::ones({3}); }
  Tensor weight = register_parameter("weight", torch::ones({3}, torch::kFloat));
};
TORCH_MODULE(Raised);

// A package has one dtype of new tensors, so that programs of two dtypes differ.
TEST_F(GuardsTest, AnotherDefaultDtypeIsAnotherRegionWithAProgramOfItsOwn) {
  Raised net;
  auto model = compile_regions(net, {.backend = DynamoBackend::kAotEager, .fullgraph = true});
  const torch::NoGradGuard no_grad;
  const Tensor x = torch::ones({3}, torch::kFloat);
  for (const at::ScalarType dtype : {torch::kFloat, torch::kDouble}) {
    const DefaultDtype scope(dtype);
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(is_equal(model(x), torch::full({3}, 2, dtype))) << i;
  }
  EXPECT_EQ(compile_report(model)->regions, 2);
  EXPECT_EQ(compile_report(model)->programs, 2);
  EXPECT_EQ(compile_report(model)->compiled_calls, 2);
}

// The Python that makes packages has float32.
TEST_F(GuardsTest, AnotherDefaultDtypeHasNoPackages) {
  const TemporaryFolder folder;
  runtime_.environment().set(env::kCompileCache, folder.path());
  runtime_.environment().set(env::kCompileRecord, "true");
  const DefaultDtype scope(torch::kDouble);
  RecordedWarnings warnings;
  Raised net;
  auto model = compile_regions(net, {.backend = DynamoBackend::kInductor});
  const torch::NoGradGuard no_grad;
  for (int i = 0; i < 3; ++i) model(torch::ones({3}, torch::kFloat));
  ASSERT_EQ(warnings.texts().size(), 1);
  EXPECT_THAT(warnings.texts()[0],
              AllOf(HasSubstr("packages make new tensors in Float"),
                    HasSubstr("the default dtype is Double; give tensors their dtypes")));
  EXPECT_THAT(list_regions(folder.path()).value(), IsEmpty());
  EXPECT_EQ(compile_report(model)->compiled_calls, 0);
}

// Where both inputs have no dimensions, a number's dtype counts for nothing.
TEST_F(GuardsTest, ANumberInTheFormOfATensorIsNotTakenForATensor) {
  RecordedWarnings warnings;
  Pair net;
  auto model = compile_regions(net, {.backend = DynamoBackend::kNeuron});
  const Tensor a = torch::ones({});
  const Tensor b = torch::full({}, 0.25, torch::kDouble);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(model(a, b).scalar_type(), torch::kDouble);
  const Tensor number = b.clone();
  number.unsafeGetTensorImpl()->set_wrapped_number(true);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(model(a, number).scalar_type(), torch::kFloat);
  EXPECT_EQ(compile_report(model)->regions, 2);
  EXPECT_EQ(compile_report(model)->compiled_calls, 1);
  ASSERT_EQ(warnings.texts().size(), 1);
  EXPECT_THAT(warnings.texts()[0], HasSubstr("a number that LibTorch made a tensor of"));
}

}  // namespace
}  // namespace accelerate
