// Training of language models of which ranks along pp have stages, on clusters of the shape that
// the mesh needs: the losses and norms of one process, and of PyTorch's pipelines with 4
// micro-batches.
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "accelerate/accelerator_options.h"
#include "accelerate/config/kwargs_handlers.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/config/pipeline_plan.h"
#include "accelerate/examples/lm/config.h"
#include "accelerate/pipeline/schedule.h"
#include "accelerate/step/train_batch.h"
#include "integration_tests/tensor/answers.h"
#include "integration_tests/tensor/first_steps.h"
#include "integration_tests/tensor/formula_model.h"

namespace accelerate {
namespace {

using lm::Blocks;
using enum pipeline::ScheduleKind;

constexpr int kMicroBatches = 4;

struct Layout {
  std::string name = {};  // as the answers have it
  std::string cluster = {};
  ParallelismOptions sizes = {};
  PipelinePlan plan = {};
  PlanModes modes = {};
  bool recomputes = false;
};

std::vector<Layout> layouts() {
  const ParallelismOptions two = {.pp_size = 2};
  return {{"pp 2, gpipe", "1x2:h100", two, {.schedule = kGpipe}},
          {"pp 2, 1f1b", "1x2:h100", two, {}},
          {"pp 2, interleaved", "1x2:h100", two, {.schedule = kInterleaved, .stages_per_rank = 2}},
          {"pp 2, looped_bfs",
           "1x2:h100",
           two,
           {.schedule = kLoopedBreadthFirst, .stages_per_rank = 2}},
          {"pp 2, zb_h1", "1x2:h100", two, {.schedule = kZeroBubbleH1}},
          {"pp 2, zb_v", "1x2:h100", two, {.schedule = kZeroBubbleV, .stages_per_rank = 2}},
          {"pp 4, 1f1b", "1x4:h100", {.pp_size = 4}, {}},
          {"pp 4, gpipe", "1x4:h100", {.pp_size = 4}, {.schedule = kGpipe}},
          {"pp 2 x tp 2", "1x4:h100", {.tp_size = 2, .pp_size = 2}, {}},
          {"pp 2 x tp 2, sequence shards",
           "1x4:h100",
           {.tp_size = 2, .pp_size = 2},
           {},
           {.sequence_shards = true}},
          {"pp 2 x cp 2", "1x4:h100", {.cp_size = 2, .pp_size = 2}, {}},
          {"pp 2 x dp_replicate 2", "1x4:h100", {.dp_replicate_size = 2, .pp_size = 2}, {}},
          {"pp 2 x dp_shard 2", "1x4:h100", {.dp_shard_size = 2, .pp_size = 2}, {}},
          {"pp 2 x dp_shard 2, gpipe",
           "1x4:h100",
           {.dp_shard_size = 2, .pp_size = 2},
           {.schedule = kGpipe}},
          {"pp 2 x dp_replicate 2 x dp_shard 2",
           "1x8:h100",
           {.dp_replicate_size = 2, .dp_shard_size = 2, .pp_size = 2},
           {}},
          // Several stages a rank, and passes in halves: what ranks share is reduced when windows
          // end.
          {"pp 2 x dp_replicate 2, interleaved",
           "1x4:h100",
           {.dp_replicate_size = 2, .pp_size = 2},
           {.schedule = kInterleaved, .stages_per_rank = 2}},
          {"pp 2 x dp_replicate 2, zb_h1",
           "1x4:h100",
           {.dp_replicate_size = 2, .pp_size = 2},
           {.schedule = kZeroBubbleH1}},
          {"pp 2 x dp_shard 2, interleaved",
           "1x4:h100",
           {.dp_shard_size = 2, .pp_size = 2},
           {.schedule = kInterleaved, .stages_per_rank = 2}},
          {"pp 2 x dp_shard 2, zb_h1",
           "1x4:h100",
           {.dp_shard_size = 2, .pp_size = 2},
           {.schedule = kZeroBubbleH1}},
          {"pp 2 x dp_shard 2, zb_v",
           "1x4:h100",
           {.dp_shard_size = 2, .pp_size = 2},
           {.schedule = kZeroBubbleV, .stages_per_rank = 2}},
          {"pp 2 x dp_replicate 2 x dp_shard 2, looped_bfs",
           "1x8:h100",
           {.dp_replicate_size = 2, .dp_shard_size = 2, .pp_size = 2},
           {.schedule = kLoopedBreadthFirst, .stages_per_rank = 2}},
          {"pp 2 x tp 2, interleaved",
           "1x4:h100",
           {.tp_size = 2, .pp_size = 2},
           {.schedule = kInterleaved, .stages_per_rank = 2}},
          {"pp 2 x tp 2, zb_v",
           "1x4:h100",
           {.tp_size = 2, .pp_size = 2},
           {.schedule = kZeroBubbleV, .stages_per_rank = 2}},
          {"pp 2 x tp 2, sequence shards, zb_h1",
           "1x4:h100",
           {.tp_size = 2, .pp_size = 2},
           {.schedule = kZeroBubbleH1},
           {.sequence_shards = true}},
          {"pp 2 x cp 2, zb_v",
           "1x4:h100",
           {.cp_size = 2, .pp_size = 2},
           {.schedule = kZeroBubbleV, .stages_per_rank = 2}},
          {.name = "pp 2, recomputed", .cluster = "1x2:h100", .sizes = two, .recomputes = true},
          {.name = "pp 2, zb_h1, recomputed",
           .cluster = "1x2:h100",
           .sizes = two,
           .plan = {.schedule = kZeroBubbleH1},
           .recomputes = true}};
}

Answers core_answers() { return read_answers("integration_tests/pipeline/data/times.json"); }

FormulaTraining training_of(const Answers& answers, Blocks blocks, const Layout& layout) {
  const int64_t shares =
      layout.sizes.dp_replicate_size.value_or(1) * layout.sizes.dp_shard_size.value_or(1);
  FormulaTraining training = {
      .config = lm::model_config("tiny", {.blocks = blocks}),
      .lm = {.activation_checkpointing = layout.recomputes},
      .sizes = layout.sizes,
      .cluster = layout.cluster,
      .steps = answers.steps,
      .rows = answers.rows,
      .window = TrainBatchOptions{.micro_batches = static_cast<int>(kMicroBatches / shares)},
      .formula = answers.formula};
  training.change = [plan = layout.plan, modes = layout.modes,
                     config = training.config](AcceleratorOptions& options) {
    options.kwargs_handlers.emplace_back(plan);
    if (modes.sequence_shards) with_modes(modes, config)(options);
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

struct Case {
  Blocks blocks = Blocks::kGpt;
  Layout layout = {};
};

void PrintTo(const Case& given, std::ostream* out) { *out << given.layout.name; }

std::vector<Case> cases() {
  std::vector<Case> cases;
  for (const Blocks blocks : {Blocks::kGpt, Blocks::kLlama}) {
    for (const Layout& layout : layouts()) cases.push_back({blocks, layout});
  }
  return cases;
}

// Letters and digits alone.
std::string name_of(const ::testing::TestParamInfo<Case>& info) {
  std::string name;
  for (const char each : absl::StrCat(text_of(info.param.blocks), "_", info.param.layout.name)) {
    if (std::isalnum(static_cast<unsigned char>(each)) || each == '_') name += each;
  }
  return name;
}

class PipelineAnswers : public ::testing::TestWithParam<Case> {};

// GPT's head is tied to its table of words, so that the first and the last stage have that.
TEST_P(PipelineAnswers, AreThoseOfOneProcessAndOfPyTorch) {
  const auto& [blocks, layout] = GetParam();
  const Answers answers = core_answers();
  const Answer* const of_torch = answers.find(layout.name, blocks);
  FormulaTraining training = training_of(answers, blocks, layout);
  if (of_torch == nullptr) training.steps = first_steps(answers.steps);
  const FormulaOutcome outcome = train_by_formula(training);
  expect_equal("one process", outcome, of_one_process(answers, blocks), training.steps);
  if (of_torch != nullptr) expect_equal("PyTorch", outcome, *of_torch, answers.steps);
}

INSTANTIATE_TEST_SUITE_P(Layouts, PipelineAnswers, ::testing::ValuesIn(cases()), name_of);

TEST(PipelineAnswersOfPyTorch, ArePartOfTheComparison) {
  const Answers answers = core_answers();
  int compared = 0;
  for (const Case& each : cases()) {
    if (answers.find(each.layout.name, each.blocks) != nullptr) ++compared;
  }
  EXPECT_EQ(compared, 2 * 6);
}

// Four ranks need more layers where each has several stages, so that one process computes them
// here.
TEST(PipelineOfFourRanks, IsOneProcessInEachSchedule) {
  const Answers answers = core_answers();
  FormulaTraining of_one = training_of(answers, Blocks::kGpt, {.cluster = "1x1:h100"});
  of_one.config.layers = 6;
  of_one.steps = first_steps(answers.steps);
  of_one.sizes.reset();
  const FormulaOutcome whole = train_by_formula(of_one);
  for (const pipeline::ScheduleKind kind : values<pipeline::ScheduleKind>()) {
    const bool has_one_stage = kind == kGpipe || kind == k1f1b || kind == kZeroBubbleH1;
    const Layout layout = {.name = to_string(kind),
                           .cluster = "1x4:h100",
                           .sizes = {.pp_size = 4},
                           .plan = {.schedule = kind, .stages_per_rank = has_one_stage ? 1 : 2}};
    FormulaTraining training = training_of(answers, Blocks::kGpt, layout);
    training.config.layers = of_one.config.layers;
    training.steps = of_one.steps;
    expect_equal(layout.name, train_by_formula(training),
                 {.losses = whole.losses, .norms = whole.norms}, of_one.steps);
  }
}

// The same program, whose micro-batches come one after the other.
TEST(PipelineOfOneRank, IsOneProcess) {
  const Answers answers = core_answers();
  for (const Blocks blocks : {Blocks::kGpt, Blocks::kLlama}) {
    FormulaTraining training = training_of(answers, blocks, {.cluster = "1x1:h100"});
    training.sizes.reset();
    expect_equal(text_of(blocks), train_by_formula(training), of_one_process(answers, blocks),
                 answers.steps);
  }
}

// Two ranks that average gradients, without stages.
TEST(WindowsOfReplicas, AreOneProcess) {
  const Answers answers = core_answers();
  const Layout replicas = {"dp_replicate 2", "1x2:h100", {.dp_replicate_size = 2}, {}};
  FormulaTraining training = training_of(answers, Blocks::kGpt, replicas);
  training.steps = first_steps(answers.steps);
  expect_equal("gpt", train_by_formula(training), of_one_process(answers, Blocks::kGpt),
               training.steps);
}

// The pass behind a window reaches what the window has used.
TEST(ReplicasOfSeveralStages, MayLookForUnusedParameters) {
  const Answers answers = core_answers();
  FormulaTraining training =
      training_of(answers, Blocks::kLlama,
                  {.name = "unused parameters",
                   .cluster = "1x4:h100",
                   .sizes = {.dp_replicate_size = 2, .pp_size = 2},
                   .plan = {.schedule = kInterleaved, .stages_per_rank = 2}});
  training.steps = first_steps(answers.steps);
  training.change = [change = training.change](AcceleratorOptions& options) {
    change(options);
    options.kwargs_handlers.emplace_back(
        DistributedDataParallelKwargs{.find_unused_parameters = true});
  };
  expect_equal("llama", train_by_formula(training), of_one_process(answers, Blocks::kLlama),
               training.steps);
}

// By the closed form of the whole model's elements; the tied table is in both stages.
TEST(Stages, HaveTheirPartsAlone) {
  const Answers answers = core_answers();
  FormulaTraining training = training_of(answers, Blocks::kGpt, layouts()[1]);
  training.steps = 1;
  EXPECT_EQ(train_by_formula(training).elements, 445'696);
}

// The simulator's seed decides which rank computes when.
TEST(PipelineTraining, IsTheSameBitForBitInEveryOrderOfRanks) {
  const Answers answers = core_answers();
  for (const size_t layout : {size_t{1}, size_t{2}}) {
    FormulaTraining training = training_of(answers, Blocks::kGpt, layouts()[layout]);
    training.config.layers = 2;
    training.rows = 4;
    training.steps = 3;
    training.seed = 1;
    const FormulaOutcome first = train_by_formula(training);
    ASSERT_EQ(first.norms.size(), 3);
    for (training.seed = 2; training.seed <= orders_of_ranks(); ++training.seed) {
      const FormulaOutcome outcome = train_by_formula(training);
      EXPECT_EQ(outcome.losses, first.losses) << layouts()[layout].name << training.seed;
      EXPECT_EQ(outcome.norms, first.norms) << layouts()[layout].name << training.seed;
    }
  }
}

// In all of them the backward passes of a stage go through the micro-batches in their order.
TEST(PipelineTraining, IsTheSameBitForBitInSchedulesWithTheSameStages) {
  const Answers answers = core_answers();
  const auto outcome = [&](size_t layout) {
    FormulaTraining training = training_of(answers, Blocks::kLlama, layouts()[layout]);
    training.steps = 3;
    return train_by_formula(training);
  };
  const FormulaOutcome gpipe = outcome(0), steady = outcome(1);
  EXPECT_EQ(gpipe.losses, steady.losses);
  EXPECT_EQ(gpipe.norms, steady.norms);
}

}  // namespace
}  // namespace accelerate
