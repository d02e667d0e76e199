// What a training step of a language model whose layers two ranks along tp divide sends and keeps,
// to the byte, on clusters of that shape.
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "accelerate/accelerate.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/examples/lm/config.h"
#include "accelerate/examples/lm/model.h"
#include "accelerate/forward/prepared_model.h"
#include "accelerate/parallel/tensor/tensor_technique.h"
#include "integration_tests/tensor/activations.h"
#include "integration_tests/tensor/formula_model.h"
#include "launch/estimate/architecture.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

using lm::Blocks;

// What four sequences of 128 tokens have of one layer's features, and a half of it: what a rank
// sends in a sum, and in a gather or a reduce-scatter. Bytes.
constexpr int64_t kActivations = 4 * 128 * 128 * 4;
constexpr int64_t kHalf = kActivations / 2;

lm::Config tiny(Blocks blocks, int64_t layers = -1) {
  return lm::model_config("tiny", {.blocks = blocks, .layers = layers});
}

FormulaTraining training_of(const lm::Config& config, const PlanModes& modes,
                            bool computes_again = false) {
  return {.config = config,
          .lm = {.activation_checkpointing = computes_again},
          .sizes = ParallelismOptions{.tp_size = 2},
          .cluster = "1x2:h100",
          .rows = 4,
          .change = with_modes(modes, config),
          .parallel_loss = modes.parallel_loss,
          .clips = false};
}

struct Sent {
  int64_t bytes = 0;  // by one rank
  /// As in FormulaOutcome.
  std::map<std::pair<std::string, int64_t>, int64_t> collectives;
};

// In one step more.
Sent sent_in_a_step(FormulaTraining training) {
  training.steps = 1;
  const FormulaOutcome one = train_by_formula(training);
  training.steps = 2;
  const FormulaOutcome two = train_by_formula(training);
  Sent sent{.bytes = static_cast<int64_t>(two.bytes - one.bytes) / 2,
            .collectives = two.collectives};
  for (const auto& [what, count] : one.collectives) sent.collectives[what] -= count;
  std::erase_if(sent.collectives, [](const auto& each) { return each.second == 0; });
  return sent;
}

int64_t bytes_of_a_step(Blocks blocks, const PlanModes& modes = {}, bool computes_again = false) {
  return sent_in_a_step(training_of(tiny(blocks), modes, computes_again)).bytes;
}

// Four sums in each of four layers, also where a perceptron has two matrices of one input; the
// embedding, the gradient of the head's input, and the logits.
TEST(TensorParallelTraffic, IsWhatLayersSum) {
  static_assert(4 * 4 * kActivations == 4'194'304);
  static_assert(4 * 4 * kActivations + 3 * kActivations == 4'980'736);
  const std::map<std::pair<std::string, int64_t>, int64_t> expected = {
      {{"all_reduce", kActivations}, 4 * 4 + 2},
      {{"all_gather_into_tensor", 2 * kActivations}, 1}};  // 256 words, twice the features
  for (const Blocks blocks : {Blocks::kGpt, Blocks::kLlama}) {
    const Sent sent = sent_in_a_step(training_of(tiny(blocks), {}));
    EXPECT_EQ(sent.bytes, 4'980'736);
    EXPECT_EQ(sent.collectives, expected);
    const Sent without_a_layer = sent_in_a_step(training_of(tiny(blocks, /*layers=*/3), {}));
    EXPECT_EQ(sent.bytes - without_a_layer.bytes, 4'194'304 / 4);
    EXPECT_EQ(bytes_of_a_step(blocks, {}, /*computes_again=*/true),
              4'980'736 + 4 * 2 * kActivations);
  }
}

