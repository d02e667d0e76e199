// What a recorder writes down, and what it refuses to; the texts of regions.
#include "accelerate/compile/recorder.h"

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/compile/compile_regions.h"
#include "accelerate/compile/region_program.h"
#include "accelerate/compile/technique.h"
#include "accelerate/hooks/attach_hook.h"
#include "accelerate/hooks/hooked.h"
#include "accelerate/hooks/model_hook.h"
#include "accelerate/operators/checkpoint.h"
#include "accelerate/operators/operator_mode.h"
#include "accelerate/testing/fake_runtime.h"
#include "accelerate/testing/recorded_warnings.h"
#include "accelerate/testing/value_error.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Key;
using torch::Tensor;
namespace nn = torch::nn;

class RecorderTest : public ::testing::Test {
 protected:
  FakeRuntime runtime_;
  RuntimeScope scope_{runtime_};
};

const TorchDynamoPlugin kInterpreted = {.backend = DynamoBackend::kAotEager};
// What is not recorded is an error.
const TorchDynamoPlugin kStrict = {.backend = DynamoBackend::kAotEager, .fullgraph = true};

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

struct PairImpl : nn::Module {
  Tensor forward(const Tensor& a, const Tensor& b) { return a * 2 + b; }
};
TORCH_MODULE(Pair);

// Calls until the region runs its code, with a backward pass where there is one.
template <typename Model, typename... Inputs>
void warm(Model& model, const Inputs&... inputs) {
  for (int i = 0; i < 2; ++i) {
    const Tensor y = model(inputs...);
    if (y.requires_grad()) y.sum().backward();
  }
}

// ---- What is not recorded.

struct Refusal {
  const char* says;
  Body body;
};

std::vector<Refusal> refusals() {
  static const Tensor outside = torch::ones({3}).requires_grad_();
  static const Tensor constant = torch::ones({3});
  static int calls = 0;
  return {
      {"_local_scalar_dense gives values of tensors to the program",
       [](const Tensor& x, const Tensor& weight) {
         return x * weight * weight.sum().item<double>();
       }},
      {"equal gives values of tensors to the program",
       [](const Tensor& x, const Tensor& weight) {
         return torch::equal(x, x) ? x * weight : x * 2;
       }},
      {"nonzero gives results whose sizes depend on values",
       [](const Tensor& x, const Tensor& weight) {
         return x * weight + x.nonzero().sum().to(torch::kFloat);
       }},
      {"index gives results whose sizes depend on values",
       [](const Tensor& x, const Tensor& weight) { return x * weight + x.index({x > 0}).sum(); }},
      {"reads a tensor that no operator has written",
       [](const Tensor& x, const Tensor& weight) {
         return x * weight * torch::tensor(std::vector<float>{1, 2, 3});
       }},
      {"takes a tensor that is neither an input, nor a parameter, nor a result",
       [](const Tensor& x, const Tensor& weight) { return x * weight * constant; }},
      {"takes a tensor that is neither an input, nor a parameter, nor a result",
       [](const Tensor& x, const Tensor& weight) { return x * weight * outside; }},
      {"changes an input in place",
       [](const Tensor& x, const Tensor& weight) { return x.clone().mul_(weight) + x.add_(0); }},
      {"an output shares its memory with an input",
       [](const Tensor& x, const Tensor& weight) { return x.view({3, 1}); }},
      {"draws random numbers from a generator of its own",
       [](const Tensor& x, const Tensor& weight) {
         return x * weight + torch::rand({3}, at::detail::createCPUGenerator(3));
       }},
      {"recomputes a part by checkpoint()",
       [](const Tensor& x, const Tensor& weight) {
         return checkpoint(
             CheckpointOptions{.preserve_rng_state = false},
             [](const Tensor& a, const Tensor& b) { return a * b; }, x, weight);
       }},
      {"a tensor in it has a hook",
       [](const Tensor& x, const Tensor& weight) {
         const Tensor y = x * weight;
         y.register_hook([](const Tensor& gradient) { return gradient * 2; });
         return y * 2;
       }},
      {"two calls of it did not do the same",
       [](const Tensor& x, const Tensor& weight) {
         return x * weight * static_cast<double>(++calls);
       }},
      {"leaves a tensor behind",
       [](const Tensor& x, const Tensor& weight) {
         static Tensor left;
         left = x * 2;
         return x * weight + left;
       }},
      {"reads a place in memory",
       [](const Tensor& x, const Tensor& weight) {
         return x * weight + x.as_strided({3}, {1}, 0);
       }},
  };
}

