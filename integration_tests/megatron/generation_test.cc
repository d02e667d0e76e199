// Tokens that engines generate: as one process does in all layouts, also where ranks with other
// tokens make the same passes.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "accelerate/accelerate.h"
#include "accelerate/megatron_lm.h"
#include "accelerate/parallel/experts/mixture.h"
#include "accelerate/testing/value_error.h"
#include "integration_tests/megatron/engine_training.h"
#include "integration_tests/tensor/formula_model.h"

namespace accelerate {
namespace {

using lm::Blocks;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

MegatronLMPlugin plugin_of(const MegatronLMPlugin& degrees) {
  return plugin_of_formula(kSmallLayers, degrees);
}

MegatronLMPlugin plugin_with_end(int64_t end, const MegatronLMPlugin& degrees = {}) {
  MegatronLMPlugin plugin = plugin_of(degrees);
  plugin.other_megatron_args.value()["eos_token_id"] = end;
  return plugin;
}

struct Layout {
  int ranks = 1;
  MegatronLMPlugin degrees = {};
};

// ---- In all layouts.

TEST(Generation, GivesTheMostLikelyTokens) {
  constexpr int64_t kGiven = 3, kMore = 4;
  std::vector<at::Tensor> generated;
  for (const MegatronLMPlugin& degrees : {MegatronLMPlugin{}, MegatronLMPlugin{.tp_degree = 2}}) {
    run_engines(degrees.tp_degree ? "1x2:h100" : "1x1:h100", nullptr, small_model(),
                plugin_of(degrees), {}, [&](EngineJob& job, int rank) {
                  for (int step = 0; step < 2; ++step) job.engine().train_step(job.batch(step));
                  const at::Tensor start = job.batch(0).at("text").narrow(1, 0, kGiven);
                  const at::Tensor tokens =
                      job.engine().megatron_generate(start, {.max_new_tokens = kMore, .top_k = 1});
                  ASSERT_EQ(tokens.size(1), kGiven + kMore);
                  EXPECT_TRUE(tokens.cpu().narrow(1, 0, kGiven).equal(start));
                  const at::NoGradGuard no_grad;
                  auto model = job.engine().model();
                  for (int64_t i = kGiven; i < kGiven + kMore; ++i) {
                    const at::Tensor logits = model(tokens.narrow(1, 0, i)).cpu().select(1, -1);
                    EXPECT_TRUE(logits.argmax(1).equal(tokens.cpu().select(1, i))) << i;
                  }
                  if (rank == 0) generated.push_back(tokens.cpu());
                });
  }
  ASSERT_EQ(generated.size(), 2U);
  EXPECT_TRUE(generated[0].equal(generated[1])) << "with layers that ranks divide as well";
}

// A token goes through all stages before the last one chooses the next. Ranks with shards of
// sequences divide those of any length.
TEST(Generation, PartsOfModelsGiveWhatOneProcessDoes) {
  constexpr int64_t kModelLayers = 4, kGiven = 3;
  const std::vector<MegatronGenerateOptions> kinds = {
      {.max_new_tokens = 4, .top_k = 1},
      {.max_length = kGiven + 5, .top_k = 5, .seed = 5},
      {.max_new_tokens = 4, .temperature = 0.7, .top_p = 0.9, .seed = 7},
      {.max_new_tokens = 4, .seed = 3}};
  // By rank, in the order of the kinds.
  const auto generated = [&](int ranks, const MegatronLMPlugin& degrees) {
    std::vector<std::vector<at::Tensor>> all(static_cast<size_t>(ranks));
    run_engines("1x" + std::to_string(ranks) + ":h100", nullptr,
                lm::model_config("tiny", {.blocks = Blocks::kLlama, .layers = kModelLayers}),
                plugin_of_formula(kModelLayers, degrees), {}, [&](EngineJob& job, int rank) {
                  for (int step = 0; step < 2; ++step) job.engine().train_step(job.batch(step));
                  const at::Tensor start =
                      job.batch(0).at("text").narrow(0, 0, 3).narrow(1, 0, kGiven);
                  for (const MegatronGenerateOptions& options : kinds) {
                    all[static_cast<size_t>(rank)].push_back(
                        job.engine().megatron_generate(start, options).cpu());
                  }
                });
    return all;
  };
  const std::vector<at::Tensor> expected = generated(1, {}).front();
  ASSERT_EQ(expected.size(), kinds.size());
  EXPECT_EQ(expected[0].size(1), kGiven + 4);
  EXPECT_FALSE(expected[3].equal(expected[0])) << "which are the most likely tokens";
  const std::vector<Layout> jobs = {
      {2, {.pp_degree = 2}},
      {2, {.tp_degree = 2, .sequence_parallelism = true}},
      {2, {.pp_degree = 2, .num_layers_per_virtual_pipeline_stage = 1}},
      {4, {.pp_degree = 4}},
      {4, {.tp_degree = 2, .pp_degree = 2}}};
  for (size_t job = 0; job < jobs.size(); ++job) {
    const auto all = generated(jobs[job].ranks, jobs[job].degrees);
    for (size_t rank = 0; rank < all.size(); ++rank) {
      ASSERT_EQ(all[rank].size(), kinds.size());
      for (size_t i = 0; i < kinds.size(); ++i) {
        EXPECT_TRUE(all[rank][i].equal(expected[i]))
            << "job " << job << ", rank " << rank << ", options " << i;
      }
    }
  }
}

// All ranks learn from the last stage that the row has ended.
TEST(Generation, StagesStopWhenAllRowsHaveEnded) {
  constexpr int64_t kGiven = 3, kMost = 6;
  MegatronLMPlugin plugin = plugin_of({.pp_degree = 2});
  at::Tensor usual;
  const auto run = [&](const std::function<void(const at::Tensor& tokens, int rank)>& body) {
    run_engines("1x2:h100", nullptr, small_model(), plugin, {}, [&](EngineJob& job, int rank) {
      const at::Tensor start = job.batch(0).at("text").narrow(0, 0, 1).narrow(1, 0, kGiven);
      body(job.engine().megatron_generate(start, {.max_new_tokens = kMost, .top_k = 1}).cpu(),
           rank);
    });
  };
  run([&](const at::Tensor& tokens, int rank) {
    if (rank == 0) usual = tokens;
  });
  ASSERT_EQ(usual.size(1), kGiven + kMost);
  // The first token that is generated ends the row now.
  plugin.other_megatron_args.value()["eos_token_id"] = usual[0][kGiven].item<int64_t>();
  run([&](const at::Tensor& tokens, int rank) {
    EXPECT_TRUE(tokens.equal(usual.narrow(1, 0, kGiven + 1))) << rank;
  });
}

TEST(Generation, DrawsAlikeOnAllRanks) {
  std::vector<at::Tensor> drawn(2);
  run_engines("1x2:h100", nullptr, small_model(), plugin_of({.tp_degree = 2}), {},
              [&](EngineJob& job, int rank) {
                const at::Tensor start = torch::tensor({{97, 98}}, at::kLong);
                for (const MegatronGenerateOptions& options :
                     {MegatronGenerateOptions{.max_length = 8, .top_k = 3, .seed = 5},
                      MegatronGenerateOptions{.max_length = 8, .top_p = 0.5, .seed = 5}}) {
                  drawn[static_cast<size_t>(rank)] =
                      job.engine().megatron_generate(start, options).cpu();
                  EXPECT_LE(drawn[static_cast<size_t>(rank)].size(1), 8);
                }
                EXPECT_THAT(value_error_of([&] {
                              job.engine().megatron_generate(start, {.top_k = 2, .top_p = 0.5});
                            }),
                            HasSubstr("top_k=2, top_p=0.5"));
              });
  EXPECT_TRUE(drawn[0].equal(drawn[1]));
}

// Each token is followed by one of the next three numbers, whatever is before it.
class BigramsImpl : public torch::nn::Module {
 public:
  static constexpr int64_t kSize = 8;

