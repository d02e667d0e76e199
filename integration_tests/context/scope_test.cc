// What maybe_context_parallel does to the tensors of a program, and what it gives.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "accelerate/comm/operations.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/examples/lm/config.h"
#include "accelerate/examples/lm/model.h"
#include "accelerate/mesh/device_mesh.h"
#include "accelerate/testing/recorded_warnings.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::Rank;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<int64_t> values(const at::Tensor& x) {
  const at::Tensor host = x.cpu().contiguous();
  return {host.const_data_ptr<int64_t>(), host.const_data_ptr<int64_t>() + host.numel()};
}

AcceleratorOptions cp_of_two() { return {.parallelism_config = ParallelismConfig({.cp_size = 2})}; }

auto tiny_llama() { return lm::Lm(lm::model_config("tiny", {.blocks = lm::Blocks::kLlama})).ptr(); }

// How often ranks were told that they divide nothing.
int64_t num_undivided(const RecordedWarnings& warnings) {
  return std::ranges::count_if(warnings.texts(), [](const std::string& text) {
    return text.find("has not entered maybe_context_parallel") != std::string::npos;
  });
}

TEST(ContextScope, CutsBuffersInPlaceAndRestoresThem) {
  Cluster("1x2:h100").run_on_every_rank([](Rank& rank) {
    const Accelerator accelerator(cp_of_two());
    const auto integers = at::TensorOptions(accelerator.device()).dtype(at::kLong);
    const at::Tensor tokens = at::arange(8, integers).unsqueeze(0), other = at::arange(8, integers);
    const at::Tensor mask = at::arange(8, integers).to(at::kFloat).unsqueeze(1);
    {
      const auto scope =
          accelerator.maybe_context_parallel({tokens, other, mask}, {-1, 0, 0}, {other});
      const std::vector<int64_t> own =
          rank.index() == 0 ? std::vector<int64_t>{0, 1, 6, 7} : std::vector<int64_t>{2, 3, 4, 5};
      EXPECT_EQ(values(tokens), own);
      EXPECT_EQ(tokens.sizes(), (std::vector<int64_t>{1, 4}));
      EXPECT_EQ(values(other), own);
      EXPECT_EQ(values(mask.to(at::kLong)), own);
      EXPECT_EQ(values(scope.positions()), own);
      tokens.zero_();
    }
    EXPECT_THAT(values(tokens), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7)) << "as they were before";
    EXPECT_EQ(mask.size(0), 8);
    EXPECT_EQ(other.size(0), 4) << "is not restored";
  });
}

TEST(ContextScope, GivesRanksNeighbouringTokensInTurn) {
  Cluster("1x2:h100").run_on_every_rank([](Rank& rank) {
    const Accelerator accelerator(cp_of_two());
    const at::Tensor tokens = at::arange(6, at::TensorOptions(at::kLong));
    const auto scope =
        accelerator.maybe_context_parallel({tokens}, {0}, {}, SequenceOrder::kInTurn);
    EXPECT_EQ(values(tokens), rank.index() == 0 ? (std::vector<int64_t>{0, 1, 2})
                                                : (std::vector<int64_t>{3, 4, 5}));
  });
}

TEST(ContextScope, DoesNothingWithoutRanksAlongCp) {
  Cluster("1x2:h100").run_on_every_rank([](Rank& rank) {
    const Accelerator accelerator;
    const RecordedWarnings warnings;
    const at::Tensor tokens = at::arange(7, at::TensorOptions(at::kLong));
    for (int i = 0; i < 2; ++i) {
      const auto scope = accelerator.maybe_context_parallel({tokens}, {0});
      EXPECT_EQ(tokens.size(0), 7);
      EXPECT_EQ(values(scope.positions()), values(tokens));
    }
    // Said once, by the first rank.
    ASSERT_EQ(warnings.texts().size(), rank.index() == 0 ? 1 : 0);
    if (rank.index() != 0) return;
    EXPECT_THAT(warnings.texts()[0], HasSubstr("Context parallel training is not enabled"));
  });
}

