// Training by an engine on clusters of the shape that the degrees need: the losses and norms of
// Megatron-Core 0.16.1 (data/megatron_core.json).
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "accelerate/config/megatron_lm_plugin.h"
#include "accelerate/examples/lm/config.h"
#include "integration_tests/megatron/engine_training.h"
#include "integration_tests/tensor/answers.h"
#include "integration_tests/tensor/first_steps.h"

namespace accelerate {
namespace {

using lm::Blocks;

constexpr int64_t kLayers = 4;

struct Case {
  std::string name;  // as the answers have it
  std::string cluster;
  Blocks blocks = Blocks::kGpt;
  MegatronLMPlugin degrees = {};
  bool has_experts = false;
};

void PrintTo(const Case& given, std::ostream* out) { *out << given.name; }

std::vector<Case> cases() {
  std::vector<Case> cases;
  for (const Blocks blocks : {Blocks::kGpt, Blocks::kLlama}) {
    const auto add = [&](const char* layout, int ranks, const MegatronLMPlugin& degrees) {
      cases.push_back({.name = absl::StrCat(layout, ", ", text_of(blocks)),
                       .cluster = absl::StrCat("1x", ranks, ":h100"),
                       .blocks = blocks,
                       .degrees = degrees});
    };
    add("one", 1, {});
    add("tp 2", 2, {.tp_degree = 2});
    add("tp 2 with shards", 2, {.tp_degree = 2, .sequence_parallelism = true});
    add("pp 2, 1f1b", 2, {.pp_degree = 2});
    add("pp 2, interleaved", 2, {.pp_degree = 2, .num_layers_per_virtual_pipeline_stage = 1});
    add("pp 4, 1f1b", 4, {.pp_degree = 4});
    add("tp 2 x pp 2, 1f1b", 4, {.tp_degree = 2, .pp_degree = 2});
    add("tp 2 with shards x pp 2, interleaved", 4,
        {.tp_degree = 2,
         .pp_degree = 2,
         .sequence_parallelism = true,
         .num_layers_per_virtual_pipeline_stage = 1});
  }
  cases.push_back({.name = "one, moe", .cluster = "1x1:h100", .has_experts = true});
  cases.push_back({.name = "ep 2, moe",
                   .cluster = "1x2:h100",
                   .degrees = {.expert_model_parallel_size = 2},
                   .has_experts = true});
  cases.push_back(
      {.name = "ep 2 x tp 2 with shards, moe",
       .cluster = "1x4:h100",
       .degrees = {.tp_degree = 2, .expert_model_parallel_size = 2, .sequence_parallelism = true},
       .has_experts = true});
  return cases;
}

// Letters and digits alone.
std::string name_of(const ::testing::TestParamInfo<Case>& info) {
  std::string name;
  for (const char each : info.param.name) {
    if (std::isalnum(static_cast<unsigned char>(each))) name += each;
  }
  return name;
}

Answers core_answers() {
  return read_answers("integration_tests/megatron/data/megatron_core.json");
}

// The first steps of the answer, or all of them.
void expect_equal(const std::string& beside, const FormulaOutcome& outcome, const Answer& answer,
                  int steps) {
  ASSERT_EQ(outcome.losses.size(), static_cast<size_t>(steps)) << beside;
  ASSERT_EQ(outcome.norms.size(), static_cast<size_t>(steps)) << beside;
  ASSERT_LE(outcome.losses.size(), answer.losses.size()) << beside;
  for (size_t i = 0; i < outcome.losses.size(); ++i) {
    EXPECT_NEAR(outcome.losses[i], answer.losses[i], 1e-6 * answer.losses[i])
        << beside << ", step " << i;
    EXPECT_NEAR(outcome.norms[i], answer.norms[i], 1e-5 * answer.norms[i])
        << beside << ", step " << i;
  }
}

class EngineAnswers : public ::testing::TestWithParam<Case> {};

TEST_P(EngineAnswers, AreMegatronCores) {
  const Case& given = GetParam();
  const Answers answers = core_answers();
  const FormulaOutcome outcome =
      train_by_engine(given.cluster, tiny_model(given.blocks, given.has_experts),
                      plugin_of_formula(kLayers, given.degrees), answers.formula, answers.steps);
  const Answer& answer = answers.by_name.at(given.name);
  EXPECT_EQ(answer.losses.size(), static_cast<size_t>(answers.steps));
  expect_equal(given.name, outcome, answer, answers.steps);
}

INSTANTIATE_TEST_SUITE_P(Degrees, EngineAnswers, ::testing::ValuesIn(cases()), name_of);

// Every token counts in this text, so that means of means are the same.
TEST(EngineWithoutTokens, HasTheSameLosses) {
  const Answers answers = core_answers();
  const int steps = first_steps(answers.steps);
  const MegatronLMPlugin plugin =
      plugin_of_formula(kLayers, {.tp_degree = 2, .calculate_per_token_loss = false});
  expect_equal(
      "means",
      train_by_engine("1x4:h100", tiny_model(Blocks::kGpt), plugin, answers.formula, steps),
      answers.by_name.at("tp 2, gpt"), steps);
}

// The model's blocks are computed again, all of them or the first one of each stage.
TEST(Recomputation, HasTheSameLosses) {
  const Answers answers = core_answers();
  const int steps = first_steps(answers.steps);
  for (const char* method : {"uniform", "block"}) {
    for (const bool has_stages : {false, true}) {
      MegatronLMPlugin plugin = plugin_of_formula(kLayers, {.recompute_activations = true});
      plugin.recompute_method = method;
      (has_stages ? plugin.pp_degree : plugin.tp_degree) = 2;
      expect_equal(
          method,
          train_by_engine("1x2:h100", tiny_model(Blocks::kLlama), plugin, answers.formula, steps),
          answers.by_name.at(has_stages ? "pp 2, 1f1b, llama" : "tp 2, llama"), steps);
    }
  }
}

// Ranks have some tokens of each sequence, and perhaps some layers.
TEST(ContextParallelism, HasTheSameLosses) {
  const Answers answers = core_answers();
  const int steps = first_steps(answers.steps);
  for (const Blocks blocks : {Blocks::kGpt, Blocks::kLlama}) {
    for (const bool has_stages : {false, true}) {
      MegatronLMPlugin plugin = plugin_of_formula(kLayers, {.context_parallel_size = 2});
      if (has_stages) plugin.pp_degree = 2;
      const std::string name = absl::StrCat(has_stages ? "pp 2, 1f1b, " : "one, ", text_of(blocks));
      expect_equal(absl::StrCat("cp 2, ", name),
                   train_by_engine(has_stages ? "1x4:h100" : "1x2:h100", tiny_model(blocks), plugin,
                                   answers.formula, steps),
                   answers.by_name.at(name), steps);
    }
  }
}

// Between stages, ranks along tp send parts of sequences.
TEST(SequenceShards, HaveTheSameLossesWithStages) {
  const Answers answers = core_answers();
  const int steps = first_steps(answers.steps);
  for (const Blocks blocks : {Blocks::kGpt, Blocks::kLlama}) {
    const MegatronLMPlugin plugin =
        plugin_of_formula(kLayers, {.tp_degree = 2, .pp_degree = 2, .sequence_parallelism = true});
    expect_equal("tp 2 with shards x pp 2",
                 train_by_engine("1x4:h100", tiny_model(blocks), plugin, answers.formula, steps),
                 answers.by_name.at(absl::StrCat("tp 2 x pp 2, 1f1b, ", text_of(blocks))), steps);
  }
}

// Data-parallel ranks divide the optimizer, beside ranks along tp and pp.
TEST(DistributedOptimizer, HasTheSameLosses) {
  const Answers answers = core_answers();
  const int steps = first_steps(answers.steps);
  for (const MegatronLMPlugin& degrees :
       {MegatronLMPlugin{.tp_degree = 2, .use_distributed_optimizer = true},
        MegatronLMPlugin{.pp_degree = 2, .use_distributed_optimizer = true}}) {
    const MegatronLMPlugin plugin = plugin_of_formula(kLayers, degrees);
    expect_equal(
        "divided",
        train_by_engine("1x4:h100", tiny_model(Blocks::kLlama), plugin, answers.formula, steps),
        answers.by_name.at(degrees.tp_degree ? "tp 2, llama" : "pp 2, 1f1b, llama"), steps);
  }
}

}  // namespace
}  // namespace accelerate