  BigramsImpl() {
    constexpr double kNever = -30;
    constexpr double kShares[] = {0.5, 0.3, 0.2};
    const at::Tensor logits = torch::full({kSize, kSize}, kNever);
    for (int64_t token = 0; token < kSize; ++token) {
      for (int64_t i = 0; i < 3; ++i) {
        logits[token][(token + 1 + i) % kSize].fill_(std::log(kShares[i]));
      }
    }
    logits_ = register_parameter("logits", logits);
  }
  at::Tensor forward(const at::Tensor& tokens) { return torch::embedding(logits_, tokens); }

 private:
  at::Tensor logits_;
};
TORCH_MODULE(Bigrams);

TEST(Generation, DrawsAmongTheMostLikelyTokensAlone) {
  run_engine_of<Bigrams>("1x1:h100", plugin_of({}), [](auto& engine, const auto& /*net*/, int) {
    const auto drawn = [&engine](MegatronGenerateOptions options) {
      std::set<int64_t> tokens;
      options.max_new_tokens = 1;
      for (options.seed = 0; options.seed < 4; ++options.seed) {
        const at::Tensor all = engine.megatron_generate(torch::zeros({16, 1}, at::kLong), options);
        for (int64_t row = 0; row < 16; ++row) tokens.insert(all[row][1].item<int64_t>());
      }
      return tokens;
    };
    EXPECT_THAT(drawn({}), ElementsAre(1, 2, 3));
    EXPECT_THAT(drawn({.temperature = 0.01}), ElementsAre(1));
    EXPECT_THAT(drawn({.top_k = 1}), ElementsAre(1));
    EXPECT_THAT(drawn({.top_k = 2}), ElementsAre(1, 2));
    EXPECT_THAT(drawn({.top_k = 3}), ElementsAre(1, 2, 3));
    EXPECT_THAT(drawn({.top_p = 0.4}), ElementsAre(1));
    EXPECT_THAT(drawn({.top_p = 0.6}), ElementsAre(1, 2));
    EXPECT_THAT(drawn({.top_p = 0.9}), ElementsAre(1, 2, 3));
  });
}

TEST(Generation, RowsThatHaveEndedGoOnWithEnds) {
  run_engine_of<Bigrams>(
      "1x1:h100", plugin_with_end(3), [](auto& engine, const auto& /*net*/, int) {
        const at::Tensor start = torch::tensor({1, 6}, at::kLong).view({2, 1});
        const at::Tensor tokens =
            engine.megatron_generate(start, {.max_new_tokens = 9, .top_k = 1}).cpu();
        const at::Tensor expected =
            torch::tensor({1, 2, 3, 3, 3, 3, 6, 7, 0, 1, 2, 3}, at::kLong).view({2, 6});
        EXPECT_TRUE(tokens.equal(expected)) << tokens;
      });
}

// ---- Ranks with other tokens.

// The same by a mixture of experts, which adds one number to all logits of a token.
class RoutedBigramsImpl : public torch::nn::Module {
 public:
  at::Tensor forward(const at::Tensor& tokens) {
    const at::Tensor logits = bigrams_(tokens);
    return logits + mixture_(logits).sum(-1, /*keepdim=*/true);
  }

