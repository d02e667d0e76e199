// What maybe_context_parallel refuses: each time the message names the rank and the remedy, and
// nothing has changed.
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "accelerate/config/model_structure.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/examples/lm/config.h"
#include "accelerate/examples/lm/model.h"
#include "accelerate/testing/value_error.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::Rank;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Runs it on two ranks along cp.
void on_two_ranks(const std::function<void(Accelerator&)>& body) {
  Cluster("1x2:h100").run_on_every_rank([&](Rank&) {
    Accelerator accelerator({.parallelism_config = ParallelismConfig({.cp_size = 2})});
    body(accelerator);
  });
}

at::Tensor integers(Accelerator& accelerator, at::IntArrayRef sizes) {
  return at::ones(sizes, at::TensorOptions(accelerator.device()).dtype(at::kLong));
}

at::Tensor places(Accelerator& accelerator, int64_t length) {
  return at::arange(length, at::TensorOptions(accelerator.device()).dtype(at::kLong));
}

TEST(ContextRefuses, ALengthThatRanksDoNotDivide) {
  on_two_ranks([](Accelerator& accelerator) {
    const at::Tensor tokens = integers(accelerator, {1, 130});
    EXPECT_THAT(
        value_error_of([&] { (void)accelerator.maybe_context_parallel({tokens}, {1}); }),
        AllOf(HasSubstr("130 tokens"), HasSubstr("pad them to 132"), HasSubstr("cut them to 128")));
    EXPECT_EQ(tokens.size(1), 130);
    // A refused scope does not count as one.
    const auto scope = accelerator.maybe_context_parallel({integers(accelerator, {1, 132})}, {1});
    EXPECT_THAT(value_error_of([&] { (void)accelerator.maybe_context_parallel(); }),
                HasSubstr("they do not nest"));
  });
}

TEST(ContextRefuses, BuffersThatDoNotFitEachOther) {
  on_two_ranks([](Accelerator& accelerator) {
    const at::Tensor a = integers(accelerator, {1, 8}), b = integers(accelerator, {1, 12});
    const at::Tensor computed = torch::ones({8}, torch::requires_grad());
    const at::Tensor empty = integers(accelerator, {1, 0});
    using Buffers = std::vector<at::Tensor>;
    using Dims = std::vector<int64_t>;
    const std::vector<std::tuple<Buffers, Dims, Buffers, std::string>> rows = {
        {{a}, {}, {}, "need as many entries, but there are 1 and 0"},
        {{a}, {2}, {}, "buffer 0 has no dim 2"},
        {{a}, {-3}, {}, "buffer 0 has no dim -3"},
        {{at::Tensor()}, {0}, {}, "buffer 0 has no dim 0"},
        {{empty}, {1}, {}, "the buffers have no tokens"},
        {{a, b}, {1, 1}, {}, "buffer 1 has 12 tokens along dim 1, but buffer 0 has 8"},
        {{a, a}, {1, 1}, {}, "buffer 0 is given twice"},
        {{a}, {1}, {b}, "not among the buffers"},
        {{computed}, {0}, {}, "requires a gradient"}};
    for (const auto& [buffers, dims, no_restore, why] : rows) {
      EXPECT_THAT(value_error_of([&, &buffers = buffers, &dims = dims, &kept = no_restore] {
                    (void)accelerator.maybe_context_parallel(buffers, dims, kept);
                  }),
                  AllOf(HasSubstr("rank "), HasSubstr(why)));
      EXPECT_EQ(a.size(1), 8);
    }
  });
}

TEST(ContextRefuses, PositionsOfNothing) {
  on_two_ranks([](Accelerator& accelerator) {
    const auto scope = accelerator.maybe_context_parallel();
    EXPECT_THAT(value_error_of([&] { (void)scope.positions(); }),
                AllOf(HasSubstr("rank "), HasSubstr("without buffers nothing says how long")));
  });
}

TEST(ContextRefuses, LabelsThatAreNotShifted) {
  on_two_ranks([](Accelerator& accelerator) {
    const at::Tensor tokens = places(accelerator, 16).add(5).remainder(7).add(2).unsqueeze(0);
    at::Tensor labels = tokens.clone();
    labels.narrow(1, 0, 3).fill_(-100);
    EXPECT_THAT(
        value_error_of([&] { (void)accelerator.maybe_context_parallel({tokens, labels}, {1, 1}); }),
        AllOf(HasSubstr("buffer 1 has the values of buffer 0"), HasSubstr("not shifted")));
    const at::Tensor shifted =
        at::cat({tokens.narrow(1, 1, 15), at::full({1, 1}, -100, tokens.options())}, /*dim=*/1);
    const auto scope = accelerator.maybe_context_parallel({tokens, shifted}, {1, 1});
    EXPECT_EQ(shifted.size(1), 8);
  });
}