// The largest logit of each of 512 tokens, and then two sums.
TEST(TensorParallelTraffic, OfAParallelLossIsThreeNumbersAToken) {
  const std::map<std::pair<std::string, int64_t>, int64_t> expected = {
      {{"all_reduce", kActivations}, 4 * 4 + 2},
      {{"all_reduce", 512 * 4}, 1},
      {{"all_reduce", 2 * 512 * 4}, 1}};
  for (const Blocks blocks : {Blocks::kGpt, Blocks::kLlama}) {
    const Sent sent = sent_in_a_step(training_of(tiny(blocks), {.parallel_loss = true}));
    EXPECT_EQ(sent.bytes, 4'980'736 - kActivations + 6'144);
    EXPECT_EQ(sent.collectives, expected);
    EXPECT_EQ(bytes_of_a_step(blocks, {.parallel_loss = true}, /*computes_again=*/true), 6'821'888);
  }
}

// A gather and a reduce-scatter in place of each sum, and once a step the sums of what norms and
// biases of rows have: GPT's 3,328 elements, Llama's 1,152. GPT adds positions to whole sequences,
// whose gradient is put together besides. gathered_inputs_test.cc has what more is sent where
// gathered inputs are dropped.
TEST(TensorParallelTraffic, IsAsMuchWithSequenceShards) {
  constexpr PlanModes kShards = {.sequence_shards = true, .keeps_gathered_inputs = true};
  EXPECT_EQ(bytes_of_a_step(Blocks::kGpt, kShards), 4'980'736 + kHalf + 3'328 * 4);
  EXPECT_EQ(bytes_of_a_step(Blocks::kLlama, kShards), 4'980'736 + 1'152 * 4);
}

TEST(TensorParallelTraffic, WithSequenceShardsIsGathersAndReduceScatters) {
  PlanModes modes = {.sequence_shards = true, .parallel_loss = true};
  const auto expect = [&](int64_t gathers) {
    const Sent sent = sent_in_a_step(training_of(tiny(Blocks::kLlama), modes));
    const auto count_of = [&](const std::string& verb, int64_t bytes) {
      const auto found = sent.collectives.find({verb, bytes});
      return found != sent.collectives.end() ? found->second : 0;
    };
    EXPECT_EQ(count_of("all_gather_into_tensor", kActivations), gathers);
    EXPECT_EQ(count_of("reduce_scatter_tensor", kActivations), 4 * 4 + 2);
    EXPECT_EQ(count_of("all_reduce", kActivations), 0);
  };
  // The inputs of products are put together again in each of four layers, and in the head.
  expect(4 * 4 + 2 + 4 * 2 + 1);
  // Forward and backward in each of four layers; and the embedding and the head.
  modes.keeps_gathered_inputs = true;
  expect(4 * 4 + 2);
}

TEST(TensorParallelMemory, OfARankIsItsPartsAlone) {
  const auto elements = [](Blocks blocks) {
    FormulaTraining training = training_of(tiny(blocks), {});
    training.steps = 0;
    return train_by_formula(training).elements;
  };
  EXPECT_EQ(elements(Blocks::kGpt), 431'104);
  EXPECT_EQ(elements(Blocks::kLlama), 402'560);
}

// What autograd keeps of a block on one of two ranks, without dropout; the sizes are multiples of
// kHalf, which is 64 features of each token. Sums (x + ...) keep nothing.
//
//                                     GPT   Llama
//   norm1, norm2: their inputs          4       4
//   qkv, up (and gate): their inputs    4       4
//   attention: queries                  1       1   a third of the product of qkv; turned queries
//     keys                              1     1/2   another third; turned, one head for two
//     values                            1     1/2   the last third; a copy
//     result                            1       1
//   project: its input                  0       1   a view of the result; a copy of it
//   activation: its input               4    2.75
//   product with the gate's: both       0     5.5
//   down: its input                     4    2.75
//
// Attention gives its result in the order of the queries' memory: GPT's are parts of a product, in
// which the heads of a token lie side by side, so that project takes a view. An attention that
// copies its result would make it kHalf more: 2,764,800, and with sequence shards 2,236,416.
constexpr int64_t kOutside = 4 * kActivations;
constexpr int64_t kInsideGpt = (3 + 1 + 2 * 4) * kHalf;
constexpr int64_t kInsideLlama = 4 * kHalf + 4 * 352 * kHalf / 128;
// One number in float32 for each token and norm, two of layer_norm; and one for each token and head
// of attention, of which a rank has two.
constexpr int64_t kTokens = 4 * 128, kPerToken = kTokens * 4, kPerHead = 2 * kPerToken;
constexpr int64_t kNormsGpt = 2 * 2 * kPerToken, kNormsLlama = 2 * kPerToken;

// What `accelerate estimate-memory` says of a block is what it keeps, within one per cent.
void expect_estimate(Blocks blocks, bool has_shards, int64_t measured) {
  const lm::Config config = tiny(blocks);
  const launcher::estimate::TransformerShape shape = {.hidden_size = config.hidden,
                                                      .num_hidden_layers = 1,
                                                      .num_attention_heads = config.heads,
                                                      .num_key_value_heads = config.kv_heads,
                                                      .intermediate_size = config.intermediate,
                                                      .is_gated = blocks == Blocks::kLlama};
  const launcher::estimate::ActivationOptions options = {.batch_size = 4,
                                                         .sequence_length = config.sequence_length,
                                                         .tp_size = 2,
                                                         .sequence_parallel = has_shards};
  const auto bytes = static_cast<double>(measured);
  EXPECT_NEAR(launcher::estimate::activation_bytes("float32", shape, options).value(), bytes,
              0.01 * bytes)
      << "with sequence shards: " << has_shards;
}

TEST(TensorParallelMemory, OfABlockIsWhatItsBackwardPassNeeds) {
  constexpr int64_t kGpt = kOutside + kNormsGpt + kInsideGpt + kPerHead;
  constexpr int64_t kLlama = kOutside + kNormsLlama + kInsideLlama + kPerHead;
  static_assert(kGpt == 2'764'800 - kHalf);
  static_assert(kLlama == 3'022'848);
  const int64_t gpt = activations_of_a_block(training_of(tiny(Blocks::kGpt), {}));
  const int64_t llama = activations_of_a_block(training_of(tiny(Blocks::kLlama), {}));
  EXPECT_EQ(gpt, kGpt);
  EXPECT_EQ(llama, kLlama);
  expect_estimate(Blocks::kGpt, /*has_shards=*/false, gpt);
  expect_estimate(Blocks::kLlama, /*has_shards=*/false, llama);
}

// Norms keep parts, and so do products, which put their inputs together again in the backward pass.
TEST(TensorParallelMemory, OfABlockIsLessWithSequenceShards) {
  constexpr int64_t kGpt = (kOutside + kNormsGpt) / 2 + kInsideGpt + kPerHead;
  constexpr int64_t kLlama = (kOutside + kNormsLlama) / 2 + kInsideLlama + kPerHead;
  static_assert(kGpt == 2'236'416 - kHalf);
  static_assert(kLlama == 2'496'512);
  const auto activations = [](Blocks blocks, const PlanModes& modes) {
    return activations_of_a_block(training_of(tiny(blocks), modes));
  };
  PlanModes modes = {.sequence_shards = true};
  const int64_t gpt = activations(Blocks::kGpt, modes), llama = activations(Blocks::kLlama, modes);
  EXPECT_EQ(gpt, kGpt);
  EXPECT_EQ(llama, kLlama);
  expect_estimate(Blocks::kGpt, /*has_shards=*/true, gpt);
  expect_estimate(Blocks::kLlama, /*has_shards=*/true, llama);
  // Two inputs, of which a rank otherwise has a half.
  modes.keeps_gathered_inputs = true;
  EXPECT_EQ(activations(Blocks::kGpt, modes), kGpt + kActivations);
  EXPECT_EQ(activations(Blocks::kLlama, modes), kLlama + kActivations);
}

// A plan changes nothing where one rank would have all parts.
TEST(TensorParallelOverhead, IsNothingWithOneRankAlongTp) {
  simulator::Cluster cluster("1x2:h100");
  cluster.run_on_every_rank([](simulator::Rank&) {
    const lm::Config config = tiny(Blocks::kLlama, /*layers=*/1);
    AcceleratorOptions options{.parallelism_config = ParallelismConfig({.dp_replicate_size = 2})};
    with_modes({.sequence_shards = true, .parallel_loss = true}, config)(options);
    Accelerator accelerator(options);
    const auto model = accelerator.prepare_model(lm::Lm(config));
    EXPECT_EQ(find_technique<TensorParallelTechnique>(model), nullptr);
  });
}

}  // namespace
}  // namespace accelerate