 private:
  Bigrams bigrams_ = register_module("bigrams", Bigrams());
  MixtureOfExperts mixture_ = register_module(
      "mixture",
      MixtureOfExperts(MixtureOptions{
          .hidden = BigramsImpl::kSize, .intermediate = 4, .router = {.experts = 2, .top_k = 1}}));
};
TORCH_MODULE(RoutedBigrams);

// Rows of even ranks have ended long before those of odd ones, whose prompts are longer.
template <typename Net>
void expect_own_ends(const std::string& cluster, const MegatronLMPlugin& degrees) {
  run_engine_of<Net>(
      cluster, plugin_with_end(3, degrees), [&](auto& engine, const auto& /*net*/, int rank) {
        const bool is_even = rank % 2 == 0;
        const at::Tensor start = is_even ? torch::tensor({1, 2}, at::kLong).view({2, 1})
                                         : torch::tensor({5, 6}, at::kLong).view({1, 2});
        const at::Tensor expected =
            is_even ? torch::tensor({1, 2, 3, 2, 3, 3}, at::kLong).view({2, 3})
                    : torch::tensor({5, 6, 7, 0, 1, 2, 3}, at::kLong).view({1, 7});
        // The first call leaves nothing for the second one to answer.
        for (int call = 0; call < 2; ++call) {
          const at::Tensor tokens =
              engine.megatron_generate(start, {.max_new_tokens = 9, .top_k = 1}).cpu();
          EXPECT_TRUE(tokens.equal(expected)) << "rank " << rank << " of " << cluster << "\n"
                                              << tokens;
        }
      });
}

TEST(Generation, SharesOfADividedOptimizerEndByThemselves) {
  expect_own_ends<Bigrams>("1x2:h100", {.use_distributed_optimizer = true});
  expect_own_ends<Bigrams>("1x4:h100",
                           {.context_parallel_size = 2, .use_distributed_optimizer = true});
}

TEST(Generation, SharesWithOtherExpertsEndByThemselves) {
  expect_own_ends<RoutedBigrams>("1x2:h100", {.expert_model_parallel_size = 2});
  expect_own_ends<RoutedBigrams>("1x4:h100",
                                 {.expert_model_parallel_size = 2, .context_parallel_size = 2});
}

// Each of them has whole sequences here, as in a call of the model outside of a scope.
TEST(Generation, RanksWithPartsOfSequencesEndByThemselves) {
  expect_own_ends<Bigrams>("1x2:h100", {.context_parallel_size = 2});
}

struct Asked {
  at::Tensor start;
  MegatronGenerateOptions options;
};

constexpr int64_t kNoToken = 256;

// Rows of one share, which needs two passes, and of another one, which needs six.
Asked asked_by(int share) {
  const at::Tensor text = formula_batch(/*step=*/0, /*rows=*/8, /*length=*/8).first;
  if (share == 0) return {text.narrow(0, 0, 2).narrow(1, 0, 3), {.max_new_tokens = 2, .top_k = 1}};
  return {text.narrow(0, 5, 1).narrow(1, 1, 5), {.max_length = 5 + 6, .top_k = 1}};
}

TEST(Generation, PartsOfModelsMakePassesForOtherShares) {
  std::vector<at::Tensor> expected;
  const MegatronLMPlugin whole = plugin_with_end(kNoToken);
  run_engines("1x1:h100", nullptr, small_model(), whole, {}, [&](EngineJob& job, int) {
    for (int share = 0; share < 2; ++share) {
      const Asked asked = asked_by(share);
      expected.push_back(job.engine().megatron_generate(asked.start, asked.options).cpu());
    }
  });
  ASSERT_EQ(expected.size(), 2U);
  ASSERT_EQ(expected[0].size(1), 3 + 2);
  ASSERT_EQ(expected[1].size(1), 5 + 6);
  for (const MegatronLMPlugin& degrees :
       {MegatronLMPlugin{.tp_degree = 2, .use_distributed_optimizer = true},
        MegatronLMPlugin{
            .tp_degree = 2, .sequence_parallelism = true, .use_distributed_optimizer = true},
        MegatronLMPlugin{.pp_degree = 2, .use_distributed_optimizer = true}}) {
    run_engines("1x4:h100", nullptr, small_model(), plugin_with_end(kNoToken, degrees), {},
                [&](EngineJob& job, int rank) {
                  const DataShare share = job.accelerator().state().data_share();
                  ASSERT_EQ(share.count, 2);
                  const Asked asked = asked_by(share.index);
                  const at::Tensor tokens =
                      job.engine().megatron_generate(asked.start, asked.options).cpu();
                  EXPECT_TRUE(tokens.equal(expected[static_cast<size_t>(share.index)]))
                      << "rank " << rank << "\n"
                      << tokens;
                });
  }
}

// One whose rows are none, or as long as they may be, makes passes for others all the same.
TEST(Generation, ARankThatNeedsNoTokenMakesPassesForOthers) {
  run_engine_of<Bigrams>(
      "1x2:h100", plugin_with_end(3, {.use_distributed_optimizer = true}),
      [](auto& engine, const auto& /*net*/, int rank) {
        const at::Tensor start = torch::tensor({5, 6}, at::kLong).view({1, 2});
        const std::vector<at::Tensor> of_rank_0 = {start, start.narrow(0, 0, 0)};
        for (const at::Tensor& own : of_rank_0) {
          const at::Tensor tokens =
              rank == 0 ? engine.megatron_generate(own, {.max_length = 2, .top_k = 1}).cpu()
                        : engine.megatron_generate(start, {.max_length = 4, .top_k = 1}).cpu();
          EXPECT_TRUE(
              tokens.equal(rank == 0 ? own : torch::tensor({5, 6, 7, 0}, at::kLong).view({1, 4})))
              << rank;
        }
      });
}

// Where ranks have all of a model, nobody waits for the others.
TEST(Generation, AReplicaIsAskedAlone) {
  run_engine_of<Bigrams>(
      "1x2:h100", plugin_of({}), [](auto& engine, const auto& /*net*/, int rank) {
        if (rank == 0) return;
        const at::Tensor tokens = engine
                                      .megatron_generate(torch::full({1, 1}, 4, at::kLong),
                                                         {.max_new_tokens = 2, .top_k = 1})
                                      .cpu();
        EXPECT_TRUE(tokens.equal(torch::tensor({4, 5, 6}, at::kLong).view({1, 3}))) << tokens;
      });
}

class CountedBigramsImpl : public torch::nn::Module {
 public:
  at::Tensor forward(const at::Tensor& tokens) {
    calls_.add_(1);
    return bigrams_(tokens);
  }