// Whatever else the configuration leaves at its default.
TEST(ContextScope, DividesTheAttentionOfEachLayer) {
  Cluster("1x2:h100").run_on_every_rank([](Rank&) {
    Accelerator accelerator(cp_of_two());
    const lm::Config config = lm::model_config("tiny", {.blocks = lm::Blocks::kLlama});
    auto model = accelerator.prepare(lm::Lm(config).ptr());
    const auto integers = at::TensorOptions(accelerator.device()).dtype(at::kLong);
    const at::Tensor tokens = at::ones({1, 128}, integers);
    const at::Tensor whole = model(tokens);
    {
      const auto scope = accelerator.maybe_context_parallel({tokens}, {1});
      const at::Tensor logits = model(tokens, scope.positions());
      EXPECT_EQ(scope.num_attention_calls(), config.layers);
      EXPECT_THAT(layout_text(model), HasSubstr("cp: ranks divided 4 calls of attention\n"));
      EXPECT_EQ(logits.size(1), 64);
    }
    EXPECT_EQ(whole.size(1), 128) << "outside of the scope ranks compute whole sequences";
  });
}

TEST(ContextScope, IsMissedByTheFirstRankAtTheSecondPassWithGradients) {
  Cluster("1x2:h100").run_on_every_rank([](Rank& rank) {
    Accelerator accelerator(cp_of_two());
    auto model = accelerator.prepare(tiny_llama());
    const auto integers = at::TensorOptions(accelerator.device()).dtype(at::kLong);
    const at::Tensor tokens = at::ones({1, 128}, integers);
    const RecordedWarnings warnings;
    {
      const at::NoGradGuard generates;
      for (int i = 0; i < 3; ++i) (void)model(tokens);
    }
    (void)model(tokens);
    EXPECT_EQ(num_undivided(warnings), 0) << "the program may yet enter a scope";
    for (int i = 0; i < 3; ++i) (void)model(tokens);
    EXPECT_EQ(num_undivided(warnings), rank.index() == 0 ? 1 : 0);
  });
}

TEST(ContextScope, IsNotMissedOutsideOfItOnceEntered) {
  Cluster("1x2:h100").run_on_every_rank([](Rank&) {
    Accelerator accelerator(cp_of_two());
    auto model = accelerator.prepare(tiny_llama());
    const auto integers = at::TensorOptions(accelerator.device()).dtype(at::kLong);
    const at::Tensor tokens = at::ones({1, 128}, integers);
    const RecordedWarnings warnings;
    {
      const auto scope = accelerator.maybe_context_parallel({tokens}, {1});
      (void)model(tokens, scope.positions());
    }
    for (int i = 0; i < 3; ++i) (void)model(tokens);
    EXPECT_EQ(num_undivided(warnings), 0);
  });
}

// As those of several sequences that are packed in one.
TEST(ContextScope, TakesPositionsThatBeginAgain) {
  Cluster("1x2:h100").run_on_every_rank([](Rank&) {
    Accelerator accelerator(cp_of_two());
    auto model = accelerator.prepare(tiny_llama());
    const auto integers = at::TensorOptions(accelerator.device()).dtype(at::kLong);
    const at::Tensor tokens = at::ones({1, 64}, integers);
    const at::Tensor positions = at::arange(64, integers).remainder(32);
    const auto scope = accelerator.maybe_context_parallel({tokens, positions}, {1, 0});
    EXPECT_EQ(model(tokens, positions).size(1), 32);
  });
}

class OneHeadImpl : public torch::nn::Module {
 public:
  OneHeadImpl(bool is_causal, std::optional<double> scale)
      : weight_(register_parameter("weight", torch::ones({1}))),
        is_causal_(is_causal),
        scale_(scale) {}
  at::Tensor forward(const at::Tensor& x, const at::Tensor& /*positions*/) {
    const at::Tensor head = x * weight_;
    return at::scaled_dot_product_attention(head, head, head, {}, /*dropout_p=*/0, is_causal_,
                                            scale_);
  }

 private:
  at::Tensor weight_;
  const bool is_causal_;
  const std::optional<double> scale_;
};

