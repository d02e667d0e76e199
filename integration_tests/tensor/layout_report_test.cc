// What users are told of a prepared model's layout: where parameters are, and what ranks send.
#include "accelerate/parallel/tensor/layout_report.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "accelerate/accelerator.h"
#include "accelerate/accelerator_options.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/config/tensor_parallel_plan.h"
#include "accelerate/examples/lm/config.h"
#include "accelerate/examples/lm/model.h"
#include "accelerate/forward/model_state.h"
#include "integration_tests/tensor/small_layers.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

using lm::Blocks;
using simulator::Cluster;
using simulator::Rank;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// What besides a model's own plan has.
using Change = std::function<void(TensorParallelPlan&)>;

// The report of one rank of a cluster whose ranks the sizes arrange.
std::string report_of(const lm::Config& config, const ParallelismOptions& sizes,
                      const std::string& shape, int rank = 0, const Change& change = nullptr) {
  std::string text;
  Cluster cluster(shape);
  cluster.run_on_every_rank([&](Rank& each) {
    lm::Lm net(config);
    AcceleratorOptions options{.parallelism_config = ParallelismConfig(sizes)};
    if (change) {
      TensorParallelPlan plan = *net->tensor_parallel_plan();
      change(plan);
      options.kwargs_handlers.emplace_back(plan);
    }
    Accelerator accelerator(options);
    const auto model = accelerator.prepare(net);
    const std::string own = layout_text(model);
    if (each.index() == rank) text = own;
  });
  return text;
}

lm::Config tiny(Blocks blocks) { return lm::model_config("tiny", {.blocks = blocks}); }

TEST(LayoutReport, SaysWhereParametersAreAndWhatATokenCosts) {
  EXPECT_EQ(report_of(tiny(Blocks::kGpt), {.tp_size = 2}, "1x2:h100"),
            "layout of 2 ranks, tp 2: rank 0 has 431104 of 842496 elements\n"
            "parameter                            whole    rank 0   how\n"
            "positions                            128x128  128x128  whole\n"
            "tokens.weight                        256x128  128x128  embedding over tp\n"
            "blocks.0-3.norm1.weight              128      128      whole\n"
            "blocks.0-3.norm1.bias                128      128      whole\n"
            "blocks.0-3.norm2.weight              128      128      whole\n"
            "blocks.0-3.norm2.bias                128      128      whole\n"
            "blocks.0-3.attention.qkv.weight      384x128  192x128  column over tp in 4 groups\n"
            "blocks.0-3.attention.qkv.bias        384      192      column over tp in 4 groups\n"
            "blocks.0-3.attention.project.weight  128x128  128x64   row over tp\n"
            "blocks.0-3.attention.project.bias    128      128      whole\n"
            "blocks.0-3.mlp.up.weight             512x128  256x128  column over tp\n"
            "blocks.0-3.mlp.up.bias               512      256      column over tp\n"
            "blocks.0-3.mlp.down.weight           128x512  128x256  row over tp\n"
            "blocks.0-3.mlp.down.bias             128      128      whole\n"
            "norm.weight                          128      128      whole\n"
            "norm.bias                            128      128      whole\n"
            "a rank sends, in bytes, forward and backward\n"
            "tp: 9728 a token: row layers 4096, column layers 4608, gathered outputs 512, "
            "embeddings 512\n");
}

