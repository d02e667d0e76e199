#include "accelerate/operators/operator_mode.h"

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

namespace accelerate {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using torch::Tensor;

using Log = std::vector<std::string>;

// Records each operator, or the handler's own name if it has one.
class Notes : public OperatorHandler {
 public:
  Notes(OperatorOrder order, Log& log, std::string name = "")
      : OperatorHandler(order), log_(log), name_(std::move(name)) {}

  void call(const OperatorCall& call) override {
    log_.push_back(name_.empty() ? call.op().schema().name() : name_);
    call.proceed();
  }

 private:
  Log& log_;
  const std::string name_;
};

class Runs : public OperatorHandler {
 public:
  Runs(OperatorOrder order, std::function<void(const OperatorCall&)> body)
      : OperatorHandler(order), body_(std::move(body)) {}
  void call(const OperatorCall& call) override { body_(call); }

 private:
  const std::function<void(const OperatorCall&)> body_;
};

std::shared_ptr<OperatorHandler> notes(OperatorOrder order, Log& log, std::string name = "") {
  return std::make_shared<Notes>(order, log, std::move(name));
}

bool includes_key() {
  return c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::TESTING_ONLY_GenericMode);
}

TEST(OperatorMode, IncludesItsKeyOnlyWithHandlers) {
  Log log;
  EXPECT_FALSE(includes_key());
  const OperatorModeScope nothing(nullptr);
  EXPECT_FALSE(includes_key());
  {
    const OperatorModeScope scope(notes(OperatorOrder::kLinearProducts, log));
    EXPECT_TRUE(includes_key());
    {
      const OperatorModeScope none{OperatorHandlers()};
      EXPECT_FALSE(includes_key());
      torch::ones({2}).add(1);
    }
    EXPECT_TRUE(includes_key());
    const OperatorModeScope without = OperatorModeScope::without(OperatorOrder::kLinearProducts);
    EXPECT_FALSE(includes_key());
  }
  EXPECT_FALSE(includes_key());
  EXPECT_THAT(log, IsEmpty());
}

TEST(OperatorMode, OrdersHandlersAndPutsTheInnermostScopeFirst) {
  Log log;
  const Tensor x = torch::ones({2});
  const OperatorModeScope outer(notes(OperatorOrder::kLinearProducts, log, "outer"));
  const OperatorModeScope inner(notes(OperatorOrder::kLinearProducts, log, "inner"));
  const OperatorModeScope construction(notes(OperatorOrder::kConstruction, log, "construction"));
  x.neg();
  EXPECT_THAT(log, ElementsAre("construction", "inner", "outer"));
  log.clear();
  const OperatorModeScope without = OperatorModeScope::without(OperatorOrder::kLinearProducts);
  x.neg();
  EXPECT_THAT(log, ElementsAre("construction"));
}

TEST(OperatorMode, SortsHandlersThatReplaceOthers) {
  Log log;
  const Tensor x = torch::ones({2});
  const OperatorModeScope scope(
      OperatorHandlers{notes(OperatorOrder::kLinearProducts, log, "products"),
                       notes(OperatorOrder::kConstruction, log, "construction")});
  x.neg();
  EXPECT_THAT(log, ElementsAre("construction", "products"));
}