// [batch, tokens, size of a head], in which several sequences are not several heads.
TEST(ContextScope, DividesAttentionOfOneHead) {
  Cluster("1x2:h100").run_on_every_rank([](Rank&) {
    Accelerator accelerator(cp_of_two());
    const at::Tensor whole = at::arange(2 * 8 * 4, at::kFloat).sin().view({2, 8, 4});
    for (const bool is_causal : {true, false}) {
      for (const std::optional<double> scale : {std::optional<double>(), std::optional(2.5)}) {
        auto model = accelerator.prepare(std::make_shared<OneHeadImpl>(is_causal, scale));
        const at::Tensor expected = at::scaled_dot_product_attention(
            whole, whole, whole, {}, /*dropout_p=*/0, is_causal, scale);
        const at::Tensor x = whole.to(accelerator.device());
        const auto scope = accelerator.maybe_context_parallel({x}, {1});
        const at::Tensor y = model(x, scope.positions()).detach();
        ASSERT_EQ(y.sizes(), (std::vector<int64_t>{2, 4, 4}));
        EXPECT_TRUE(at::allclose(accelerator.gather_sequences(y).cpu(), expected, 1e-5, 1e-6))
            << is_causal << ", " << scale.value_or(0);
      }
    }
  });
}

TEST(ContextScope, PutsSequencesTogetherAndWeighsLossesForMetrics) {
  Cluster("1x2:h100").run_on_every_rank([](Rank&) {
    const Accelerator accelerator(cp_of_two());
    const at::Tensor tokens =
        at::arange(16, at::TensorOptions(accelerator.device()).dtype(at::kLong)).view({2, 8});
    const at::Tensor whole = tokens.clone();
    for (const SequenceOrder order : {SequenceOrder::kBalanced, SequenceOrder::kInTurn}) {
      const auto scope = accelerator.maybe_context_parallel({tokens}, {1}, {}, order);
      EXPECT_TRUE(at::equal(accelerator.gather_sequences(tokens), whole));
      // As of a loss over the tokens below 3 in the first sequence, which some ranks lack.
      const at::Tensor counts = tokens < 3;
      const at::Tensor own = tokens.masked_select(counts).to(at::kFloat).mean();
      const at::Tensor mean = accelerator.mean_over_sequences(own, counts.sum());
      EXPECT_FLOAT_EQ(mean.item<float>(), 1.0F);
      // Ranks along cp read the same batch.
      EXPECT_TRUE(
          at::equal(accelerator.gather_for_metrics(accelerator.gather_sequences(tokens)), whole));
    }
    EXPECT_TRUE(at::equal(accelerator.gather_sequences(tokens), whole));
  });
}

class DropoutImpl : public torch::nn::Module {
 public:
  DropoutImpl() : weight_(register_parameter("weight", torch::ones({1}))) {}
  at::Tensor forward(const at::Tensor& x, const at::Tensor& /*positions*/) {
    const at::Tensor heads = (x * weight_).unsqueeze(1);
    const at::Tensor y = at::scaled_dot_product_attention(heads, heads, heads);
    return torch::dropout(torch::ones_like(y), 0.5, /*train=*/true);
  }

 private:
  at::Tensor weight_;
};

// Ranks that have other tokens leave out others; the same rank leaves out the same ones again.
TEST(ContextScope, LetsRanksDrawRandomNumbersOfTheirOwn) {
  Cluster("1x2:h100").run_on_every_rank([](Rank&) {
    Accelerator accelerator(cp_of_two());
    auto model = accelerator.prepare(std::make_shared<DropoutImpl>());
    const auto draw = [&] {
      set_seed(7);
      const auto floats = at::TensorOptions(accelerator.device()).dtype(at::kFloat);
      const at::Tensor x = at::ones({1, 64, 8}, floats);
      const auto scope = accelerator.maybe_context_parallel({x}, {1});
      return model(x, scope.positions()).detach();
    };
    const at::Tensor first = draw();
    EXPECT_TRUE(at::equal(first, draw()));
    const ProcessGroupPtr& ranks = accelerator.torch_device_mesh()->group(MeshAxis::kCp);
    const at::Tensor all = gather_tensor(ranks, first);
    EXPECT_FALSE(at::equal(all[0], all[1]));
  });
}

}  // namespace
}  // namespace accelerate