// The bytes that traces of steps with 512 tokens have.
TEST(LayoutReport, CountsWhatStepsSend) {
  constexpr int64_t kTokens = 4 * 128;
  static_assert(9728 * kTokens == 4'980'736);
  EXPECT_THAT(report_of(tiny(Blocks::kLlama), {.tp_size = 2}, "1x2:h100"),
              HasSubstr("tp: 9728 a token"));
  const auto with_shards = [](TensorParallelPlan& plan) {
    plan.sequence_parallel = true;
    plan.parallel_loss = true;
  };
  static_assert(11'788 * kTokens + 13'312 == 6'048'768);
  EXPECT_THAT(report_of(tiny(Blocks::kGpt), {.tp_size = 2}, "1x2:h100", 0, with_shards),
              AllOf(HasSubstr("tp: 11788 a token"), HasSubstr("inputs gathered again 2304")));
  const auto with_all = [&](TensorParallelPlan& plan) {
    with_shards(plan);
    plan.keep_gathered_inputs = true;
  };
  static_assert(9484 * kTokens + 13'312 == 4'869'120);
  EXPECT_THAT(
      report_of(tiny(Blocks::kGpt), {.tp_size = 2}, "1x2:h100", 0, with_all),
      AllOf(HasSubstr("tp: 13312 a step to sum partial gradients"), HasSubstr("tp: 9484 a token"),
            HasSubstr("first shards of sequences 256"), HasSubstr("loss 12"),
            Not(HasSubstr("gathered outputs")), Not(HasSubstr("gathered again")),
            HasSubstr("norm.weight                          128      128      whole; "
                      "gradients summed over tp")));
}

// Two groups of keys on four ranks: 8 x 8 weights and 8 biases on each.
TEST(LayoutReport, CountsTheSumsOfWhatNeighboursHave) {
  TensorParallelPlan plan = SmallLayersImpl::plan();
  plan.rules[1].groups = 2;
  Cluster("1x4:h100").run_on_every_rank([&](Rank&) {
    Accelerator accelerator(with_tp(4, plan));
    const auto model = accelerator.prepare(std::make_shared<SmallLayersImpl>(
        [](SmallLayersImpl&, const torch::Tensor& x) { return x; }));
    EXPECT_THAT(layout_text(model), HasSubstr("tp: 288 a step to sum partial gradients"));
  });
}

TEST(LayoutReport, HasTheRowsThatShardsAndTheGradientsThatReplicasSend) {
  const std::string sharded =
      report_of(tiny(Blocks::kGpt), {.dp_shard_size = 2, .tp_size = 2}, "1x4:h100", /*rank=*/3);
  EXPECT_THAT(
      sharded,
      AllOf(HasSubstr("layout of 4 ranks, dp_shard 2 x tp 2: rank 3 has 215552 of 842496 elements"),
            HasSubstr("384x128  96x128   column over tp in 4 groups;\n"),
            HasSubstr("dp_shard: 862208 to gather parameters once, 862208 a step to reduce "
                      "gradients")));
  // Each replica's part: 2 (n - 1) / n of 431,104 elements.
  EXPECT_THAT(report_of(tiny(Blocks::kGpt), {.dp_replicate_size = 2, .tp_size = 2}, "1x4:h100"),
              AllOf(HasSubstr("dp_replicate: 1724416 a step to average gradients"),
                    Not(HasSubstr("dp_shard"))));
}

// Gradients are means over ranks with other parts of a sequence as well: 2 (n - 1) / n of 842,496
// elements, unless rows are divided among them.
TEST(LayoutReport, HasTheGradientsThatRanksOfOneSequenceSend) {
  EXPECT_THAT(report_of(tiny(Blocks::kGpt), {.cp_size = 2}, "1x2:h100"),
              AllOf(HasSubstr("cp: 3369984 a step to average gradients\n"),
                    HasSubstr("cp: ranks divided 0 calls of attention\n")));
  EXPECT_THAT(report_of(tiny(Blocks::kGpt), {.sp_size = 2}, "1x2:h100"),
              HasSubstr("sp: 3369984 a step to average gradients\n"));
  EXPECT_THAT(report_of(tiny(Blocks::kGpt), {.dp_shard_size = 2, .cp_size = 2}, "1x4:h100"),
              AllOf(HasSubstr("dp_shard and cp: "), Not(HasSubstr("to average gradients"))));
}

// Lines fit, and parameters with other shapes have lines of their own.
TEST(LayoutReport, FoldsLayersThatAreAlikeAlone) {
  lm::Config config = tiny(Blocks::kLlama);
  config.layers = 12;
  const std::string text = report_of(config, {.dp_shard_size = 2}, "1x2:h100");
  EXPECT_THAT(text, AllOf(HasSubstr("blocks.0-11.mlp.gate.weight "), Not(HasSubstr("blocks.1.")),
                          HasSubstr("rows over dp_shard")));
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    EXPECT_LE(end - begin, 100) << text.substr(begin, end - begin);
    begin = end + 1;
  }
}

TEST(LayoutReport, IsOfPreparedModelsAlone) {
  const ModelState model(lm::Lm(tiny(Blocks::kGpt)).ptr());
  EXPECT_THROW(layout_text(model), c10::ValueError);
}

}  // namespace
}  // namespace accelerate
