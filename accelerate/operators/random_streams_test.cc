#include "accelerate/operators/random_streams.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/operators/checkpoint.h"
#include "accelerate/operators/operator_mode.h"
#include "accelerate/runtime/runtime.h"
#include "accelerate/testing/fake_runtime.h"

namespace accelerate {
namespace {

using torch::Tensor;

// Columns of what all ranks have, and of parts.
constexpr int64_t kWhole = 6, kPart = 4;

std::shared_ptr<RandomStreams> streams_of(int64_t number) {
  return std::make_shared<RandomStreams>(
      number, [](const Tensor& tensor) { return tensor.dim() > 0 && tensor.size(-1) == kPart; });
}

struct Draw {
  std::string name;
  std::function<Tensor(const Tensor& ones)> draw;
};

// Ones of shape [64, columns] as four sequences with two heads.
Tensor heads(const Tensor& ones) { return ones.view({4, 2, 8, ones.size(-1)}); }

const std::vector<Draw> kDraws = {
    {"dropout", [](const Tensor& x) { return at::dropout(x, 0.5, true); }},
    {"dropout in place",
     [](const Tensor& x) {
       Tensor changed = x.clone();
       return at::dropout_(changed, 0.5, true);
     }},
    {"alpha dropout", [](const Tensor& x) { return at::alpha_dropout(x, 0.5, true); }},
    {"feature dropout", [](const Tensor& x) { return at::feature_dropout(x, 0.5, true); }},
    {"native dropout", [](const Tensor& x) { return std::get<0>(at::native_dropout(x, 0.5, {})); }},
    {"attention",
     [](const Tensor& x) {
       return at::scaled_dot_product_attention(heads(x), heads(x), heads(x), {}, 0.5);
     }},
    {"bernoulli", [](const Tensor& x) { return at::bernoulli(x * 0.5); }},
    {"bernoulli in place", [](const Tensor& x) { return x.clone().bernoulli_(0.5); }},
    {"rand_like", [](const Tensor& x) { return at::rand_like(x); }},
    {"randn_like", [](const Tensor& x) { return at::randn_like(x); }},
    {"randint_like", [](const Tensor& x) { return at::randint_like(x, 1000); }},
    {"normal", [](const Tensor& x) { return x.clone().normal_(); }},
    {"uniform", [](const Tensor& x) { return x.clone().uniform_(); }},
    {"multinomial", [](const Tensor& x) { return at::multinomial(x, 2); }},
    {"rrelu", [](const Tensor& x) { return at::rrelu(-x, 0.1, 0.4, /*training=*/true); }}};

// What is drawn twice, and what others draw afterwards.
struct Drawn {
  Tensor first, second, after;
};

// `number`: of the rank; absent: without streams.
Drawn drawn_by(std::optional<int64_t> number, const Draw& draw, int64_t columns) {
  torch::manual_seed(7);
  const Tensor ones = torch::ones({64, columns});
  const OperatorModeScope scope(number ? streams_of(*number) : nullptr);
  Drawn drawn;
  drawn.first = draw.draw(ones);
  drawn.second = draw.draw(ones);
  drawn.after = torch::rand({8});
  return drawn;
}

TEST(RandomStreams, AreEqualForWhatAllRanksHave) {
  for (const Draw& draw : kDraws) {
    SCOPED_TRACE(draw.name);
    const Drawn plain = drawn_by(std::nullopt, draw, kWhole);
    EXPECT_FALSE(plain.first.equal(plain.second));
    for (const int64_t number : {0, 1, 3}) {
      const Drawn drawn = drawn_by(number, draw, kWhole);
      EXPECT_TRUE(drawn.first.equal(plain.first));
      EXPECT_TRUE(drawn.second.equal(plain.second));
      EXPECT_TRUE(drawn.after.equal(plain.after));
    }
  }
}

TEST(RandomStreams, DifferForPartsAndLeaveTheCommonStreamEqual) {
  for (const Draw& draw : kDraws) {
    SCOPED_TRACE(draw.name);
    std::vector<Drawn> ranks;
    for (const int64_t number : {0, 1, 2, 3}) {
      const Drawn drawn = drawn_by(number, draw, kPart);
      EXPECT_FALSE(drawn.first.equal(drawn.second));
      EXPECT_TRUE(drawn.first.equal(drawn_by(number, draw, kPart).first));
      for (const Drawn& other : ranks) {
        EXPECT_FALSE(drawn.first.equal(other.first));
        EXPECT_FALSE(drawn.second.equal(other.second));
        EXPECT_FALSE(drawn.second.equal(other.first));
        EXPECT_TRUE(drawn.after.equal(other.after));
      }
      ranks.push_back(drawn);
    }
  }
}

TEST(RandomStreams, AreEqualForNeighboursThatHaveOnePart) {
  const auto drawn = [](int64_t number) {
    torch::manual_seed(7);
    const OperatorModeScope scope(
        std::make_shared<RandomStreams>(number, [](const Tensor&) { return 2; }));
    return at::dropout(torch::ones({64, kPart}), 0.5, true);
  };
  EXPECT_TRUE(drawn(0).equal(drawn(1)));
  EXPECT_TRUE(drawn(2).equal(drawn(3)));
  EXPECT_FALSE(drawn(1).equal(drawn(2)));
}

// So that ranks in another layout, which have smaller parts, go on alike.
TEST(RandomStreams, AdvanceTheCommonStreamByAsMuchForEveryPart) {
  const auto after = [](int64_t rows) {
    torch::manual_seed(7);
    const OperatorModeScope scope(streams_of(1));
    at::dropout(torch::ones({rows, kPart}), 0.5, true);
    return torch::rand({8});
  };
  EXPECT_TRUE(after(1).equal(after(1000)));
  torch::manual_seed(7);
  EXPECT_FALSE(torch::rand({8}).equal(after(1)));
}

TEST(RandomStreams, AdvanceNothingWhereNothingIsDrawnFromTheDefaultGenerator) {
  at::Generator own = at::detail::createCPUGenerator(3);
  const std::vector<Draw> none = {
      {"p of 0", [](const Tensor& x) { return at::dropout(x, 0, true); }},
      {"evaluation", [](const Tensor& x) { return at::dropout(x, 0.5, false); }},
      {"module in evaluation",
       [](const Tensor& x) {
         torch::nn::Dropout module(0.5);
         module->eval();
         return module(x);
       }},
      {"attention",
       [](const Tensor& x) {
         return at::scaled_dot_product_attention(heads(x), heads(x), heads(x));
       }},
      {"rrelu", [](const Tensor& x) { return at::rrelu(-x, 0.1, 0.4, /*training=*/false); }},
      {"own generator", [&own](const Tensor& x) {
         own.set_current_seed(3);
         return x.clone().bernoulli_(0.5, own);
       }}};
  torch::manual_seed(7);
  const Tensor expected = torch::rand({8});
  for (const Draw& each : none) {
    SCOPED_TRACE(each.name);
    const Drawn rank0 = drawn_by(0, each, kPart), rank1 = drawn_by(1, each, kPart);
    EXPECT_TRUE(rank0.first.equal(rank1.first));
    EXPECT_TRUE(rank0.after.equal(expected));
    EXPECT_TRUE(rank1.after.equal(expected));
  }
}

TEST(RandomStreams, GoOnAfterAnError) {
  const auto after_error = [](int64_t number) {
    torch::manual_seed(7);
    const OperatorModeScope scope(streams_of(number));
    EXPECT_THROW(torch::ones({2, kPart}).bernoulli_(2.0), c10::Error);
    return torch::rand({8});
  };
  EXPECT_TRUE(after_error(0).equal(after_error(1)));
}

TEST(RandomStreams, DrawNothingForTensorsWithoutValues) {
  const OperatorModeScope scope(streams_of(1));
  const Tensor meta = torch::ones({2, kPart}, torch::kMeta);
  torch::manual_seed(7);
  EXPECT_EQ(at::rand_like(meta).sizes(), meta.sizes());
  const Tensor after = torch::rand({8});
  torch::manual_seed(7);
  EXPECT_TRUE(torch::rand({8}).equal(after));
}

// ---- Recomputation.

struct Trained {
  Tensor output, of_up, of_down, after;
};

// Two blocks with a dropout of whole values and one of parts each.
Trained trained_by(int64_t number, bool recomputes) {
  FakeRuntime runtime;
  const RuntimeScope in_rank(runtime);
  torch::manual_seed(7);
  const Tensor up = torch::randn({kWhole, kPart}).requires_grad_();
  const Tensor down = torch::randn({kPart, kWhole}).requires_grad_();
  const auto block = [up, down](const Tensor& x) {
    const Tensor part = at::dropout(x, 0.3, true).matmul(up).tanh();
    return at::dropout(at::dropout(part, 0.5, true).matmul(down), 0.3, true);
  };
  Tensor x = torch::ones({16, kWhole});
  {
    const OperatorModeScope scope(streams_of(number));
    for (int i = 0; i < 2; ++i) x = recomputes ? checkpoint(block, x) : block(x);
  }
  x.pow(2).sum().backward();
  return {x.detach(), up.grad(), down.grad(), torch::rand({8})};
}

TEST(RandomStreams, DrawAlikeInARecomputation) {
  for (const int64_t number : {0, 3}) {
    const Trained kept = trained_by(number, /*recomputes=*/false);
    const Trained again = trained_by(number, /*recomputes=*/true);
    EXPECT_TRUE(again.output.equal(kept.output));
    EXPECT_TRUE(again.of_up.equal(kept.of_up));
    EXPECT_TRUE(again.of_down.equal(kept.of_down));
    EXPECT_TRUE(again.after.equal(kept.after));
  }
  EXPECT_FALSE(trained_by(0, true).output.equal(trained_by(3, true).output));
}

}  // namespace
}  // namespace accelerate
