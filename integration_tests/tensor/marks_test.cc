// How ranks along tp know of which tensors they have a part: operators hand it on, or are refused
// where they would compute something else of a part than of the whole.
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "accelerate/config/tensor_parallel_plan.h"
#include "integration_tests/tensor/small_layers.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::Rank;
using ::testing::AllOf;
using ::testing::HasSubstr;
using torch::Tensor;
using torch::indexing::Slice;

Tensor numbers_of_tokens(const Tensor& x, const std::vector<int64_t>& numbers) {
  return torch::tensor(numbers).to(x.device());
}

// What is refused of features, by what the message begins with behind the rank.
TEST(MarksOfFeatures, RefuseWhatGoesByPlaces) {
  const std::vector<std::pair<std::string, SmallLayersImpl::Forward>> refused = {
      {"aten::roll moves along all of",
       [](auto& m, const Tensor& x) { return torch::roll(m.query(x), {1}, {-1}); }},
      {"aten::flip moves along all of",
       [](auto& m, const Tensor& x) { return m.query(x).flip({-1}); }},
      {"aten::cumsum goes along all of",
       [](auto& m, const Tensor& x) { return m.query(x).cumsum(-1); }},
      {"aten::tril goes by places along all of",
       [](auto& m, const Tensor& x) { return m.query(x).tril(); }},
      {"aten::gather goes by numbers along all of",
       [](auto& m, const Tensor& x) {
         return m.query(x).gather(-1, numbers_of_tokens(x, {9}).expand({6, 4, 1}));
       }},
      {"aten::index picks from",
       [](auto& m, const Tensor& x) {
         return m.query(x).index({Slice(), Slice(), numbers_of_tokens(x, {3, 1})});
       }},
      {"aten::index_select goes by numbers along all of",
       [](auto& m, const Tensor& x) {
         return m.query(x).index_select(-1, numbers_of_tokens(x, {3, 1}));
       }},
      {"aten::glu takes some of",
       [](auto& m, const Tensor& x) { return torch::glu(m.query(x), -1); }},
      {"aten::scaled_dot_product_attention adds up along",
       [](auto& m, const Tensor& x) {
         const Tensor features = m.query(x);
         return torch::scaled_dot_product_attention(features, features, features);
       }},
      {"aten::einsum adds up along",
       [](auto& m, const Tensor& x) {
         return torch::einsum("bqd,bkd->bqk", {m.query(x), m.query(x)});
       }},
      {"aten::select takes one of",
       [](auto& m, const Tensor& x) { return m.query(x).select(-1, 3); }},
      {"row layer \"project.weight\" gets",
       [](auto& m, const Tensor& x) {
         const auto pairs = [](const Tensor& features) {
           return features.unflatten(-1, {-1, 2}).sum(-1);
         };
         return m.project(torch::cat({pairs(m.query(x)), pairs(m.query(x))}, -1));
       }},
      {"row layer \"project.weight\" gets",
       [](auto& m, const Tensor& x) { return m.project(m.query(x).unflatten(-1, {-1, 8})); }},
      {"column layer \"head.weight\" gets",
       [](auto& m, const Tensor& x) { return m.head(m.query(x).unflatten(-1, {-1, 8})); }},
      {"aten::masked_select needs all of",
       [](auto& m, const Tensor& x) {
         const Tensor features = m.query(x);
         return torch::masked_select(features, features.gt(0));
       }},
      {"aten::conv1d needs all of",
       [](auto& m, const Tensor& x) {
         return torch::conv1d(m.query(x).transpose(1, 2), torch::ones({3, 8, 1}, x.options()));
       }},
      {"aten::max_pool1d needs all of",
       [](auto& m, const Tensor& x) { return torch::max_pool1d(m.query(x), 3, 1, 1); }},
      {"aten::batch_norm normalises",
       [](auto& m, const Tensor& x) {
         return torch::batch_norm(m.query(x), {}, {}, {}, {}, /*training=*/true, 0.1, 1e-5, false);
       }},
      {"aten::batch_norm normalises",
       [](auto& m, const Tensor& x) {
         return torch::instance_norm(m.query(x), {}, {}, {}, {}, /*use_input_stats=*/true, 0.1,
                                     1e-5, false);
       }},
      {"aten::unfold takes ranges of",
       [](auto& m, const Tensor& x) { return m.query(x).unfold(-1, 2, 1); }},
      {"aten::cdist needs all of",
       [](auto& m, const Tensor& x) { return torch::cdist(m.query(x), m.key(x)); }},
      {"aten::cross_entropy_loss needs all of",
       [](auto& m, const Tensor& x) {
         return torch::cross_entropy_loss(m.query(x).flatten(0, 1),
                                          torch::zeros({24}, x.options().dtype(torch::kLong)));
       }},
      {"aten::repeat gives sizes [6, 4, 16], where this version does not find",
       [](auto& m, const Tensor& x) { return m.query(x).repeat({1, 1, 2}); }},
      {"aten::mse_loss gives sizes [], where this version does not find",
       [](auto& m, const Tensor& x) { return torch::mse_loss(m.query(x), m.key(x)); }},
      {"aten::cat puts other values beside",
       [](auto& m, const Tensor& x) { return torch::cat({m.query(x), x}, -1); }},
  };
  for (const auto& [says, forward] : refused) {
    EXPECT_THAT(refusal_of(forward),
                AllOf(HasSubstr("rank 1: " + says), HasSubstr("made with \"query.weight\"")));
  }
}