lm::Lm language_model() { return lm::Lm(lm::model_config("tiny", {.blocks = lm::Blocks::kLlama})); }

TEST(ContextRefuses, AModelWithoutPositions) {
  on_two_ranks([](Accelerator& accelerator) {
    auto model = accelerator.prepare(language_model().ptr());
    const at::Tensor tokens = integers(accelerator, {1, 64}),
                     labels = integers(accelerator, {1, 64});
    const at::Tensor positions = places(accelerator, 64);
    const auto scope = accelerator.maybe_context_parallel({tokens, labels, positions}, {1, 1, 0});
    EXPECT_THAT(value_error_of([&] { model(tokens); }),
                AllOf(HasSubstr("rank "), HasSubstr("was given no positions")));
    EXPECT_THAT(value_error_of([&] { model(tokens, labels); }),
                HasSubstr("was given no positions"));
    EXPECT_EQ(model(tokens, positions).size(1), 32);
  });
}

TEST(ContextRefuses, GenerationInsideOfTheScope) {
  on_two_ranks([](Accelerator& accelerator) {
    auto model = accelerator.prepare(language_model().ptr());
    const at::Tensor tokens = integers(accelerator, {1, 64});
    {
      const auto scope = accelerator.maybe_context_parallel({tokens}, {1});
      const at::NoGradGuard no_grad;
      EXPECT_THAT(value_error_of([&] { model(integers(accelerator, {1, 5})); }),
                  AllOf(HasSubstr("has 5 queries and 5 keys"), HasSubstr("has 32 tokens"),
                        HasSubstr("generate tokens")));
    }
    EXPECT_EQ(model(integers(accelerator, {1, 5})).size(1), 5);
  });
}

// Which needs the buffers as its forward pass saw them.
TEST(ContextRefuses, ABackwardPassBehindTheEndOfTheScope) {
  on_two_ranks([](Accelerator& accelerator) {
    auto model = accelerator.prepare(language_model().ptr());
    const auto loss_of = [&](bool restores) {
      const at::Tensor tokens = integers(accelerator, {1, 64});
      const std::vector<at::Tensor> kept =
          restores ? std::vector<at::Tensor>() : std::vector<at::Tensor>{tokens};
      const auto scope = accelerator.maybe_context_parallel({tokens}, {1}, kept);
      return model(tokens, scope.positions()).mean();
    };
    accelerator.backward(loss_of(/*restores=*/false));
    EXPECT_THAT(value_error_of([&] { accelerator.backward(loss_of(/*restores=*/true)); }),
                AllOf(HasSubstr("rank "), HasSubstr("has ended before the backward pass"),
                      HasSubstr("or name the buffers in no_restore_buffers (")));
  });
}

struct WindowedImpl : torch::nn::Module, ModelStructure {
  explicit WindowedImpl(std::string type) : type_(std::move(type)) {
    register_parameter("weight", torch::ones({1}));
  }
  at::Tensor forward(const at::Tensor& x) { return x; }
  std::vector<std::string> layer_types() const override { return {"full_attention", type_}; }

 private:
  const std::string type_;
};

TEST(ContextRefuses, LayersThatNeedWholeSequences) {
  const auto error_of = [](const ParallelismOptions& sizes, const char* type) {
    std::string error;
    Cluster("1x2:h100").run_on_every_rank([&](Rank& rank) {
      Accelerator accelerator({.parallelism_config = ParallelismConfig(sizes)});
      const std::string own =
          value_error_of([&] { (void)accelerator.prepare(std::make_shared<WindowedImpl>(type)); });
      if (rank.index() == 1) error = own;
    });
    return error;
  };
  EXPECT_THAT(error_of({.cp_size = 2}, "sliding_attention"),
              HasSubstr("layers of type ['sliding_attention'] (model Windowed)"));
  EXPECT_EQ(error_of({.cp_size = 2}, "full_attention"), "no error");
  EXPECT_THAT(error_of({.sp_size = 2}, "linear_attention"),
              HasSubstr("layers of type ['linear_attention'] (model Windowed)"));
  EXPECT_EQ(error_of({.sp_size = 2}, "sliding_attention"), "no error");
}