TEST_F(RecorderTest, SayOnceWhyTheyAreNotCompiledAndRunAsTheyAre) {
  for (const Refusal& refusal : refusals()) {
    RecordedWarnings warnings;
    Free net(refusal.body);
    auto model = compile_regions(net, kInterpreted);
    for (int i = 0; i < 4; ++i) {
      const Tensor x = torch::full({3}, 2.0f);
      const Tensor y = model(x);
      if (y.requires_grad()) y.sum().backward();
    }
    const CompileReport report = *compile_report(model);
    EXPECT_THAT(report.not_compiled, Contains(Key(HasSubstr(refusal.says))));
    EXPECT_EQ(report.compiled_calls, 0) << refusal.says;
    ASSERT_EQ(warnings.texts().size(), 1) << refusal.says;
    EXPECT_THAT(warnings.texts()[0], HasSubstr(refusal.says));
  }
}

// A mask's sizes are among the refusals.
TEST_F(RecorderTest, IndicesThatAreIntegersAreRecorded) {
  Free net(
      [](const Tensor& x, const Tensor& weight) { return weight.index({x.to(torch::kLong)}) * x; });
  auto model = compile_regions(net, kStrict);
  for (const float place : {0.0f, 1.0f, 2.0f, 1.0f}) {
    const Tensor x = torch::full({3}, place);
    net->zero_grad();
    const Tensor y = model(x);
    EXPECT_TRUE(torch::equal(y, x * (place + 1)));
    y.sum().backward();
    EXPECT_EQ(net->weight.grad()[static_cast<int64_t>(place)].item<float>(), 3 * place);
  }
  EXPECT_EQ(compile_report(model)->compiled_calls, 2);
}

TEST_F(RecorderTest, AreAnErrorWithFullgraphWhereTheyCannotBeCompiled) {
  Free net([](const Tensor& x, const Tensor& weight) { return x * weight.sum().item<double>(); });
  auto model = compile_regions(net, kStrict);
  EXPECT_THAT(c10_error_of([&] { model(torch::ones({3})); }),
              AllOf(HasSubstr("fullgraph"), HasSubstr("_local_scalar_dense")));
}

TEST_F(RecorderTest, LeaveModelsWhoseOperatorsAreComputedInAnotherWayAsTheyAre) {
  struct Doubling : OperatorHandler {
    Doubling() : OperatorHandler(OperatorOrder::kLinearProducts) {}
    void call(const OperatorCall& call) override { call.proceed(); }
  };
  RecordedWarnings warnings;
  Free net(&product);
  auto model = compile_regions(net, kInterpreted);
  const OperatorModeScope scope(std::make_shared<Doubling>());
  for (int i = 0; i < 3; ++i) model(torch::ones({3})).sum().backward();
  EXPECT_EQ(compile_report(model)->eager_calls, 3);
  ASSERT_EQ(warnings.texts().size(), 1);
  EXPECT_THAT(warnings.texts()[0], HasSubstr("computed in another way"));
}

TEST_F(RecorderTest, LeaveModulesWithHooksAsTheyAre) {
  RecordedWarnings warnings;
  nn::ModuleHolder<Hooked<PairImpl>> net;
  add_hook_to_module(*net, std::make_shared<ModelHook>());
  auto model = compile_regions(net, kInterpreted);
  const Tensor x = torch::ones({2});
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(torch::equal(model(x, x), x * 3));
  EXPECT_EQ(compile_report(model)->eager_calls, 3);
  ASSERT_EQ(warnings.texts().size(), 1);
  EXPECT_THAT(warnings.texts()[0], HasSubstr("a hook runs around"));
  remove_hook_from_module(*net);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(torch::equal(model(x, x), x * 3));
  EXPECT_EQ(compile_report(model)->compiled_calls, 1);
}

