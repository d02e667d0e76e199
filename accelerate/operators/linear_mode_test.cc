#include "accelerate/operators/operator_mode.h"

#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

namespace accelerate {
namespace {

using ::testing::ElementsAre;
using torch::Tensor;

// Computes products with its own weights as zeros, and records its calls.
class Zeros : public LinearHandler {
 public:
  explicit Zeros(std::vector<Tensor> weights) : weights_(std::move(weights)) {}

  std::optional<Tensor> linear(const Tensor& input, const Tensor& weight,
                               const Tensor& bias) override {
    for (const Tensor& own : weights_) {
      if (!own.is_same(weight)) continue;
      calls.push_back(bias.defined() ? "with bias" : "without");
      std::vector<int64_t> sizes = input.sizes().vec();
      sizes.back() = weight.size(0);
      return torch::zeros(sizes);
    }
    return std::nullopt;
  }

  std::vector<std::string> calls;

 private:
  std::vector<Tensor> weights_;
};

bool is_zero(const Tensor& tensor) { return tensor.eq(0).all().item<bool>(); }

TEST(LinearMode, ShowsEverySpellingOfALayer) {
  torch::nn::Linear layer(4, 3);
  torch::nn::Linear bare(torch::nn::LinearOptions(4, 3).bias(false));
  auto handler = std::make_shared<Zeros>(std::vector<Tensor>{layer->weight, bare->weight});
  const Tensor two = torch::randn({2, 4}), three = torch::randn({2, 5, 4});
  const OperatorModeScope scope(handler);
  EXPECT_TRUE(is_zero(layer(two)));
  EXPECT_TRUE(layer(three).equal(layer->bias.expand({2, 5, 3})));  // it adds the bias itself
  EXPECT_TRUE(is_zero(bare(two)));
  EXPECT_TRUE(is_zero(torch::linear(two, layer->weight, layer->bias)));
  EXPECT_TRUE(is_zero(torch::linear(three, bare->weight)));
  {
    const torch::NoGradGuard no_grad;
    EXPECT_TRUE(is_zero(layer(two)));
  }
  {
    const c10::InferenceMode inference;
    EXPECT_TRUE(is_zero(layer(two)));
  }
  EXPECT_THAT(handler->calls, ElementsAre("with bias", "without", "without", "with bias", "without",
                                          "with bias", "with bias"));
}

TEST(LinearMode, LeavesOtherProductsAlone) {
  torch::nn::Linear layer(4, 4), other(4, 4);
  auto handler = std::make_shared<Zeros>(std::vector<Tensor>{layer->weight});
  const Tensor x = torch::randn({4, 4});
  const Tensor plain = other(x), product = x.matmul(layer->weight), mm = x.mm(layer->weight.t()),
               scaled = torch::addmm(layer->bias, x, layer->weight.t(), 1, 2),
               part = x.matmul(layer->weight.narrow(0, 0, 2).t()),
               first = layer->weight.t().matmul(x);
  const OperatorModeScope scope(handler);
  EXPECT_TRUE(other(x).equal(plain));
  EXPECT_TRUE(x.matmul(layer->weight).equal(product));
  EXPECT_TRUE(x.mm(layer->weight.t()).equal(mm));
  EXPECT_TRUE(torch::addmm(layer->bias, x, layer->weight.t(), 1, 2).equal(scaled));
  EXPECT_TRUE(x.matmul(layer->weight.narrow(0, 0, 2).t()).equal(part));
  EXPECT_TRUE(layer->weight.t().matmul(x).equal(first));
  EXPECT_TRUE(handler->calls.empty());
}

TEST(LinearMode, AsksTheInnermostFirstAndTheOthersAfterIt) {
  torch::nn::Linear a(4, 4), b(4, 4);
  auto outer = std::make_shared<Zeros>(std::vector<Tensor>{a->weight, b->weight});
  auto inner = std::make_shared<Zeros>(std::vector<Tensor>{a->weight});
  const Tensor x = torch::randn({2, 4});
  const OperatorModeScope first(outer);
  {
    const OperatorModeScope second(inner);
    a(x);
    b(x);
    const OperatorModeScope nothing(std::shared_ptr<OperatorHandler>(nullptr));
    a(x);
  }
  a(x);
  EXPECT_EQ(inner->calls.size(), 2);
  EXPECT_EQ(outer->calls.size(), 2);
}

// A recomputation is not what the backward pass itself computes.
TEST(LinearMode, TellsABackwardPassFromARecomputation) {
  class Asks : public OperatorHandler {
   public:
    Asks() : OperatorHandler(OperatorOrder::kLinearProducts) {}
    void call(const OperatorCall& call) override {
      if (call.op().schema().name() == "aten::mm")
        is_backward.push_back(is_backward_of_operator_scope());
      call.proceed();
    }
    std::vector<bool> is_backward;
  };
  const auto handler = std::make_shared<Asks>();
  const OperatorModeScope scope(handler);
  const Tensor x = torch::rand({2, 2}, torch::requires_grad());
  const Tensor y = x.mm(x);
  y.register_hook([&](const Tensor& gradient) {
    const OperatorModeScope again(OperatorHandlers{handler});
    const torch::NoGradGuard no_grad;
    x.mm(x);
    return gradient;
  });
  y.sum().backward();
  EXPECT_THAT(handler->is_backward, ElementsAre(false, false, true, true));
}

TEST(LinearMode, EndsWithItsScopeByAnExceptionToo) {
  torch::nn::Linear layer(4, 4);
  auto handler = std::make_shared<Zeros>(std::vector<Tensor>{layer->weight});
  const Tensor x = torch::randn({2, 4});
  try {
    const OperatorModeScope scope(handler);
    throw std::runtime_error("from the forward pass");
  } catch (const std::runtime_error&) {
  }
  EXPECT_FALSE(is_zero(layer(x)));
  EXPECT_TRUE(current_operator_handlers().empty());
}

TEST(LinearMode, GoesToAnotherThreadOnlyByHand) {
  torch::nn::Linear layer(4, 4);
  auto handler = std::make_shared<Zeros>(std::vector<Tensor>{layer->weight});
  const Tensor x = torch::randn({2, 4});
  const OperatorModeScope scope(handler);
  const OperatorHandlers handlers = current_operator_handlers();
  bool by_itself = true, by_hand = false, taken_away = true;
  std::thread([&] {
    by_itself = is_zero(layer(x));
    const OperatorModeScope installed(handlers);
    by_hand = is_zero(layer(x));
    const OperatorModeScope none{OperatorHandlers()};
    taken_away = is_zero(layer(x));
  }).join();
  EXPECT_FALSE(by_itself);
  EXPECT_TRUE(by_hand);
  EXPECT_FALSE(taken_away);
  const OperatorModeScope off = OperatorModeScope::without(OperatorOrder::kLinearProducts);
  EXPECT_FALSE(is_zero(layer(x)));
}

}  // namespace
}  // namespace accelerate
