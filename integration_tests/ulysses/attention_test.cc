// Attention of sequences that ranks along sp divide: results and gradients for any numbers of heads
// that go, the bytes that it sends, and what it refuses.
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/examples/lm/config.h"
#include "accelerate/examples/lm/model.h"
#include "accelerate/testing/recorded_warnings.h"
#include "accelerate/testing/value_error.h"
#include "simulator/cluster/cluster.h"
#include "simulator/trace/trace.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::ClusterOptions;
using simulator::Rank;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

constexpr int64_t kHeadSize = 4;

// How a layer attends.
struct Attention {
  int64_t heads = 4;
  int64_t key_heads = 4;
  bool is_causal = true;
  double dropout = 0;
  at::Tensor mask = {};
  bool by_hand = false;
  std::optional<double> scale = std::nullopt;
  bool shares_key_heads = true;
  bool joins_heads = false;  // with the batch
};

// A layer of attention whose queries, keys and values are products of its input.
class LayerImpl : public torch::nn::Module {
 public:
  explicit LayerImpl(Attention attention)
      : attention_(std::move(attention)),
        qkv_(register_module(
            "qkv",
            torch::nn::Linear(8, (attention_.heads + 2 * attention_.key_heads) * kHeadSize))) {
    const torch::NoGradGuard no_grad;
    for (const at::Tensor& each : parameters()) {
      each.copy_(torch::linspace(-0.5, 0.7, each.numel()).sin().view(each.sizes()));
    }
  }

  // [batch, tokens, 8] to [batch, heads, tokens, size of a head].
  at::Tensor forward(const at::Tensor& x) {
    const int64_t heads = attention_.heads, keys = attention_.key_heads;
    const auto parts = qkv_(x)
                           .view({x.size(0), x.size(1), heads + 2 * keys, kHeadSize})
                           .transpose(1, 2)
                           .split_with_sizes({heads, keys, keys}, 1);
    if (attention_.joins_heads) {
      return at::scaled_dot_product_attention(parts[0].flatten(0, 1), parts[1].flatten(0, 1),
                                              parts[2].flatten(0, 1));
    }
    if (attention_.by_hand) {
      const at::Tensor scores = parts[0].matmul(parts[1].transpose(-2, -1));
      return scores.softmax(-1).matmul(parts[2]);
    }
    return at::scaled_dot_product_attention(
        parts[0], parts[1], parts[2],
        attention_.mask.defined() ? std::optional(attention_.mask.to(x.device())) : std::nullopt,
        attention_.dropout, attention_.is_causal, attention_.scale,
        attention_.shares_key_heads && heads != keys);
  }

 private:
  const Attention attention_;
  torch::nn::Linear qkv_;
};
TORCH_MODULE(Layer);

constexpr int64_t kTokens = 24;

at::Tensor whole_input() {
  return torch::linspace(0, 9, 2 * kTokens * 8).cos().view({2, kTokens, 8});
}

// The output and the gradient of the weight on `ranks` ranks along sp.
struct Outcome {
  at::Tensor output, gradient;
};

Outcome attend(const Attention& attention, int ranks) {
  Outcome outcome;
  Cluster("1x" + std::to_string(ranks) + ":h100").run_on_every_rank([&](Rank& rank) {
    AcceleratorOptions options;
    if (ranks > 1) options.parallelism_config = ParallelismConfig({.sp_size = ranks});
    Accelerator accelerator(options);
    auto model = accelerator.prepare(Layer(attention));
    const at::Tensor part = whole_input().chunk(ranks, 1)[static_cast<size_t>(rank.index())];
    const at::Tensor output = model(part.to(accelerator.device()));
    accelerator.backward(output.square().mean());
    const at::Tensor whole = accelerator.gather_sequences(output.detach(), 2).cpu();
    if (rank.index() != 0) return;
    outcome = {whole, model->parameters()[0].grad().cpu()};
  });
  return outcome;
}