// A small net, forward and backward, under NoGradGuard and under InferenceMode; all results.
std::vector<Tensor> compute() {
  torch::manual_seed(7);
  torch::nn::Sequential net(torch::nn::Conv2d(3, 4, 3), torch::nn::BatchNorm2d(4),
                            torch::nn::ReLU(torch::nn::ReLUOptions(true)), torch::nn::Flatten(),
                            torch::nn::Dropout(0.3), torch::nn::Linear(16, 5));
  torch::nn::LSTM lstm(torch::nn::LSTMOptions(5, 6).num_layers(2).bidirectional(true));
  const Tensor x = torch::randn({2, 3, 4, 4}, torch::requires_grad());
  const Tensor y = std::get<0>(lstm(net->forward(x).unsqueeze(0)));
  const auto parts = y.chunk(2, -1);
  Tensor out = torch::empty({0});
  torch::cat_out(out, {parts[0].detach(), parts[1].detach()}, 0);
  (y.pow(2).sum() + y.index({y.gt(0)}).sum()).backward();
  std::vector<Tensor> results{y.detach(), out, x.grad()};
  for (const Tensor& p : net->parameters()) results.push_back(p.grad());
  for (const Tensor& p : lstm->parameters()) results.push_back(p.grad());
  {
    const torch::NoGradGuard no_grad;
    results.push_back(net->forward(x));
    results.push_back(x.detach().clone().resize_({2, 3}).t_());
  }
  {
    const c10::InferenceMode inference;
    results.push_back(net->forward(x).clone());
  }
  return results;
}

TEST(OperatorMode, SeesForwardAndBackwardOperatorsAndChangesNoBit) {
  const std::vector<Tensor> plain = compute();
  Log log;
  std::vector<Tensor> shown;
  {
    const OperatorModeScope scope(notes(OperatorOrder::kConstruction, log));
    const OperatorModeScope second(notes(OperatorOrder::kLinearProducts, log));
    shown = compute();
  }
  ASSERT_EQ(shown.size(), plain.size());
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(shown[i].equal(plain[i])) << i;
  for (const char* name :
       {"aten::empty", "aten::conv2d", "aten::relu_", "aten::dropout", "aten::lstm", "aten::cat",
        "aten::convolution_backward", "aten::sum", "aten::t_"}) {
    EXPECT_THAT(log, Contains(name));
  }
}

TEST(OperatorMode, AHandlerMayComputeTheResultItself) {
  const OperatorModeScope scope(
      std::make_shared<Runs>(OperatorOrder::kLinearProducts, [](const OperatorCall& call) {
        if (call.op().schema().name() != "aten::mul") return call.proceed();
        const OperatorModeScope off = OperatorModeScope::without(OperatorOrder::kLinearProducts);
        const Tensor a = torch::jit::peek(call.stack(), 0, 2).toTensor();
        const Tensor b = torch::jit::peek(call.stack(), 1, 2).toTensor();
        torch::jit::drop(call.stack(), 2);
        torch::jit::push(call.stack(), a.mul(b).add(1));
      }));
  const Tensor x = torch::full({2}, 3.0, torch::requires_grad());
  const Tensor y = x.mul(x);
  EXPECT_TRUE(y.eq(10).all().item<bool>());
  y.sum().backward();
  EXPECT_TRUE(x.grad().eq(8).all().item<bool>());  // 3 * 1 + 1, of each factor
}

TEST(OperatorMode, ExceptionsReachTheCallerAndScopesEnd) {
  Log log;
  const Tensor x = torch::ones({2});
  try {
    const OperatorModeScope scope(std::make_shared<Runs>(
        OperatorOrder::kLinearProducts,
        [](const OperatorCall&) { throw std::runtime_error("from a handler"); }));
    x.neg();
    FAIL() << "the handler's exception is gone";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "from a handler");
  }
  EXPECT_FALSE(includes_key());
  EXPECT_TRUE(current_operator_handlers().empty());
  const OperatorModeScope scope(notes(OperatorOrder::kLinearProducts, log));
  EXPECT_THROW(x.mm(x), c10::Error);
  log.clear();
  x.neg();
  EXPECT_THAT(log, ElementsAre("aten::neg"));
}

TEST(OperatorMode, ActsOnAnotherThreadOnlyWithTheHandlersTakenAlong) {
  Log log, by_itself;
  const OperatorModeScope scope(notes(OperatorOrder::kLinearProducts, log));
  const OperatorHandlers handlers = current_operator_handlers();
  log.clear();
  std::thread([&] {
    torch::ones({2});
    by_itself = log;
    const OperatorModeScope installed(handlers);
    torch::ones({2}).neg();
  }).join();
  EXPECT_THAT(by_itself, IsEmpty());
  EXPECT_THAT(log, Contains("aten::neg"));
}