 private:
  Bigrams bigrams_ = register_module("bigrams", Bigrams());
  at::Tensor calls_ = register_buffer("calls", torch::zeros({}, at::kLong));
};
TORCH_MODULE(CountedBigrams);

// Those with buffers meet in the first pass behind a step.
TEST(Generation, AReplicaThatNeedsNoTokenMakesBuffersEqual) {
  run_engine_of<CountedBigrams>(
      "1x2:h100", plugin_of({}), [](auto& engine, const auto& /*net*/, int rank) {
        engine.train_step(MegatronBatch{{"text", torch::ones({8, 3}, at::kLong)}});
        const at::Tensor start = torch::full({1, 1}, 4, at::kLong);
        const at::Tensor tokens =
            engine.megatron_generate(start, {.max_new_tokens = 2 * rank, .top_k = 1});
        EXPECT_EQ(tokens.size(1), 1 + 2 * rank);
      });
}

// ---- Bad input: what all ranks that make passes together are told.

std::vector<std::string> refused(int ranks, const MegatronLMPlugin& degrees,
                                 const std::function<Asked(int rank)>& asked_by_rank) {
  std::vector<std::string> errors(static_cast<size_t>(ranks));
  run_engines("1x" + std::to_string(ranks) + ":h100", nullptr, small_model(), plugin_of(degrees),
              {}, [&](EngineJob& job, int rank) {
                const Asked asked = asked_by_rank(rank);
                errors[static_cast<size_t>(rank)] = value_error_of(
                    [&] { job.engine().megatron_generate(asked.start, asked.options); });
              });
  return errors;
}

TEST(GenerationBadInput, OtherTokensAlongTpAreNamed) {
  const at::Tensor tokens = torch::tensor({{97, 98, 99}}, at::kLong);
  const std::function<Asked(int)> asks_less = [&](int rank) {
    return Asked{tokens.narrow(1, 0, 3 - rank), {.max_new_tokens = 2}};
  };
  for (const std::string& error : refused(2, {.tp_degree = 2}, asks_less)) {
    EXPECT_THAT(
        error, AllOf(HasSubstr("megatron_generate: ranks along tp and pp"),
                     HasSubstr("rank 0 has tokens [1, 3]"), HasSubstr("and rank 1 tokens [1, 2]")));
  }
  const std::function<Asked(int)> asks_others = [&](int rank) {
    return Asked{tokens + rank, {.max_new_tokens = 2}};
  };
  for (const std::string& error : refused(2, {.tp_degree = 2}, asks_others)) {
    EXPECT_THAT(error, AllOf(HasSubstr("rank 0 has tokens [1, 3]"), HasSubstr("checksum"),
                             HasSubstr("and rank 1 tokens [1, 3]")));
  }
}

TEST(GenerationBadInput, OtherOptionsAlongPpAreNamed) {
  const std::function<Asked(int)> asks = [](int rank) {
    Asked asked = asked_by(rank % 2);
    if (rank == 3) asked.options.max_length = 9;
    return asked;
  };
  for (const std::string& error :
       refused(4, {.pp_degree = 2, .use_distributed_optimizer = true}, asks)) {
    EXPECT_THAT(error, AllOf(HasSubstr("rank 1 has tokens [1, 5]"), HasSubstr("6 more"),
                             HasSubstr("and rank 3 tokens [1, 5]"), HasSubstr("4 more")));
  }
}

TEST(GenerationBadInput, TheRankOfBadTokensIsNamed) {
  const std::function<Asked(int)> asks = [](int rank) {
    Asked asked = asked_by(rank);
    if (rank == 1) asked.start = asked.start[0];
    return asked;
  };
  for (const std::string& error : refused(2, {.use_distributed_optimizer = true}, asks)) {
    EXPECT_THAT(error, HasSubstr("rank 1: megatron_generate: expected tokens [rows, length], got "
                                 "[5]"));
  }
}

}  // namespace
}  // namespace accelerate