std::string error_of(const Attention& attention, int ranks) {
  std::string error;
  Cluster("1x" + std::to_string(ranks) + ":h100").run_on_every_rank([&](Rank& rank) {
    Accelerator accelerator({.parallelism_config = ParallelismConfig({.sp_size = ranks})});
    auto model = accelerator.prepare(Layer(attention));
    const at::Tensor part = whole_input().chunk(ranks, 1)[static_cast<size_t>(rank.index())];
    const std::string own = value_error_of([&] { model(part.to(accelerator.device())); });
    if (rank.index() == 1) error = own;
  });
  return error;
}

void expect_equal(const Attention& attention, int ranks) {
  SCOPED_TRACE(testing::Message() << attention.heads << " heads, " << attention.key_heads
                                  << " of keys, " << ranks << " ranks");
  const Outcome one = attend(attention, 1), divided = attend(attention, ranks);
  EXPECT_TRUE(at::allclose(divided.output, one.output, 1e-5, 1e-6));
  EXPECT_TRUE(at::allclose(divided.gradient, one.gradient, 1e-5, 1e-7));
}

TEST(UlyssesAttention, IsThatOfOneRankForAnyHeadsThatRanksDivide) {
  for (const bool is_causal : {true, false}) {
    expect_equal({.heads = 4, .key_heads = 4, .is_causal = is_causal}, 2);
    expect_equal({.heads = 4, .key_heads = 2, .is_causal = is_causal}, 4);
    expect_equal({.heads = 6, .key_heads = 6, .is_causal = is_causal}, 3);
    expect_equal({.heads = 6, .key_heads = 3, .is_causal = is_causal}, 3);
    // Neither number of heads of keys and of ranks divides the other one.
    expect_equal({.heads = 6, .key_heads = 2, .is_causal = is_causal}, 3);
    expect_equal({.heads = 12, .key_heads = 6, .is_causal = is_causal}, 4);
    expect_equal({.heads = 8, .key_heads = 1, .is_causal = is_causal}, 4);
  }
}

TEST(UlyssesAttention, HasTheScaleThatItIsGiven) {
  for (const bool is_causal : {true, false}) {
    expect_equal({.is_causal = is_causal, .scale = 2.5}, 2);
    expect_equal({.key_heads = 2, .is_causal = is_causal, .scale = 2.5}, 4);
  }
}

TEST(UlyssesAttention, RefusesHeadsOfKeysThatQueriesDoNotShare) {
  EXPECT_THAT(error_of({.key_heads = 2, .shares_key_heads = false}, 2),
              HasSubstr("rank 1: scaled_dot_product_attention has 4 heads of queries, 2 of keys "
                        "and 2 of values, without enable_gqa"));
  EXPECT_THAT(error_of({.heads = 6, .key_heads = 4}, 2),
              HasSubstr("has 6 heads of queries, 4 of keys and 4 of values"));
  EXPECT_THAT(error_of({.joins_heads = true}, 2),
              AllOf(HasSubstr("rank 1: scaled_dot_product_attention gets a tensor of sizes "
                              "[8, 12, 4]"),
                    HasSubstr("[batch, heads, tokens, size of a head]")));
}

TEST(UlyssesAttention, TakesAMaskOfWholeSequences) {
  const at::Tensor mask =
      torch::arange(kTokens).unsqueeze(0).sub(torch::arange(kTokens).unsqueeze(1)).abs().lt(5);
  expect_equal({.is_causal = false, .mask = mask}, 2);
}

// As of sequences with padding: one row for all queries, which differs from sequence to sequence.
TEST(UlyssesAttention, TakesAMaskOfTokensThatAreNotSeen) {
  at::Tensor mask = torch::ones({2, 1, 1, kTokens}, torch::kBool);
  mask.narrow(0, 0, 1).narrow(3, kTokens - 5, 5).fill_(false);
  mask.narrow(0, 1, 1).narrow(3, 0, 2).fill_(false);
  expect_equal({.is_causal = false, .mask = mask}, 2);
  expect_equal({.is_causal = false, .mask = mask}, 4);
}