// ---- Texts.

TEST_F(RecorderTest, ATextIsReadAsItWasWritten) {
  Free net([](const Tensor& x, const Tensor& weight) {
    return torch::cat({x * weight, x.masked_fill(x > 1, -INFINITY).exp()});
  });
  auto model = compile_regions(net, kStrict);
  warm(model, torch::arange(3).to(torch::kFloat));
  const std::vector<std::string> texts = find_technique<CompileTechnique>(model)->texts();
  ASSERT_EQ(texts.size(), 1);
  const auto program = parse_region(texts[0]);
  EXPECT_EQ(program->text, texts[0]);
  EXPECT_EQ(program->num_inputs, 3) << "the weight, the buffer and the input";
  EXPECT_TRUE(program->has_backward);
  const RegionResult result =
      run_forward(*program, {torch::ones({3}), torch::zeros({3}), torch::full({3}, 2.0f)});
  EXPECT_TRUE(
      torch::equal(result.outputs.at(0), torch::cat({torch::full({3}, 2.0f), torch::zeros({3})})));
}

// JSON has no words for them.
TEST_F(RecorderTest, NumbersThatAreNotFiniteAreRecorded) {
  Free net([](const Tensor& x, const Tensor& weight) {
    const Tensor y = x * weight;
    return torch::stack({y * INFINITY, y * -INFINITY, y * NAN, y.masked_fill(x > 0, INFINITY),
                         y.masked_fill(x > 0, -INFINITY), y.masked_fill(x > 0, NAN)});
  });
  auto model = compile_regions(net, kStrict);
  const Tensor x = torch::full({3}, 2.0f);
  warm(model, x);
  EXPECT_TRUE(torch::allclose(model(x), net->forward(x), 1e-5, 1e-8, /*equal_nan=*/true));
  EXPECT_EQ(compile_report(model)->compiled_calls, 1);
}

// Two values of such a type cannot be told apart.
struct Unknown {
  double factor = 1;
};

struct TimesUnknownImpl : nn::Module {
  Tensor forward(const Tensor& x, const Unknown& by) { return x * by.factor; }
};
TORCH_MODULE(TimesUnknown);

TEST_F(RecorderTest, LeaveModulesWithInputsOfOtherTypesAsTheyAre) {
  RecordedWarnings warnings;
  TimesUnknown net;
  auto model = compile_regions(net, kInterpreted);
  const Tensor x = torch::ones({3});
  for (int i = 1; i <= 4; ++i) {
    EXPECT_TRUE(torch::equal(model(x, Unknown{static_cast<double>(i)}), x * i)) << i;
  }
  EXPECT_EQ(compile_report(model)->eager_calls, 4);
  EXPECT_EQ(compile_report(model)->regions, 0);
  ASSERT_EQ(warnings.texts().size(), 1);
  EXPECT_THAT(warnings.texts()[0], HasSubstr("neither a tensor, nor a number, nor a text"));
}

TEST(RegionTexts, ThatAreNoneAreErrors) {
  EXPECT_THAT(c10_error_of([] { parse_region("{"); }), HasSubstr("cannot be read"));
  EXPECT_THAT(c10_error_of([] { parse_region(R"({"region":2,"inputs":[]})"); }),
              HasSubstr("has version 2"));
  EXPECT_THAT(c10_error_of([] { parse_region(R"({"op":"aten::no_such","args":[],"out":[]})"); }),
              HasSubstr("aten::no_such, which LibTorch does not have"));
  EXPECT_THAT(c10_error_of([] { parse_region(R"({"op":"aten::mm","args":[],"out":[]})"); }),
              HasSubstr("0 arguments, and it takes 2"));
  const std::string head = "{\"region\":1,\"inputs\":[null]}\n";
  EXPECT_THAT(c10_error_of([&] { parse_region(head); }), HasSubstr("cut off"));
  EXPECT_THAT(c10_error_of([&] {
                parse_region(head + R"({"outputs":[7],"differentiable":[false],"tensors":1})");
              }),
              HasSubstr("has tensor 7 of 1"));
}

}  // namespace
}  // namespace accelerate