TEST(OperatorMode, GoesAlongWithTheStateOfItsThread) {
  Log log;
  std::optional<OperatorModeScope> scope(std::in_place, notes(OperatorOrder::kLinearProducts, log));
  const at::ThreadLocalState state;
  log.clear();
  float sum = 0;
  const auto compute_elsewhere = [&] {
    std::thread([&] {
      const at::ThreadLocalStateGuard guard(state);
      EXPECT_TRUE(includes_key());
      sum = torch::ones({2}).sum().item<float>();
    }).join();
  };
  compute_elsewhere();
  EXPECT_EQ(sum, 2);
  EXPECT_THAT(log, Contains("aten::sum"));
  scope.reset();
  log.clear();
  sum = 0;
  compute_elsewhere();
  EXPECT_EQ(sum, 2);
  EXPECT_THAT(log, IsEmpty()) << "the scope has ended";
}

// As that of DDP's Reducer, which keeps the state that its thread had when it was made.
TEST(OperatorMode, AStateThatOutlivesItsScopeHasTheHandlersAroundIt) {
  Log outer_log, inner_log;
  const OperatorModeScope outer(notes(OperatorOrder::kLinearProducts, outer_log));
  std::optional<at::ThreadLocalState> state;
  {
    const OperatorModeScope inner(notes(OperatorOrder::kConstruction, inner_log));
    state.emplace();
  }
  const Tensor x = torch::ones({2});
  inner_log.clear();
  outer_log.clear();
  {
    const at::ThreadLocalStateGuard guard(*state);
    x.neg();
  }
  EXPECT_THAT(inner_log, IsEmpty());
  EXPECT_THAT(outer_log, ElementsAre("aten::neg"));
}

// Other code may hand the dispatch keys alone on to a thread, which has no handlers then.
TEST(OperatorMode, AThreadThatHasTheKeyAloneComputesAsUsual) {
  Log log;
  const OperatorModeScope scope(notes(OperatorOrder::kLinearProducts, log));
  log.clear();
  float sum = 0;
  std::thread([&] {
    c10::impl::tls_set_dispatch_key_included(c10::DispatchKey::TESTING_ONLY_GenericMode, true);
    EXPECT_TRUE(includes_key());
    sum = torch::ones({2}).sum().item<float>();
  }).join();
  EXPECT_EQ(sum, 2);
  EXPECT_THAT(log, IsEmpty());
}

// Backward passes, each of which begins inside the one before. LibTorch runs those that are too
// deep for one stack on threads of its own, as it runs those of devices.
void backward_inside_backward(int depth) {
  const torch::AutoGradMode with_gradients(true);
  const Tensor x = torch::full({1}, 3.0, torch::requires_grad());
  const Tensor y = x.mul(x);
  y.register_hook([depth](const Tensor& gradient) {
    if (depth > 0) backward_inside_backward(depth - 1);
    return gradient;
  });
  y.backward();
  EXPECT_EQ(x.grad().item<double>(), 6);
}

TEST(OperatorMode, SeesABackwardPassOnAnotherThread) {
  constexpr int kDeeperThanOneStack = 70;
  std::mutex mutex;
  std::set<std::thread::id> of_products;
  int products = 0;
  const OperatorModeScope scope(
      std::make_shared<Runs>(OperatorOrder::kLinearProducts, [&](const OperatorCall& call) {
        if (call.op().schema().name() == "aten::mul") {
          const std::lock_guard lock(mutex);
          of_products.insert(std::this_thread::get_id());
          ++products;
        }
        call.proceed();
      }));
  backward_inside_backward(kDeeperThanOneStack);
  EXPECT_GT(of_products.size(), 1) << "LibTorch computed all passes on this thread";
  // One product forward, and one backward for each factor.
  EXPECT_EQ(products, 3 * (kDeeperThanOneStack + 1));
}

}  // namespace
}  // namespace accelerate
