// Training of language models on sequences that ranks along cp divide, on clusters of the shape
// that the mesh needs: the losses and norms of one process.
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>

#include <gtest/gtest.h>

#include "accelerate/config/fsdp_plugin.h"
#include "integration_tests/context/context_training.h"
#include "integration_tests/ulysses/sequence_training.h"

namespace accelerate {
namespace {

using lm::Blocks;

lm::Config tiny(Blocks blocks) { return lm::model_config("tiny", {.blocks = blocks}); }

ParallelismOptions cp(int64_t ranks, const char* strategy = "allgather") {
  return {.cp_size = ranks, .cp_handler = TorchContextParallelConfig{.cp_comm_strategy = strategy}};
}

// The same training in one process, where neither an engine nor recomputation change anything. Each
// runs once in this program.
const TokenOutcome& of_one_process(const ContextTraining& training) {
  using Key = std::tuple<Blocks, int64_t, int64_t, int, bool>;
  static std::map<Key, TokenOutcome> outcomes;
  const lm::Config& config = training.config;
  const Key key = {config.blocks, config.layers, config.sequence_length, training.steps,
                   training.ignore != nullptr};
  const auto [found, is_new] = outcomes.try_emplace(key);
  if (is_new) {
    found->second =
        train_in_context({.config = config, .steps = training.steps, .ignore = training.ignore});
  }
  return found->second;
}

void expect_as_one_process(const ContextTraining& training, const std::string& what) {
  const TokenOutcome& expected = of_one_process(training);
  const TokenOutcome actual = train_in_context(training);
  ASSERT_EQ(actual.losses.size(), expected.losses.size());
  for (size_t i = 0; i < expected.losses.size(); ++i) {
    EXPECT_NEAR(actual.losses[i], expected.losses[i], 1e-6 * expected.losses[i])
        << what << ", step " << i;
    EXPECT_NEAR(actual.norms[i], expected.norms[i], 1e-5 * expected.norms[i])
        << what << ", step " << i;
  }
}

// What PyTorch's CPU operators give for the same training in one process.
TEST(ContextTraining, OfOneProcessIsThatOfTheOracle) {
  const TokenOutcome& one = of_one_process({.config = tiny(Blocks::kLlama)});
  EXPECT_NEAR(one.losses.front(), 5.549895763397217, 1e-5);
  EXPECT_NEAR(one.losses.back(), 2.990854263305664, 1e-5);
}

TEST(ContextTraining, IsThatOfOneProcessInBothOrdersByBothExchanges) {
  for (const char* strategy : {"allgather", "alltoall"}) {
    for (const SequenceOrder order : {SequenceOrder::kBalanced, SequenceOrder::kInTurn}) {
      expect_as_one_process({.config = tiny(Blocks::kLlama),
                             .sizes = cp(2, strategy),
                             .cluster = "1x2:h100",
                             .order = order},
                            std::string("cp 2, ") + strategy);
    }
    expect_as_one_process(
        {.config = tiny(Blocks::kLlama), .sizes = cp(4, strategy), .cluster = "1x4:h100"},
        std::string("cp 4, ") + strategy);
  }
}

// Positions that are learned, and not only those that turn queries and keys.
TEST(ContextTraining, OfGptIsThatOfOneProcess) {
  expect_as_one_process({.config = tiny(Blocks::kGpt),
                         .sizes = cp(4, "alltoall"),
                         .cluster = "1x4:h100",
                         .order = SequenceOrder::kInTurn},
                        "cp 4");
  expect_as_one_process(
      {.config = tiny(Blocks::kGpt), .sizes = cp(2, "alltoall"), .cluster = "1x2:h100"}, "cp 2");
}

TEST(ContextTraining, IsThatOfOneProcessTogetherWithShardsAndTensorParallelism) {
  ParallelismOptions sharded = cp(2, "alltoall");
  sharded.dp_shard_size = 2;
  expect_as_one_process({.config = tiny(Blocks::kLlama), .sizes = sharded, .cluster = "1x4:h100"},
                        "cp 2 x dp_shard 2");
  ParallelismOptions tensor = cp(2, "alltoall");
  tensor.tp_size = 2;
  expect_as_one_process({.config = tiny(Blocks::kLlama), .sizes = tensor, .cluster = "1x4:h100"},
                        "cp 2 x tp 2");
}

// FSDP divides rows along cp alone.
TEST(ContextTraining, IsThatOfOneProcessWithShardsAlongCp) {
  expect_as_one_process({.config = tiny(Blocks::kLlama),
                         .sizes = cp(2),
                         .cluster = "1x2:h100",
                         .change =
                             [](AcceleratorOptions& options) {
                               options.fsdp_plugin.emplace();
                               options.fsdp_plugin->fsdp_version = 2;
                             }},
                        "cp 2 with FSDP");
}

// ZeRO divides its states among the ranks along cp, and among replicas beside.
TEST(ContextTraining, IsThatOfOneProcessWithZero) {
  const lm::Config config =
      lm::model_config("tiny", {.blocks = Blocks::kLlama, .layers = 2, .sequence_length = 32});
  for (const int stage : {1, 2, 3}) {
    expect_as_one_process({.config = config,
                           .sizes = cp(2, "alltoall"),
                           .cluster = "1x2:h100",
                           .steps = 4,
                           .change = with_zero(stage, /*micro_batch=*/8)},
                          "cp 2 with ZeRO-" + std::to_string(stage));
  }
}

// A recomputed block exchanges its keys again.
TEST(ContextTraining, IsThatOfOneProcessWhereBlocksAreComputedAgain) {
  expect_as_one_process({.config = tiny(Blocks::kLlama),
                         .lm = {.activation_checkpointing = true, .shares_key_heads = true},
                         .sizes = cp(2, "alltoall"),
                         .cluster = "1x2:h100"},
                        "cp 2, computed again");
}

// Ranks have 64, 36, 28 and no tokens that count in a sequence.
TEST(ContextTraining, WeighsRanksByTheirTokensThatCount) {
  ParallelismOptions sharded = cp(2);
  sharded.dp_shard_size = 2;
  expect_as_one_process({.config = tiny(Blocks::kLlama),
                         .sizes = sharded,
                         .cluster = "1x4:h100",
                         .ignore =
                             [](at::Tensor& labels) {
                               labels.narrow(0, 0, 4).narrow(1, 100, 28).fill_(-100);
                               labels.narrow(0, 4, 4).narrow(1, 28, 100).fill_(-100);
                             }},
                        "cp 2 x dp_shard 2, 100 and 28 tokens");
}

}  // namespace
}  // namespace accelerate