// They attend to each other's tokens, which they would compute with other parameters.
TEST(ContextRefuses, ToLetRanksOfOneSequenceTrainIndependently) {
  for (const ParallelismOptions& sizes :
       {ParallelismOptions{.cp_size = 2}, ParallelismOptions{.sp_size = 2}}) {
    Cluster("1x2:h100").run_on_every_rank([&](Rank& rank) {
      Accelerator accelerator({.parallelism_config = ParallelismConfig(sizes)});
      const auto model = accelerator.prepare(torch::nn::Linear(2, 2));
      EXPECT_THAT(value_error_of([&] { LocalSGD(accelerator, model, 2); }),
                  AllOf(HasSubstr(sizes.cp_size ? "LocalSGD: ranks along cp compute attention"
                                                : "LocalSGD: ranks along sp compute attention"),
                        HasSubstr("rank " + std::to_string(rank.index()))));
    });
  }
}

// A layer whose attention is as its user says.
class AttentionImpl : public torch::nn::Module {
 public:
  using Compute = std::function<at::Tensor(const at::Tensor&)>;
  explicit AttentionImpl(Compute compute)
      : weight_(register_parameter("weight", torch::ones({1}))), compute_(std::move(compute)) {}
  // Shapes: [batch, heads, tokens, size of a head].
  at::Tensor forward(const at::Tensor& x) { return compute_(x * weight_); }

 private:
  at::Tensor weight_;
  const Compute compute_;
};

std::string error_of(const AttentionImpl::Compute& compute) {
  std::string error;
  on_two_ranks([&](Accelerator& accelerator) {
    auto model = accelerator.prepare(std::make_shared<AttentionImpl>(compute));
    const at::Tensor x =
        at::ones({1, 2, 16, 8}, at::TensorOptions(accelerator.device()).dtype(at::kFloat));
    const auto scope = accelerator.maybe_context_parallel({x}, {2});
    (void)scope.positions();
    const std::string own = value_error_of([&] { model(x); });
    if (accelerator.is_main_process()) error = own;
  });
  return error;
}

TEST(ContextRefuses, AttentionThatRanksDoNotDivide) {
  EXPECT_THAT(error_of([](const at::Tensor& x) {
                const at::Tensor mask = at::ones({x.size(2), x.size(2)}, x.options()).tril();
                return at::scaled_dot_product_attention(x, x, x, mask.to(at::kBool));
              }),
              AllOf(HasSubstr("rank 0: scaled_dot_product_attention"), HasSubstr("has a mask"),
                    HasSubstr("is_causal")));
  EXPECT_THAT(error_of([](const at::Tensor& x) {
                return at::scaled_dot_product_attention(x, x, x, {}, /*dropout_p=*/0.1);
              }),
              HasSubstr("has a dropout of 0.1"));
  EXPECT_THAT(error_of([](const at::Tensor& x) {
                return at::scaled_dot_product_attention(x, x.narrow(2, 0, 4), x.narrow(2, 0, 4));
              }),
              HasSubstr("has 8 queries and 4 keys"));
  EXPECT_THAT(error_of([](const at::Tensor& x) {
                return at::scaled_dot_product_attention(x, x.to(at::kDouble), x.to(at::kDouble));
              }),
              HasSubstr("which must be one dtype"));
  EXPECT_THAT(error_of([](const at::Tensor& x) {
                return at::scaled_dot_product_attention(x, x.narrow(1, 0, 1), x.narrow(1, 0, 1));
              }),
              HasSubstr("has 2 heads of queries and 1 of keys; with enable_gqa"));
  EXPECT_THAT(error_of([](const at::Tensor& x) {
                return at::scaled_dot_product_attention(x, x, x.narrow(3, 0, 4));
              }),
              HasSubstr("needs [batch, heads, tokens, size of a head]"));
}

TEST(ContextRefuses, AttentionByHandAtItsOperator) {
  EXPECT_THAT(error_of([](const at::Tensor& x) {
                return x.matmul(x.transpose(2, 3)).softmax(-1).matmul(x);
              }),
              AllOf(HasSubstr("rank 0: aten::softmax of sizes [1, 2, 8, 8] looks like attention by "
                              "hand"),
                    HasSubstr("call scaled_dot_product_attention, which ranks along cp divide")));
  EXPECT_THAT(error_of([](const at::Tensor& x) {
                return at::_safe_softmax(x.matmul(x.transpose(2, 3)), -1).matmul(x);
              }),
              HasSubstr("rank 0: aten::_safe_softmax of sizes [1, 2, 8, 8] looks like"));
  EXPECT_THAT(error_of([](const at::Tensor& x) {
                return std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(x, x, x));
              }),
              HasSubstr("rank 0: aten::_scaled_dot_product_flash_attention_for_cpu computes "
                        "attention"));
  // Nothing that looks like attention.
  EXPECT_THAT(error_of([](const at::Tensor& x) { return x.cumsum(2); }),
              HasSubstr("called no scaled_dot_product_attention"));
}

}  // namespace
}  // namespace accelerate