// Each moves the dim of the features, and then goes by places along it.
TEST(MarksOfFeatures, StandBehindDimsThatComeAndGo) {
  const std::vector<SmallLayersImpl::Forward> refused = {
      [](auto& m, const Tensor& x) { return m.query(x).unsqueeze(2).flip({3}); },
      [](auto& m, const Tensor& x) { return m.query(x).unsqueeze(0).flip({3}); },
      [](auto& m, const Tensor& x) { return m.query(x).unsqueeze(-1).flip({2}); },
      [](auto& m, const Tensor& x) { return m.query(x.narrow(1, 0, 1)).squeeze(1).flip({1}); },
      [](auto& m, const Tensor& x) { return m.query(x).select(0, 2).flip({1}); },
      [](auto& m, const Tensor& x) { return m.query(x).sum(0).flip({1}); },
      [](auto& m, const Tensor& x) { return m.query(x).sum(0, /*keepdim=*/true).flip({2}); },
      [](auto& m, const Tensor& x) { return m.query(x).unfold(1, 2, 1).flip({2}); },
      [](auto& m, const Tensor& x) {
        return torch::avg_pool1d(m.query(x).transpose(1, 2), 2).flip({1});
      },
  };
  for (size_t i = 0; i < refused.size(); ++i) {
    EXPECT_THAT(refusal_of(refused[i]), HasSubstr("rank 1: aten::flip moves along all of")) << i;
  }
  EXPECT_EQ(refusal_of([](auto& m, const Tensor& x) { return m.query(x).unsqueeze(2).flip({2}); }),
            "no error");
}

TEST(MarksOfFeatures, GoWithTheOrderOfDims) {
  const std::vector<SmallLayersImpl::Forward> refused = {
      [](auto& m, const Tensor& x) { return m.query(x).permute({2, 0, 1}).flip({0}); },
      [](auto& m, const Tensor& x) { return m.query(x).permute({1, 2, 0}).flip({1}); },
      [](auto& m, const Tensor& x) { return m.query(x).transpose(0, 2).flip({0}); },
      [](auto& m, const Tensor& x) { return m.query(x).flatten(0, 1).t().flip({0}); },
  };
  for (size_t i = 0; i < refused.size(); ++i) {
    EXPECT_THAT(refusal_of(refused[i]), HasSubstr("rank 1: aten::flip moves along all of")) << i;
  }
  EXPECT_EQ(
      refusal_of([](auto& m, const Tensor& x) { return m.query(x).permute({2, 0, 1}).flip({1}); }),
      "no error");
}

// In the second dim each feature has statistics of its own. Those that are given are not computed.
TEST(MarksOfFeatures, PassBatchNormsThatTakeThemOneByOne) {
  EXPECT_EQ(refusal_of([](auto& m, const Tensor& x) {
              return torch::batch_norm(m.query(x).transpose(1, 2), {}, {}, {}, {},
                                       /*training=*/true, 0.1, 1e-5, false);
            }),
            "no error");
  EXPECT_EQ(refusal_of([](auto& m, const Tensor& x) {
              const Tensor mean = torch::zeros({4}, x.options());
              return torch::batch_norm(m.query(x), {}, {}, mean, mean + 1, /*training=*/false, 0.1,
                                       1e-5, false);
            }),
            "no error");
}

