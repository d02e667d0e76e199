// Training of language models whose layers ranks along tp divide, on clusters of the shape that the
// mesh needs: the losses, norms and initial values of one process, and the traffic to the byte.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "accelerate/accelerator_options.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/config/tensor_parallel_plan.h"
#include "accelerate/examples/lm/config.h"
#include "accelerate/examples/lm/model.h"
#include "integration_tests/tensor/formula_model.h"

namespace accelerate {
namespace {

using lm::Blocks;

lm::Config tiny(Blocks blocks, int64_t kv_heads = -1) {
  return lm::model_config("tiny", {.blocks = blocks, .kv_heads = kv_heads});
}

// Losses and norms of the same training by PyTorch, in float32.
constexpr double kGptLosses[] = {
    5.538330078125,     5.139376640319824, 4.745053291320801, 4.251771450042725, 3.8575327396392822,
    3.4945685863494873, 3.237624406814575, 3.112563133239746, 3.004462957382202, 2.97322940826416};
constexpr double kGptNorms[] = {6.5393820826526445, 4.2348657110602765, 3.4925419809837654,
                                2.8124127585826706, 2.6974650175832595, 2.771096972557877,
                                1.5972026550253362, 1.6777305414703343, 0.9912700053511929,
                                1.2598799301369652};
constexpr double kLlamaLosses[] = {
    5.549895763397217, 5.175098419189453, 4.808009147644043,  4.352645397186279, 3.9165496826171875,
    3.567056655883789, 3.248589515686035, 3.1430249214172363, 3.028856039047241, 2.990854263305664};
constexpr double kLlamaNorms[] = {7.846437577647608,  5.150345425181586,  3.8582005370483348,
                                  3.0708373818596093, 2.3328373690007083, 3.060680531967326,
                                  1.26515106049559,   2.2555801887712326, 1.6657738973367635,
                                  1.7595451517364797};

template <typename Expected>
void expect_equal(const std::string& layout, const FormulaOutcome& outcome, const Expected& losses,
                  const Expected& norms) {
  ASSERT_EQ(outcome.losses.size(), std::size(losses));
  for (size_t i = 0; i < std::size(losses); ++i) {
    EXPECT_NEAR(outcome.losses[i], losses[i], 1e-6 * losses[i]) << layout << ", step " << i;
    EXPECT_NEAR(outcome.norms[i], norms[i], 1e-5 * norms[i]) << layout << ", step " << i;
  }
}

struct Layout {
  std::string cluster;
  ParallelismOptions sizes;
};

std::vector<Layout> layouts_of_two() {
  return {{"1x2:h100", {.tp_size = 2}},
          {"1x4:h100", {.dp_shard_size = 2, .tp_size = 2}},
          {"1x4:h100", {.dp_replicate_size = 2, .tp_size = 2}}};
}

std::string text_of(const Layout& layout) {
  return layout.cluster + ", tp " + std::to_string(*layout.sizes.tp_size);
}

TEST(TensorParallelTraining, OfGptIsThatOfOneProcess) {
  expect_equal("one process", train_by_formula({.config = tiny(Blocks::kGpt)}), kGptLosses,
               kGptNorms);
  std::vector<Layout> layouts = layouts_of_two();
  layouts.push_back({"1x4:h100", {.tp_size = 4}});
  for (const Layout& layout : layouts) {
    expect_equal(
        text_of(layout),
        train_by_formula(
            {.config = tiny(Blocks::kGpt), .sizes = layout.sizes, .cluster = layout.cluster}),
        kGptLosses, kGptNorms);
  }
}

TEST(TensorParallelTraining, OfLlamaIsThatOfOneProcess) {
  expect_equal("one process", train_by_formula({.config = tiny(Blocks::kLlama)}), kLlamaLosses,
               kLlamaNorms);
  for (const Layout& layout : layouts_of_two()) {
    expect_equal(
        text_of(layout),
        train_by_formula(
            {.config = tiny(Blocks::kLlama), .sizes = layout.sizes, .cluster = layout.cluster}),
        kLlamaLosses, kLlamaNorms);
  }
  const FormulaOutcome one = train_by_formula({.config = tiny(Blocks::kLlama, /*kv_heads=*/4)});
  expect_equal("1x4:h100, tp 4",
               train_by_formula({.config = tiny(Blocks::kLlama, /*kv_heads=*/4),
                                 .sizes = ParallelismOptions{.tp_size = 4},
                                 .cluster = "1x4:h100"}),
               one.losses, one.norms);
}

// Blocks that are computed again sum again, and the rest does not.
TEST(TensorParallelTraining, IsTheSameWhereBlocksAreComputedAgain) {
  expect_equal("1x2:h100, tp 2",
               train_by_formula({.config = tiny(Blocks::kLlama),
                                 .lm = {.activation_checkpointing = true},
                                 .sizes = ParallelismOptions{.tp_size = 2},
                                 .cluster = "1x2:h100"}),
               kLlamaLosses, kLlamaNorms);
}

// What a model's own plan has besides.
struct Besides {
  bool sequence_shards = false;
  bool parallel_loss = false;
};

std::function<void(AcceleratorOptions&)> with(const Besides& besides, const lm::Config& config) {
  return [besides, config](AcceleratorOptions& options) {
    TensorParallelPlan plan = *lm::Lm(config)->tensor_parallel_plan();
    plan.sequence_parallel = besides.sequence_shards;
    plan.keep_gathered_inputs = true;
    plan.parallel_loss = besides.parallel_loss;
    options.kwargs_handlers.emplace_back(plan);
  };
}

TEST(TensorParallelTraining, IsTheSameWithSequenceShardsAndParallelLoss) {
  for (const Blocks blocks : {Blocks::kGpt, Blocks::kLlama}) {
    const bool is_gpt = blocks == Blocks::kGpt;
    for (const Layout& layout : layouts_of_two()) {
      for (const Besides& besides :
           {Besides{.sequence_shards = true}, Besides{.parallel_loss = true},
            Besides{.sequence_shards = true, .parallel_loss = true}}) {
        expect_equal(text_of(layout),
                     train_by_formula({.config = tiny(blocks),
                                       .sizes = layout.sizes,
                                       .cluster = layout.cluster,
                                       .change = with(besides, tiny(blocks)),
                                       .parallel_loss = besides.parallel_loss}),
                     is_gpt ? kGptLosses : kLlamaLosses, is_gpt ? kGptNorms : kLlamaNorms);
      }
    }
    expect_equal("1x2:h100, computed again",
                 train_by_formula({.config = tiny(blocks),
                                   .lm = {.activation_checkpointing = true},
                                   .sizes = ParallelismOptions{.tp_size = 2},
                                   .cluster = "1x2:h100",
                                   .change = with({.sequence_shards = true}, tiny(blocks))}),
                 is_gpt ? kGptLosses : kLlamaLosses, is_gpt ? kGptNorms : kLlamaNorms);
  }
}

// What one of two ranks sends in one step more.
double bytes_of_a_step(Blocks blocks, const Besides& besides = {},
                       bool activation_checkpointing = false) {
  const auto bytes = [&](int steps) {
    return train_by_formula({.config = tiny(blocks),
                             .lm = {.activation_checkpointing = activation_checkpointing},
                             .sizes = ParallelismOptions{.tp_size = 2},
                             .cluster = "1x2:h100",
                             .steps = steps,
                             .rows = 4,
                             .change = with(besides, tiny(blocks)),
                             .parallel_loss = besides.parallel_loss,
                             .clips = false})
        .bytes;
  };
  return (bytes(2) - bytes(1)) / 2;
}

// Four sums in each of four layers, also where a perceptron has two matrices of one input; the
// embedding, the gradient of the head's input, and the logits.
TEST(TensorParallelTraining, SendsWhatItsLayersSum) {
  constexpr double kActivations = 4 * 128 * 128 * 4;  // bytes
  static_assert(4 * 4 * kActivations + 3 * kActivations == 4'980'736);
  EXPECT_EQ(bytes_of_a_step(Blocks::kGpt), 4'980'736);
  EXPECT_EQ(bytes_of_a_step(Blocks::kLlama), 4'980'736);
  EXPECT_EQ(bytes_of_a_step(Blocks::kLlama, {}, /*activation_checkpointing=*/true),
            4'980'736 + 4 * 2 * kActivations);
}

// A gather and a reduce-scatter in place of each sum, and once a step the sums of what norms and
// biases of rows have: GPT's 3,328 elements, Llama's 1,152. GPT adds positions to whole sequences,
// whose gradient is put together besides.
TEST(TensorParallelTraining, SendsAsMuchWithSequenceShards) {
  constexpr double kHalfOfActivations = 4 * 128 * 128 * 4 / 2;  // bytes
  EXPECT_EQ(bytes_of_a_step(Blocks::kGpt, {.sequence_shards = true}),
            4'980'736 + kHalfOfActivations + 3'328 * 4);
  EXPECT_EQ(bytes_of_a_step(Blocks::kLlama, {.sequence_shards = true}), 4'980'736 + 1'152 * 4);
  // Three numbers a token in place of the logits.
  EXPECT_EQ(bytes_of_a_step(Blocks::kGpt, {.parallel_loss = true}), 4'724'736);
  EXPECT_EQ(bytes_of_a_step(Blocks::kGpt, {.sequence_shards = true, .parallel_loss = true}),
            4'869'120);
}

TEST(TensorParallelTraining, LeavesARankItsPartsAlone) {
  const auto elements = [](Blocks blocks, const ParallelismOptions& sizes, const char* cluster) {
    return train_by_formula(
               {.config = tiny(blocks), .sizes = sizes, .cluster = cluster, .steps = 0})
        .elements;
  };
  EXPECT_EQ(elements(Blocks::kGpt, {.tp_size = 2}, "1x2:h100"), 431'104);
  EXPECT_EQ(elements(Blocks::kLlama, {.tp_size = 2}, "1x2:h100"), 402'560);
}

}  // namespace
}  // namespace accelerate