TEST(UlyssesAttention, RefusesHeadsThatRanksDoNotDivide) {
  EXPECT_THAT(error_of({.heads = 6, .key_heads = 6}, 4),
              HasSubstr("rank 1: scaled_dot_product_attention has 6 heads, which do not divide "
                        "evenly among the 4 ranks along sp; set sp_size to one of 1, 2, 3, 6"));
}

TEST(UlyssesAttention, RefusesWhatRanksWouldComputeOtherwise) {
  EXPECT_THAT(error_of({.dropout = 0.1}, 2),
              HasSubstr("rank 1: scaled_dot_product_attention has dropout_p=0.1"));
  const at::Tensor of_part = torch::ones({kTokens / 2, kTokens / 2}, torch::kBool);
  EXPECT_THAT(error_of({.is_causal = false, .mask = of_part}, 2),
              AllOf(HasSubstr("has a mask of sizes [12, 12]"), HasSubstr("attend to 24 tokens")));
  const at::Tensor of_heads = torch::zeros({4, kTokens, kTokens});
  EXPECT_THAT(error_of({.is_causal = false, .mask = of_heads}, 2),
              HasSubstr("the same for all heads"));
}

// It would be attention among the rank's own tokens.
TEST(UlyssesAttention, RefusesAttentionByHandAtTheOperator) {
  EXPECT_THAT(error_of({.by_hand = true}, 2),
              AllOf(HasSubstr("rank 1: aten::softmax of sizes [2, 4, 12, 12] looks like attention "
                              "by hand"),
                    HasSubstr("call scaled_dot_product_attention")));
}

TEST(UlyssesAttention, SaysThatItsKernelIsNotChosen) {
  for (const std::string kernel : {"sdpa", "flash_attention_2"}) {
    Cluster("1x2:h100").run_on_every_rank([&](Rank& rank) {
      const RecordedWarnings warnings;
      const DeepSpeedSequenceParallelConfig handler{.sp_attn_implementation = kernel};
      const Accelerator accelerator(
          {.parallelism_config = ParallelismConfig({.sp_size = 2, .sp_handler = handler})});
      const auto says = HasSubstr("sp_attn_implementation=flash_attention_2 has no effect");
      const bool is_said = kernel != "sdpa" && rank.index() == 0;
      EXPECT_EQ(testing::Matches(Contains(says))(warnings.texts()), is_said) << kernel;
    });
  }
}

// What a rank of four sends in a forward pass more.
double bytes_sent(const Attention& attention) {
  const auto bytes = [&](int passes) {
    ClusterOptions options;
    options.record = true;
    Cluster cluster("1x4:h100", options);
    cluster.run_on_every_rank([&](Rank& rank) {
      Accelerator accelerator({.parallelism_config = ParallelismConfig({.sp_size = 4})});
      auto model = accelerator.prepare(Layer(attention));
      const at::Tensor part = whole_input().chunk(4, 1)[static_cast<size_t>(rank.index())];
      const torch::NoGradGuard no_grad;
      for (int i = 0; i < passes; ++i) model(part.to(accelerator.device()));
    });
    double sum = 0;
    for (const simulator::Traffic& pair : cluster.trace().communication) sum += pair.bytes;
    return sum;
  };
  return (bytes(2) - bytes(1)) / 4;
}