// The first half of what a rank has is not the rank's part of the first half.
TEST(MarksOfFeatures, RefuseHalvesOfOneWeight) {
  EXPECT_THAT(refusal_of([](SmallLayersImpl& m, const Tensor& x) {
                const std::vector<Tensor> halves = m.query(x).chunk(2, -1);
                return halves[0].sigmoid() * halves[1];
              }),
              AllOf(HasSubstr("rank 1: aten::chunk takes some of dim -1 of features"),
                    HasSubstr("give its rule blocks")));
  TensorParallelPlan plan = SmallLayersImpl::plan();
  plan.rules[0].blocks = {1, 1};
  EXPECT_EQ(refusal_of(
                [](SmallLayersImpl& m, const Tensor& x) {
                  const std::vector<Tensor> halves = m.query(x).chunk(2, -1);
                  return halves[0].sigmoid() * halves[1];
                },
                plan),
            "no error");
}

// What is written into a part of a buffer is in the buffer.
TEST(MarksOfFeatures, AreThoseOfABufferThatHasThem) {
  const auto sum_of_buffer = [](SmallLayersImpl& m, const Tensor& x) {
    const Tensor features = m.query(x).detach();
    const Tensor buffer = torch::zeros({6, 4, 8}, x.options());
    buffer.select(1, 2).copy_(features.select(1, 2));
    return buffer.sum(-1);
  };
  EXPECT_THAT(refusal_of(sum_of_buffer),
              AllOf(HasSubstr("rank 1: aten::sum goes along all of dim -1 of features"),
                    HasSubstr("made with \"query.weight\"")));
  EXPECT_THAT(refusal_of([](SmallLayersImpl& m, const Tensor& x) {
                const Tensor buffer = torch::zeros({6, 4, 16}, x.options());
                buffer.narrow(-1, 8, 8).copy_(m.query(x).detach());
                return buffer;
              }),
              AllOf(HasSubstr("rank 1: aten::copy_ writes dim -1 of features"),
                    HasSubstr("into a tensor of sizes [6, 4, 16]")));
}

// Each rank would get a part of the gradient, and nothing would add them up.
TEST(MarksOfFeatures, RefuseWhatAllRanksHaveAndWantAGradientOf) {
  EXPECT_THAT(refusal_of([](SmallLayersImpl& m, const Tensor& x) {
                return m.project(m.query(x) * m.norm(x).mean(-1, true));
              }),
              AllOf(HasSubstr("rank 1: aten::mul uses a tensor of sizes [6, 4, 1], which all ranks "
                              "have and whose gradient is wanted, with dim -1 of features"),
                    HasSubstr("compute it with a column layer, or detach it")));
  EXPECT_EQ(refusal_of([](SmallLayersImpl& m, const Tensor& x) {
              return m.project(m.query(x) * m.norm(x).detach().mean(-1, true));
            }),
            "no error");
}

// As norms whose weights are counted from 1.
TEST(MarksOfParameters, GoAlongWithWhatIsComputedOfThemAlone) {
  const auto scaled_parts = [](SmallLayersImpl& m, const Tensor& x) {
    return shard_sequence(x).narrow(-1, 0, 4) * (1 + m.scale);
  };
  TensorParallelPlan plan = SmallLayersImpl::plan(/*sequence_shards=*/true);
  EXPECT_EQ(refusal_of(scaled_parts, plan), "no error");
  EXPECT_THAT(
      refusal_of([](SmallLayersImpl& m,
                    const Tensor& x) { return shard_sequence(x.narrow(-1, 0, 4) * (1 + m.scale)); },
                 plan),
      HasSubstr("rank 1: aten::mul uses \"scale\" with a tensor that all ranks"));
  plan.rules.back().sequence = false;
  EXPECT_THAT(refusal_of(scaled_parts, plan),
              HasSubstr("rank 1: aten::mul uses \"scale\", which all ranks have, with dim -2 of "
                        "sequences"));
}

