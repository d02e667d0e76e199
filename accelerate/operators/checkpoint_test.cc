// A checkpointed function against the same function called plainly: equal values, equal gradients,
// bit by bit, wherever the graph leads.
#include "accelerate/operators/checkpoint.h"

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/operators/block.h"
#include "accelerate/operators/operator_mode.h"
#include "accelerate/testing/fake_runtime.h"

namespace accelerate {
namespace {

using ::testing::HasSubstr;
using torch::Tensor;
using Tensors = std::vector<Tensor>;

class CheckpointTest : public ::testing::Test {
 protected:
  FakeRuntime runtime_;
  RuntimeScope scope_{runtime_};
};

// Calls a function with or without a checkpoint.
struct Caller {
  bool checkpointed;
  template <typename Fn, typename... Inputs>
  auto operator()(Fn fn, Inputs... inputs) const {
    return checkpointed ? checkpoint(fn, inputs...) : fn(inputs...);
  }
};

// Runs `body` both ways from the same seed; it returns tensors to compare.
void expect_same(const std::function<Tensors(const Caller&)>& body) {
  torch::manual_seed(5);
  const Tensors plain = body({.checkpointed = false});
  torch::manual_seed(5);
  const Tensors checkpointed = body({.checkpointed = true});
  ASSERT_EQ(plain.size(), checkpointed.size());
  for (size_t i = 0; i < plain.size(); ++i) {
    ASSERT_EQ(plain[i].defined(), checkpointed[i].defined()) << i;
    if (!plain[i].defined()) continue;
    EXPECT_TRUE(torch::equal(plain[i], checkpointed[i])) << i << "\n"
                                                         << plain[i] << checkpointed[i];
  }
}

Tensor leaf(std::vector<int64_t> shape) { return torch::randn(shape).requires_grad_(); }

// How often a function runs: once, and once more in each backward pass.
template <typename Fn>
auto counted(int& calls, Fn fn) {
  return [&calls, fn](auto... inputs) mutable {
    ++calls;
    return fn(inputs...);
  };
}

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

TEST_F(CheckpointTest, EqualsThePlainCallWithDropout) {
  expect_same([](const Caller& call) {
    torch::nn::Sequential net(torch::nn::Linear(8, 32), torch::nn::GELU(), torch::nn::Dropout(0.4),
                              torch::nn::Linear(32, 8));
    torch::nn::Sequential next(torch::nn::Dropout(0.3), torch::nn::Linear(8, 1));
    const Tensor x = leaf({4, 8});
    Tensors seen;
    for (int step = 0; step < 3; ++step) {
      const Tensor middle = call([net](Tensor x) mutable { return net->forward(x); }, x);
      const Tensor loss =
          call([next](Tensor x) mutable { return next->forward(x); }, middle).mean();
      loss.backward();
      // Random numbers after the backward pass are the same as well.
      seen.insert(seen.end(), {loss, torch::rand({2})});
    }
    seen.push_back(x.grad());
    for (const Tensor& parameter : net->parameters()) seen.push_back(parameter.grad());
    for (const Tensor& parameter : next->parameters()) seen.push_back(parameter.grad());
    return seen;
  });
}

TEST_F(CheckpointTest, ComputesAgainInEachBackwardPass) {
  int calls = 0;
  const Tensor x = leaf({3});
  const Tensor y = checkpoint(counted(calls, [](Tensor x) { return x.exp().sin(); }), x);
  EXPECT_EQ(calls, 1);
  y.sum().backward();
  EXPECT_EQ(calls, 2);
}

TEST_F(CheckpointTest, KeepsNoIntermediateResults) {
  const Tensor x = leaf({3});
  std::vector<c10::weak_intrusive_ptr<at::TensorImpl>> intermediate;
  const Tensor y = checkpoint(
      [&](Tensor x) {
        const Tensor middle = x.exp();  // which its own derivative needs
        intermediate.emplace_back(middle.getIntrusivePtr());
        return middle.sin();
      },
      x);
  EXPECT_TRUE(intermediate[0].expired());
  y.sum().backward();
  EXPECT_TRUE(intermediate[1].expired());
}

// Nothing that goes in requires a gradient, as the input of the first layer of a model.
TEST_F(CheckpointTest, ParametersGetGradientsWhereNoInputRequiresOne) {
  expect_same([](const Caller& call) {
    torch::nn::Linear linear(3, 2);
    const Tensor y =
        call([linear](Tensor x) mutable { return linear(x).tanh(); }, torch::ones({1, 3}));
    y.sum().backward();
    return Tensors{y, linear->weight.grad(), linear->bias.grad()};
  });
}

TEST_F(CheckpointTest, TakesAModuleItself) {
  torch::nn::Linear linear(3, 2);
  checkpoint(linear, torch::ones({1, 3})).sum().backward();
  EXPECT_TRUE(linear->weight.grad().defined());
}

TEST_F(CheckpointTest, CapturedTensorsGetGradients) {
  expect_same([](const Caller& call) {
    const Tensor x = leaf({3});
    const Tensor captured_leaf = leaf({3});
    const Tensor source = leaf({3});
    const Tensor captured = source.exp();
    const Tensor y =
        call([=](Tensor x) { return (x * captured).sin() * captured_leaf * captured; }, x);
    (y + captured).sum().backward();
    return Tensors{y, x.grad(), captured_leaf.grad(), source.grad()};
  });
}

TEST_F(CheckpointTest, TakesAndGivesTrees) {
  expect_same([](const Caller& call) {
    const std::map<std::string, Tensor> batch{{"a", leaf({2})}, {"b", torch::ones({2})}};
    const Tensors list{leaf({2}), leaf({2})};
    const std::string name = "cos";
    auto [first, second] = call(
        [](std::map<std::string, Tensor> batch, Tensors list, std::string name, int power) {
          std::map<std::string, Tensor> sums{{"sum", batch["a"] + batch["b"] + list[0]},
                                             {"detached", batch["a"].detach()},
                                             {"count", torch::tensor(power)}};
          const Tensor y = name == "cos" ? list[1].cos() : list[1];
          return std::pair(sums, std::tuple(y.pow(power), std::optional<Tensor>(), 7, Tensor()));
        },
        batch, list, name, 3);
    EXPECT_EQ(std::get<2>(second), 7);
    EXPECT_FALSE(std::get<1>(second).has_value());
    EXPECT_FALSE(std::get<3>(second).defined());
    EXPECT_FALSE(first["detached"].requires_grad());
    const Tensor loss = (first["sum"].sin() * std::get<0>(second)).sum();
    loss.backward();
    return Tensors{loss, first["count"], batch.at("a").grad(), list[0].grad(), list[1].grad()};
  });
}

TEST_F(CheckpointTest, TakesAndGivesIValues) {
  expect_same([](const Caller& call) {
    const Tensor x = leaf({3});
    const c10::IValue in(std::tuple<Tensor, int64_t>{x, 2});
    const c10::IValue out = call(
        [](c10::IValue value) {
          const auto elements = value.toTuple()->elements();
          return c10::IValue(c10::List<Tensor>(
              {elements[0].toTensor().exp(), elements[0].toTensor().pow(elements[1].toInt())}));
        },
        in);
    const auto list = out.toTensorList();
    (list.get(0) * list.get(1)).sum().backward();
    return Tensors{list.get(0), list.get(1), x.grad()};
  });
}

// Only one of several results is used.
TEST_F(CheckpointTest, ResultsMayBeLeftUnused) {
  expect_same([](const Caller& call) {
    const Tensor x = leaf({3});
    const Tensor w = leaf({3});
    auto [used, unused] = call([w](Tensor x) { return std::pair(x.exp(), x * w); }, x);
    used.sum().backward();
    return Tensors{x.grad(), w.grad()};
  });
}

TEST_F(CheckpointTest, GivesBackWhatItWasGiven) {
  expect_same([](const Caller& call) {
    const Tensor x = leaf({3});
    const Tensor inner = x.exp();
    auto [same, view, again] =
        call([](Tensor a, Tensor b) { return std::tuple(a, b.view({3, 1}), a); }, x, inner);
    (same * view * again).sum().backward();
    return Tensors{same, view, x.grad()};
  });
}

TEST_F(CheckpointTest, Nests) {
  int inner_calls = 0;
  expect_same([&](const Caller& call) {
    inner_calls = 0;
    torch::nn::Linear a(4, 4);
    torch::nn::Linear b(4, 4);
    const Tensor x = leaf({2, 4});
    const Tensor captured = leaf({4}).exp();
    captured.retain_grad();
    auto inner = counted(inner_calls, [=](Tensor x) mutable {
      return torch::dropout(b(x) * captured, 0.5, true).sin();
    });
    const Tensor y = call(
        [&](Tensor x) {
          const Tensor middle = torch::dropout(a(x), 0.5, true).exp();
          return call(inner, middle) + call(inner, middle.cos());
        },
        x);
    y.sum().backward();
    return Tensors{y, x.grad(), a->weight.grad(), b->weight.grad(), captured.grad()};
  });
  // For both: forward, in the outer recomputation, and their own.
  EXPECT_EQ(inner_calls, 6);
}

TEST_F(CheckpointTest, SharedParametersAddUp) {
  expect_same([](const Caller& call) {
    torch::nn::Linear linear(4, 4);
    Tensor x = torch::ones({1, 4});
    for (int i = 0; i < 3; ++i) x = call([linear](Tensor x) mutable { return linear(x).sin(); }, x);
    x.sum().backward();
    return Tensors{x, linear->weight.grad()};
  });
}

// A hook sees the gradient once, as it would without a checkpoint.
TEST_F(CheckpointTest, HooksRunOnce) {
  expect_same([](const Caller& call) {
    const Tensor x = leaf({3});
    const Tensor w = leaf({3});
    const Tensor inner = x.sin();
    for (Tensor hooked : {x, w, inner}) {
      hooked.register_hook([](Tensor gradient) { return gradient * 2; });
    }
    call([w](Tensor a) { return (a * w).exp(); }, inner).sum().backward();
    return Tensors{x.grad(), w.grad()};
  });
}

TEST_F(CheckpointTest, RetainedGraphGoesBackwardTwice) {
  expect_same([](const Caller& call) {
    const Tensor x = leaf({50});
    const Tensor y = call([](Tensor x) { return torch::dropout(x, 0.5, true).exp(); }, x).sum();
    y.backward({}, /*retain_graph=*/true);
    y.backward();
    return Tensors{y, x.grad()};
  });
  const Tensor x = leaf({3});
  const Tensor y = checkpoint([](Tensor x) { return x.exp(); }, x).sum();
  y.backward();
  EXPECT_THAT(message_of([&] { y.backward(); }), HasSubstr("retain_graph"));
}

TEST_F(CheckpointTest, GradAsksForSomeGradientsOnly) {
  expect_same([](const Caller& call) {
    const Tensor x = leaf({3});
    const Tensor w = leaf({3});
    const Tensor y = call([w](Tensor x) { return (x * w).exp(); }, x).sum();
    const Tensors wanted = torch::autograd::grad({y}, {w});
    EXPECT_FALSE(x.grad().defined());
    EXPECT_FALSE(w.grad().defined());
    return wanted;
  });
}

TEST_F(CheckpointTest, GradientsOfGradients) {
  expect_same([](const Caller& call) {
    const Tensor x = leaf({3});
    const Tensor w = leaf({3});
    const Tensor inner = x.sin();
    const Tensor y = call([w](Tensor x) { return (x * w).exp() * w; }, inner).sum();
    const Tensors first = torch::autograd::grad({y}, {inner, w}, {}, true, /*create_graph=*/true);
    (first[0].square() + first[1].square()).sum().backward();
    return Tensors{first[0], first[1], x.grad(), w.grad()};
  });
}

// A function that takes a gradient itself makes leaves of its own.
TEST_F(CheckpointTest, FunctionMayDifferentiateInside) {
  expect_same([](const Caller& call) {
    const Tensor w = leaf({3});
    const Tensor y = call(
        [w](Tensor x) {
          const Tensor own = x.detach().requires_grad_();
          const Tensor inner = (own * w).exp().sum();
          return torch::autograd::grad({inner}, {own}, {}, true, true)[0].sin();
        },
        torch::ones({3}));
    y.sum().backward();
    return Tensors{y, w.grad()};
  });
}

TEST_F(CheckpointTest, WithoutGradientsIsAPlainCall) {
  int calls = 0;
  auto fn = counted(calls, [](Tensor x) { return x.exp(); });
  {
    torch::NoGradGuard no_grad;
    EXPECT_FALSE(checkpoint(fn, leaf({3})).requires_grad());
  }
  EXPECT_FALSE(checkpoint(fn, torch::ones({3})).requires_grad());
  EXPECT_EQ(calls, 2);
}

TEST_F(CheckpointTest, RandomNumbersNeedNotBeKept) {
  const Tensor x = torch::ones({1000}).requires_grad_();
  Tensors masks;
  checkpoint(
      {.preserve_rng_state = false},
      [&](Tensor x) {
        masks.push_back(torch::rand({1000}));
        return x * masks.back();
      },
      x)
      .sum()
      .backward();
  ASSERT_EQ(masks.size(), 2);
  EXPECT_FALSE(torch::equal(masks[0], masks[1]));
}

// The backward pass is outside of autocast, and the weights' casts are not kept until then.
TEST_F(CheckpointTest, AutocastIsAsInTheCall) {
  for (const bool cache : {true, false}) {
    expect_same([cache](const Caller& call) {
      torch::nn::Linear linear(8, 8);
      const Tensor x = leaf({2, 8});
      at::autocast::set_autocast_enabled(at::kCPU, true);
      at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
      at::autocast::set_autocast_cache_enabled(cache);
      at::autocast::increment_nesting();
      // The cast of the weight is made here, and used in the function.
      const Tensor before = linear(x);
      const Tensor y =
          call([linear](Tensor x) mutable { return linear(linear(x).sin()).exp(); }, before);
      const Tensor after = linear(y);
      at::autocast::decrement_nesting();
      at::autocast::clear_cache();
      at::autocast::set_autocast_enabled(at::kCPU, false);
      at::autocast::set_autocast_cache_enabled(true);
      EXPECT_EQ(y.scalar_type(), at::kBFloat16);
      after.sum().backward();
      EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
      return Tensors{y, x.grad(), linear->weight.grad()};
    });
  }
}

TEST_F(CheckpointTest, ExceptionsOfTheRecomputationArriveAndLeaveNothingBehind) {
  torch::manual_seed(1);
  int calls = 0;
  const Tensor x = leaf({3});
  const Tensor y = checkpoint(
      [&](Tensor x) {
        torch::rand({7});
        TORCH_CHECK(++calls != 2, "no second time");
        return x.exp();
      },
      x);
  const Tensor state = at::detail::getDefaultCPUGenerator().get_state();
  EXPECT_THAT(message_of([&] { y.sum().backward({}, true); }), HasSubstr("no second time"));
  EXPECT_TRUE(torch::equal(state, at::detail::getDefaultCPUGenerator().get_state()));
  EXPECT_FALSE(x.grad().defined());
  y.sum().backward();
  EXPECT_TRUE(torch::allclose(x.grad(), x.exp()));
  // Errors of the function's first run also reach the caller.
  EXPECT_THAT(message_of([&] {
                checkpoint([](Tensor) -> Tensor { TORCH_CHECK(false, "not at all"); }, x);
              }),
              HasSubstr("not at all"));
}

TEST_F(CheckpointTest, RecomputesWithTheOperatorHandlersOfTheCall) {
  struct Counter : OperatorHandler {
    Counter() : OperatorHandler(OperatorOrder::kLinearProducts) {}
    void call(const OperatorCall& call) override {
      if (call.op().schema().name() == "aten::exp") ++exponentials;
      call.proceed();
    }
    int exponentials = 0;
  };
  const auto counter = std::make_shared<Counter>();
  const Tensor x = leaf({3});
  Tensor y;
  {
    const OperatorModeScope scope(counter);
    y = checkpoint([](Tensor x) { return x.exp(); }, x);
  }
  EXPECT_EQ(counter->exponentials, 1);
  y.sum().backward();
  EXPECT_EQ(counter->exponentials, 2);
  EXPECT_TRUE(current_operator_handlers().empty());
}

TEST_F(CheckpointTest, SaysWhenTheFunctionDoesSomethingElse) {
  struct Case {
    std::string message;
    std::function<Tensors(Tensor, Tensor, bool)> fn;
  };
  const std::vector<Case> cases{
      {"gave 2 tensors when it was computed again, and 1",
       [](Tensor x, Tensor w, bool again) { return again ? Tensors{x * w, x} : Tensors{x * w}; }},
      {"shape [2]", [](Tensor x, Tensor w,
                       bool again) { return Tensors{again ? (x * w).slice(0, 0, 2) : x * w}; }},
      {"type double",
       [](Tensor x, Tensor w, bool again) {
         return Tensors{again ? (x * w).to(torch::kDouble) : x * w};
       }},
      {"requires no gradient",
       [](Tensor x, Tensor w, bool again) { return Tensors{again ? (x * w).detach() : x * w}; }},
      {"does not use a parameter of shape [3]",
       [](Tensor x, Tensor w, bool again) { return Tensors{again ? x.exp() : x * w}; }},
      {"is undefined when",
       [](Tensor x, Tensor w, bool again) { return Tensors{again ? Tensor() : x * w}; }},
  };
  for (const Case& wrong : cases) {
    const Tensor x = leaf({3});
    const Tensor w = leaf({3});
    bool again = false;
    const Tensors y = checkpoint([&](Tensor x) { return wrong.fn(x, w, again); }, x);
    again = true;
    EXPECT_THAT(message_of([&] { y[0].sum().backward(); }), HasSubstr(wrong.message));
  }
}

TEST_F(CheckpointTest, SaysWhenWhatItNeedsHasChanged) {
  torch::NoGradGuard no_grad;
  auto run = [](Tensor x) { return x.exp(); };
  {
    at::AutoGradMode on(true);
    const Tensor source = leaf({3});
    Tensor x = source * 1;
    const Tensor y = checkpoint(run, x).sum();
    x.add_(1);
    EXPECT_THAT(message_of([&] { y.backward(); }), HasSubstr("input tensor 0"));
  }
  {
    at::AutoGradMode on(true);
    Tensor w = leaf({3});
    const Tensor y = checkpoint([w](Tensor x) { return x * w; }, torch::ones({3})).sum();
    {
      torch::NoGradGuard off;
      w.add_(1);
    }
    EXPECT_THAT(message_of([&] { y.backward(); }),
                HasSubstr("a parameter of shape [3] was changed"));
  }
  {
    at::AutoGradMode on(true);
    const Tensor w = leaf({3});
    EXPECT_THAT(
        message_of([&] { checkpoint([w](Tensor x) { return x.add_(1) * w; }, torch::ones({3})); }),
        HasSubstr("by the function itself"));
  }
}

// ---- block()

struct CountedImpl : torch::nn::Module {
  CountedImpl() { linear = register_module("linear", torch::nn::Linear(3, 3)); }
  Tensor forward(Tensor x, double factor) {
    ++calls;
    return torch::tanh(linear(x)) * factor;
  }
  torch::nn::Linear linear{nullptr};
  int calls = 0;
};
TORCH_MODULE(Counted);

TEST_F(CheckpointTest, BlocksAreRecomputedInAScope) {
  torch::manual_seed(3);
  Counted chosen, other;
  const Tensor x = torch::randn({2, 3});
  // The gradients, and how often the two modules ran.
  using Modules = std::unordered_set<const torch::nn::Module*>;
  const auto recomputation = [](std::optional<Modules> modules) {
    return std::make_shared<const Recomputation>(Recomputation{.modules = std::move(modules)});
  };
  const auto run = [&](const std::optional<Modules>& modules, bool in_scope) {
    chosen->zero_grad();
    other->zero_grad();
    chosen->calls = other->calls = 0;
    Tensor y;
    {
      std::optional<RecomputationScope> scope;
      if (in_scope) scope.emplace(recomputation(modules));
      y = block(other.ptr(), block(chosen, x, 2.0), 0.5).sum();
      if (in_scope) EXPECT_EQ(scope->calls(), modules ? 1 : 2);
    }
    y.backward();
    return Tensors{chosen->linear->weight.grad().clone(), other->linear->weight.grad().clone(),
                   torch::tensor({chosen->calls, other->calls})};
  };
  const auto expect_calls = [](const Tensors& result, int chosen_calls, int other_calls) {
    EXPECT_TRUE(torch::equal(result[2], torch::tensor({chosen_calls, other_calls}))) << result[2];
  };
  const Tensors plain = run(std::nullopt, /*in_scope=*/false);
  expect_calls(plain, 1, 1);
  const Tensors all = run(std::nullopt, /*in_scope=*/true),
                some = run(Modules{chosen.get()}, /*in_scope=*/true);
  expect_calls(all, 2, 2);
  expect_calls(some, 2, 1);
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(torch::equal(plain[i], all[i]));
    EXPECT_TRUE(torch::equal(plain[i], some[i]));
  }
  const RecomputationScope outer(recomputation(std::nullopt));
  const RecomputationScope inner(recomputation(Modules()));
  const int before = chosen->calls;
  block(chosen, x, 1.0).sum().backward();
  EXPECT_EQ(chosen->calls, before + 1) << "the innermost scope decides";
  EXPECT_EQ(outer.calls(), 0);
}

TEST_F(CheckpointTest, OfBlocksTheFirstCallsOfAScopeMayBeRecomputed) {
  Counted first, second;
  const Tensor x = torch::randn({2, 3});
  const auto recomputation = std::make_shared<const Recomputation>(Recomputation{.first_calls = 1});
  for (int pass = 1; pass <= 2; ++pass) {
    Tensor y;
    {
      const RecomputationScope scope(recomputation);
      y = block(second, block(first, x, 2.0), 0.5).sum();
      EXPECT_EQ(scope.calls(), 1);
    }
    y.backward();
    EXPECT_EQ(first->calls, 2 * pass) << "each scope counts by itself";
    EXPECT_EQ(second->calls, pass);
  }
}

TEST_F(CheckpointTest, OffloadedInputsMayBeInContainers) {
  const Tensor x = leaf({3});
  const c10::IValue in(std::tuple<Tensor, int64_t>{x * 2, 2});
  const Tensor y = checkpoint(
      CheckpointOptions{.offload_inputs = true},
      [](const c10::IValue& value, const std::vector<Tensor>& more) {
        const auto elements = value.toTuple()->elements();
        return elements[0].toTensor().pow(elements[1].toInt()) * more[0];
      },
      in, std::vector<Tensor>{x, Tensor()});
  y.sum().backward();
  EXPECT_TRUE(torch::allclose(x.grad(), 12 * x.detach().square()));
}

struct OuterBlockImpl : torch::nn::Module {
  OuterBlockImpl() { inner = register_module("inner", Counted()); }
  Tensor forward(Tensor x) {
    ++calls;
    return torch::sin(block(inner, x.exp(), 2.0));
  }
  Counted inner{nullptr};
  int calls = 0;
};
TORCH_MODULE(OuterBlock);

// What is recomputed inside of what is recomputed keeps nothing there either.
TEST_F(CheckpointTest, BlocksInsideOfBlocksAreRecomputedInTheirTurn) {
  const auto run = [](bool in_scope) {
    torch::manual_seed(3);
    OuterBlock net;
    const Tensor x = leaf({2, 3});
    Tensor y;
    {
      std::optional<RecomputationScope> scope;
      if (in_scope) scope.emplace(std::make_shared<const Recomputation>());
      y = block(net, x).sum();
    }
    y.backward();
    EXPECT_EQ(net->calls, in_scope ? 2 : 1);
    EXPECT_EQ(net->inner->calls, in_scope ? 3 : 1);
    return Tensors{y, x.grad(), net->inner->linear->weight.grad()};
  };
  const Tensors plain = run(false), recomputed = run(true);
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(torch::equal(plain[i], recomputed[i]));
}

// On the host there is nothing to move.
TEST_F(CheckpointTest, InputsOnTheHostStayThere) {
  const Tensor x = leaf({3}), scaled = x * 2;
  const void* seen = nullptr;
  const Tensor y = checkpoint(
      CheckpointOptions{.offload_inputs = true},
      [&](const Tensor& input) {
        seen = input.const_data_ptr();
        return input.exp().sin();
      },
      scaled);
  seen = nullptr;
  y.sum().backward();
  EXPECT_EQ(seen, scaled.const_data_ptr());
}

}  // namespace
}  // namespace accelerate
