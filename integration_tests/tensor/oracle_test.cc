// Training of language models whose layers ranks along tp divide, on clusters of the shape that the
// mesh needs: the losses and norms of one process, and of PyTorch's tensor parallelism, for each
// file of texts and answers.
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "accelerate/accelerator_options.h"
#include "accelerate/config/deepspeed_plugin.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/examples/lm/config.h"
#include "accelerate/examples/lm/model.h"
#include "integration_tests/tensor/answers.h"
#include "integration_tests/tensor/first_steps.h"
#include "integration_tests/tensor/formula_model.h"

namespace accelerate {
namespace {

using lm::Blocks;

constexpr char kFolder[] = "integration_tests/tensor/data";
constexpr char kFirst[] = "times";

struct Layout {
  std::string name = {};  // as the answers have it
  std::string cluster = {};
  ParallelismOptions sizes = {};
  bool has_zero = false;  // its third stage
};

std::vector<Layout> layouts() {
  const ParallelismOptions replicas = {.dp_replicate_size = 2, .tp_size = 2};
  return {{"tp 2", "1x2:h100", {.tp_size = 2}},
          {"tp 4", "1x4:h100", {.tp_size = 4}},
          {"tp 2 x dp_shard 2", "1x4:h100", {.dp_shard_size = 2, .tp_size = 2}},
          {"tp 2 x dp_replicate 2", "1x4:h100", replicas},
          {"tp 2 x ZeRO-3", "1x4:h100", replicas, /*has_zero=*/true}};
}

lm::Config tiny(Blocks blocks, int64_t kv_heads = -1) {
  return lm::model_config("tiny", {.blocks = blocks, .kv_heads = kv_heads});
}

DeepSpeedPlugin third_stage(int64_t rows) {
  return {.hf_ds_config = {
              {"train_micro_batch_size_per_gpu", rows},
              {"gradient_accumulation_steps", 1},
              {"gradient_clipping", 1.0},
              {"zero_allow_untested_optimizer", true},
              {"zero_optimization", {{"stage", 3}, {"stage3_param_persistence_threshold", 0}}}}};
}

FormulaTraining training_of(const Answers& answers, Blocks blocks, const Layout& layout,
                            const PlanModes& modes = {}) {
  FormulaTraining training = {.config = tiny(blocks),
                              .sizes = layout.sizes,
                              .cluster = layout.cluster,
                              .steps = answers.steps,
                              .rows = answers.rows,
                              .parallel_loss = modes.parallel_loss,
                              .formula = answers.formula};
  training.change = [=, rows = answers.rows](AcceleratorOptions& options) {
    with_modes(modes, tiny(blocks))(options);
    if (layout.has_zero) options.deepspeed_plugin = third_stage(rows / 2);
  };
  return training;
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

const Answer& of_one_process(const Answers& answers, Blocks blocks) {
  return answers.by_name.at(absl::StrCat("one process, ", text_of(blocks)));
}

// ---- Each layout, with each file.

struct Case {
  std::string file = {};
  Blocks blocks = Blocks::kGpt;
  Layout layout = {};
  PlanModes modes = {};
};

void PrintTo(const Case& given, std::ostream* out) {
  *out << given.file << ", " << given.layout.name;
}

// The layout with its modes, as the answers have it.
std::string layout_of(const Case& given) {
  return absl::StrCat(given.layout.name, given.modes.sequence_shards ? ", sequence shards" : "",
                      given.modes.parallel_loss ? ", parallel loss" : "");
}

std::vector<Case> cases() {
  std::vector<Case> cases;
  for (const auto& file : std::filesystem::directory_iterator(kFolder)) {
    for (const Blocks blocks : {Blocks::kGpt, Blocks::kLlama}) {
      for (const Layout& layout : layouts()) {
        // It has two heads of keys.
        if (blocks == Blocks::kLlama && *layout.sizes.tp_size > 2) continue;
        for (const bool sequence_shards : {false, true}) {
          for (const bool parallel_loss : {false, true}) {
            // Each mode by itself only where tp is the sole axis; beside others, and on more ranks,
            // both together are trained with the text of one file.
            const bool is_first = file.path().stem() == kFirst;
            const bool is_plain = !sequence_shards && !parallel_loss;
            const bool is_left_out = is_first ? sequence_shards != parallel_loss : !is_plain;
            if (is_left_out && layout.name != "tp 2") continue;
            cases.push_back(
                {file.path().string(), blocks, layout,
                 PlanModes{.sequence_shards = sequence_shards, .parallel_loss = parallel_loss}});
          }
        }
      }
    }
  }
  return cases;
}

// Letters and digits alone.
std::string name_of(const ::testing::TestParamInfo<Case>& info) {
  std::string name;
  for (const char each : absl::StrCat(std::filesystem::path(info.param.file).stem().string(), "_",
                                      text_of(info.param.blocks), "_", layout_of(info.param))) {
    if (std::isalnum(static_cast<unsigned char>(each)) || each == '_') name += each;
  }
  return name;
}

class TensorParallelAnswers : public ::testing::TestWithParam<Case> {};

TEST_P(TensorParallelAnswers, AreThoseOfOneProcessAndOfPyTorch) {
  const auto& [file, blocks, layout, modes] = GetParam();
  const Answers answers = read_answers(file);
  const Answer* const of_torch = answers.find(layout_of(GetParam()), blocks);
  FormulaTraining training = training_of(answers, blocks, layout, modes);
  if (of_torch == nullptr) training.steps = first_steps(answers.steps);
  const FormulaOutcome outcome = train_by_formula(training);
  expect_equal("one process", outcome, of_one_process(answers, blocks), training.steps);
  if (of_torch != nullptr) expect_equal("PyTorch", outcome, *of_torch, answers.steps);
}

INSTANTIATE_TEST_SUITE_P(Layouts, TensorParallelAnswers, ::testing::ValuesIn(cases()), name_of);

// GPT has tp 2, tp 4 and shards of rows; Llama tp 2 in four ways, and shards of rows.
TEST(TensorParallelAnswersOfPyTorch, ArePartOfTheComparison) {
  std::map<std::string, int> compared;  // by file
  for (const Case& each : cases()) {
    const Answers answers = read_answers(each.file);
    if (answers.find(layout_of(each), each.blocks) != nullptr) ++compared[each.file];
  }
  EXPECT_GE(compared.size(), 2);
  for (const auto& [file, count] : compared) EXPECT_EQ(count, 8) << file;
}

// ---- One file is enough.

Answers answers_of_times() { return read_answers(absl::StrCat(kFolder, "/", kFirst, ".json")); }

TEST(TrainingByTheFormula, OfOneProcessHasItsAnswers) {
  const Answers answers = answers_of_times();
  for (const Blocks blocks : {Blocks::kGpt, Blocks::kLlama}) {
    FormulaTraining training = training_of(answers, blocks, {.cluster = "1x1:h100"});
    training.sizes.reset();
    expect_equal(text_of(blocks), train_by_formula(training), of_one_process(answers, blocks),
                 answers.steps);
  }
}

// Blocks that are computed again sum again, and the rest does not.
TEST(TensorParallelTraining, IsTheSameWhereBlocksAreComputedAgain) {
  const Answers answers = answers_of_times();
  for (const Blocks blocks : {Blocks::kGpt, Blocks::kLlama}) {
    for (const bool sequence_shards : {false, true}) {
      FormulaTraining training =
          training_of(answers, blocks, layouts().front(), {.sequence_shards = sequence_shards});
      training.lm.activation_checkpointing = true;
      training.steps = first_steps(answers.steps);
      expect_equal(text_of(blocks), train_by_formula(training), of_one_process(answers, blocks),
                   training.steps);
    }
  }
}

// With as many heads of keys as ranks.
TEST(TensorParallelTraining, OfLlamaOnFourRanksIsThatOfOneProcess) {
  const Answers answers = answers_of_times();
  const lm::Config config = tiny(Blocks::kLlama, /*kv_heads=*/4);
  const auto outcome = [&](const Layout& layout, const PlanModes& modes, bool is_alone) {
    FormulaTraining training = training_of(answers, Blocks::kLlama, layout, modes);
    training.config = config;
    training.steps = first_steps(answers.steps);
    training.change = with_modes(modes, config);
    if (is_alone) training.sizes.reset();
    return train_by_formula(training);
  };
  const FormulaOutcome one = outcome({.cluster = "1x1:h100"}, {}, /*is_alone=*/true);
  const Answer expected = {.losses = one.losses, .norms = one.norms};
  for (const bool has_modes : {false, true}) {
    expect_equal("tp 4",
                 outcome(layouts()[1], {.sequence_shards = has_modes, .parallel_loss = has_modes},
                         /*is_alone=*/false),
                 expected, first_steps(answers.steps));
  }
}

// The simulator's seed decides which rank computes when.
TEST(TensorParallelTraining, IsTheSameBitForBitInEveryOrderOfRanks) {
  const Answers answers = answers_of_times();
  const Layout layout = layouts()[2];
  for (const Blocks blocks : {Blocks::kGpt, Blocks::kLlama}) {
    FormulaTraining training =
        training_of(answers, blocks, layout, {.sequence_shards = true, .parallel_loss = true});
    training.config.layers = 1;
    training.rows = 2;
    training.steps = 3;
    training.seed = 1;
    const FormulaOutcome first = train_by_formula(training);
    ASSERT_EQ(first.norms.size(), 3);
    for (training.seed = 2; training.seed <= orders_of_ranks(); ++training.seed) {
      const FormulaOutcome outcome = train_by_formula(training);
      EXPECT_EQ(outcome.losses, first.losses) << text_of(blocks) << ", seed " << training.seed;
      EXPECT_EQ(outcome.norms, first.norms) << text_of(blocks) << ", seed " << training.seed;
    }
  }
}

}  // namespace
}  // namespace accelerate