// Three quarters of the heads of queries, of as many results, and of those of keys and of values
// that travel, of 2 x 6 tokens and 4 numbers a head.
TEST(UlyssesAttention, SendsAHeadOfKeysToEachRankThatNeedsIt) {
  constexpr double kHead = 2 * 6 * kHeadSize * 4 * 0.75;
  EXPECT_EQ(bytes_sent({.heads = 8, .key_heads = 8}), (8 + 8 + 8 + 8) * kHead);
  EXPECT_EQ(bytes_sent({.heads = 8, .key_heads = 4}), (8 + 8 + 4 + 4) * kHead);
  EXPECT_EQ(bytes_sent({.heads = 8, .key_heads = 2}), (8 + 8 + 4 + 4) * kHead);
  EXPECT_EQ(bytes_sent({.heads = 8, .key_heads = 1}), (8 + 8 + 4 + 4) * kHead);
}

// ---- The language model.

lm::Config llama() { return lm::model_config("tiny", {.blocks = lm::Blocks::kLlama}); }

TEST(UlyssesAttention, RefusesTokensWithoutPositions) {
  Cluster("1x2:h100").run_on_every_rank([](Rank& rank) {
    Accelerator accelerator({.parallelism_config = ParallelismConfig({.sp_size = 2})});
    auto model = accelerator.prepare(lm::Lm(llama()).ptr());
    const at::Tensor tokens =
        torch::zeros({2, 64}, at::TensorOptions(accelerator.device()).dtype(at::kLong));
    EXPECT_THAT(value_error_of([&] { model(tokens); }),
                AllOf(HasSubstr("rank " + std::to_string(rank.index())),
                      HasSubstr("gets no positions for them")));
    EXPECT_THAT(value_error_of([&] { model(tokens, torch::ones_like(tokens)); }),
                HasSubstr("gets no positions for them"))
        << "a mask is none";
    EXPECT_EQ(value_error_of([&] {
                model(tokens, torch::arange(64, tokens.options()).add(64 * rank.index()));
              }),
              "no error");
    // All three passes did, those that were refused as well.
    EXPECT_THAT(layout_text(model), HasSubstr("sp: ranks divided 12 calls of attention\n"));
  });
}

// What a rank of two sends in one forward and, if it trains, backward pass more, whose gradients
// stay on the rank.
double bytes_of_a_pass(bool shares_key_heads, bool trains) {
  const auto bytes = [&](int passes) {
    ClusterOptions options;
    options.record = true;
    Cluster cluster("1x2:h100", options);
    cluster.run_on_every_rank([&](Rank& rank) {
      Accelerator accelerator({.parallelism_config = ParallelismConfig({.sp_size = 2})});
      auto model = accelerator.prepare(
          lm::Lm(llama(), lm::LmOptions{.shares_key_heads = shares_key_heads}).ptr());
      const at::Tensor tokens =
          torch::zeros({4, 64}, at::TensorOptions(accelerator.device()).dtype(at::kLong));
      const at::Tensor positions = torch::arange(64, tokens.options()).add(64 * rank.index());
      const auto stays = accelerator.no_sync(model);
      const at::AutoGradMode grad(trains);
      for (int i = 0; i < passes; ++i) {
        const at::Tensor logits = model(tokens, positions);
        if (trains) accelerator.backward(logits.square().mean());
      }
    });
    double sum = 0;
    for (const simulator::Traffic& pair : cluster.trace().communication) sum += pair.bytes;
    return sum;
  };
  return (bytes(2) - bytes(1)) / 2;
}

// Half of four heads of queries, of as many results, and of two heads of keys and two of values
// (or of four each, where the model repeats them before), of 4 x 64 tokens and 32 numbers a head.
TEST(UlyssesAttention, SendsWhatOtherRanksHaveFromThenOn) {
  const auto layers = static_cast<double>(llama().layers);
  EXPECT_EQ(bytes_of_a_pass(/*shares_key_heads=*/true, /*trains=*/false), layers * 196'608);
  EXPECT_EQ(bytes_of_a_pass(/*shares_key_heads=*/true, /*trains=*/true), layers * 2 * 196'608);
  EXPECT_EQ(bytes_of_a_pass(/*shares_key_heads=*/false, /*trains=*/true), layers * 2 * 262'144);
}

}  // namespace
}  // namespace accelerate