TEST(MarksOfSequences, RefuseWhatGoesByTokens) {
  TensorParallelPlan plan = SmallLayersImpl::plan(/*sequence_shards=*/true);
  plan.rules.push_back({.pattern = "tokens", .style = TensorStyle::kEmbedding});
  const std::vector<std::pair<std::string, SmallLayersImpl::Forward>> refused = {
      {"aten::scaled_dot_product_attention adds up along",
       [](auto&, const Tensor& x) {
         const Tensor part = shard_sequence(x);
         return torch::scaled_dot_product_attention(part, part, part);
       }},
      {"aten::matmul computes with",
       [](auto&, const Tensor& x) {
         const Tensor part = shard_sequence(x);
         return part.matmul(part.transpose(1, 2));
       }},
      {"column layer \"head.weight\" gets",
       [](auto& m, const Tensor& x) { return m.head(shard_sequence(x).flatten(0, 1)); }},
      {"embedding \"tokens.weight\" gets",
       [](auto& m, const Tensor& x) { return m.tokens(shard_sequence(x.abs().to(torch::kLong))); }},
      {"aten::select takes some of",
       [](auto& m, const Tensor& x) { return m.head(shard_sequence(x).select(1, -1)); }},
      {"aten::narrow takes some of",
       [](auto& m, const Tensor& x) { return m.head(shard_sequence(x).narrow(1, 0, 1)); }},
      {"aten::cumsum goes along all of",
       [](auto& m, const Tensor& x) { return m.head(shard_sequence(x).cumsum(1)); }},
      // Gradients of its weights would be refused as well.
      {"aten::lstm needs all of",
       [](auto&, const Tensor& x) {
         const torch::NoGradGuard no_grad;
         torch::nn::LSTM lstm(torch::nn::LSTMOptions(8, 8).batch_first(true));
         lstm->to(x.device());
         return std::get<0>(lstm(shard_sequence(x)));
       }},
      {"aten::cat puts other values beside",
       [](auto& m, const Tensor& x) {
         return m.head(torch::cat({x.narrow(1, 0, 1), shard_sequence(x)}, 1));
       }},
  };
  for (const auto& [says, forward] : refused) {
    EXPECT_THAT(refusal_of(forward, plan),
                AllOf(HasSubstr("rank 1: " + says), HasSubstr("dim -2 of sequences")));
  }
}

// The input is summed for both passes, whose graphs end in one backward pass.
TEST(InputsOfColumnLayers, TakePartInSeveralPasses) {
  SmallLayersImpl whole([](SmallLayersImpl& m, const Tensor& x) { return m.project(m.query(x)); });
  const Tensor input = small_inputs().requires_grad_();
  (whole.forward(input).sin() + whole.forward(input)).sum().backward();
  Cluster("1x2:h100").run_on_every_rank([&](Rank&) {
    Accelerator accelerator(with_tp(2, SmallLayersImpl::plan()));
    auto model = accelerator.prepare(std::make_shared<SmallLayersImpl>(
        [](SmallLayersImpl& m, const Tensor& x) { return m.project(m.query(x)); }));
    const Tensor own = small_inputs().to(accelerator.device()).requires_grad_();
    const Tensor first = model(own);
    {
      const torch::NoGradGuard no_grad;  // an evaluation in between changes nothing
      EXPECT_FALSE(model(own).requires_grad());
    }
    const Tensor second = model(own);
    accelerator.backward((first.sin() + second).sum());
    EXPECT_TRUE(torch::allclose(own.grad().cpu(), input.grad(), 1e-5, 1e-6));
  });
}

// Nothing counts the changes of inference tensors, so what was put together before is of no use.
TEST(SequencesOfColumnLayers, AreThoseOfNowInInferenceMode) {
  Cluster("1x2:h100").run_on_every_rank([](Rank&) {
    Accelerator accelerator(with_tp(2, SmallLayersImpl::plan(/*sequence_shards=*/true)));
    auto model = accelerator.prepare(
        std::make_shared<SmallLayersImpl>([](SmallLayersImpl& m, const Tensor& x) {
          const Tensor part = shard_sequence(x);
          const Tensor before = m.head(part);
          part.mul_(2);
          EXPECT_FALSE(torch::equal(m.head(part), before));
          return m.head(part) - m.head(shard_sequence(2 * x));
        }));
    const c10::InferenceMode inference;
    EXPECT_EQ(model(small_inputs().to(accelerator.device())).count_nonzero().item<int64_t>(), 0);
  });
}

}  // namespace
}  // namespace accelerate
