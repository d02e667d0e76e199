// Training of language models of whose sequences ranks along sp have parts, on clusters of the
// shape that the mesh needs: the losses and norms of one process, with shards, replicas, ZeRO and
// tensor parallelism beside, and with tokens that have no labels.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "accelerate/accelerator_options.h"
#include "accelerate/config/fsdp_plugin.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/examples/lm/config.h"
#include "accelerate/examples/lm/model.h"
#include "integration_tests/ulysses/sequence_training.h"
#include "simulator/disk/sim_disk.h"

namespace accelerate {
namespace {

using lm::Blocks;

lm::Config tiny(Blocks blocks) { return lm::model_config("tiny", {.blocks = blocks}); }

lm::Config small(Blocks blocks) {
  return lm::model_config("tiny", {.blocks = blocks, .layers = 2, .sequence_length = 32});
}

// Losses and norms of the same training by PyTorch on one process, in float32.
const TokenOutcome kGpt = {
    .losses = {5.538330078125, 5.139376640319824, 4.745053291320801, 4.251771450042725,
               3.8575327396392822, 3.4945685863494873, 3.237624406814575, 3.112563133239746,
               3.004462957382202, 2.97322940826416},
    .norms = {6.5393820826526445, 4.2348657110602765, 3.4925419809837654, 2.8124127585826706,
              2.6974650175832595, 2.771096972557877, 1.5972026550253362, 1.6777305414703343,
              0.9912700053511929, 1.2598799301369652}};
const TokenOutcome kLlama = {
    .losses = {5.549895763397217, 5.175098419189453, 4.808009147644043, 4.352645397186279,
               3.9165496826171875, 3.567056655883789, 3.248589515686035, 3.1430249214172363,
               3.028856039047241, 2.990854263305664},
    .norms = {7.846437577647608, 5.150345425181586, 3.8582005370483348, 3.0708373818596093,
              2.3328373690007083, 3.060680531967326, 1.26515106049559, 2.2555801887712326,
              1.6657738973367635, 1.7595451517364797}};

// The first steps of what is expected, or all of them.
void expect_equal(const std::string& what, const TokenOutcome& outcome,
                  const TokenOutcome& expected, size_t steps) {
  ASSERT_EQ(outcome.losses.size(), steps);
  ASSERT_EQ(outcome.norms.size(), steps);
  ASSERT_LE(steps, expected.losses.size());
  for (size_t i = 0; i < steps; ++i) {
    EXPECT_NEAR(outcome.losses[i], expected.losses[i], 1e-6 * expected.losses[i])
        << what << ", step " << i;
    EXPECT_NEAR(outcome.norms[i], expected.norms[i], 1e-5 * expected.norms[i])
        << what << ", step " << i;
  }
}

void expect_equal(const std::string& what, const TokenOutcome& outcome,
                  const TokenOutcome& expected) {
  expect_equal(what, outcome, expected, expected.losses.size());
}

struct Layout {
  std::string name;
  std::string cluster;
  ParallelismOptions sizes;
  std::function<void(AcceleratorOptions&)> change = [](AcceleratorOptions&) {};
};

void fsdp(AcceleratorOptions& options) {
  options.fsdp_plugin = FullyShardedDataParallelPlugin{.fsdp_version = 2};
}

// The first layout in all steps; the others until weights depend on gradients, on their norms and
// on the momentum of several steps.
TEST(UlyssesTraining, IsThatOfOneProcess) {
  const std::vector<Layout> layouts = {
      {"sp 2", "1x2:h100", {.sp_size = 2}},
      {"sp 4, more ranks than heads of keys", "1x4:h100", {.sp_size = 4}},
      {"dp_shard 2 x sp 2", "1x4:h100", {.dp_shard_size = 2, .sp_size = 2}},
      {"ZeRO-3 x sp 2", "1x2:h100", {.sp_size = 2}, with_zero(3, 8)},
  };
  expect_equal("one process", train_sequences({.config = tiny(Blocks::kLlama)}), kLlama);
  for (const Layout& layout : layouts) {
    const int steps = layout.name == layouts[0].name ? 10 : 4;
    for (const Blocks blocks : {Blocks::kGpt, Blocks::kLlama}) {
      expect_equal(absl::StrCat(layout.name, blocks == Blocks::kGpt ? ", GPT" : ", Llama"),
                   train_sequences({.config = tiny(blocks),
                                    .sizes = layout.sizes,
                                    .cluster = layout.cluster,
                                    .steps = steps,
                                    .change = layout.change}),
                   blocks == Blocks::kGpt ? kGpt : kLlama, static_cast<size_t>(steps));
    }
  }
}

// Smaller models beside all else. Replicas take the ranks that sequences leave. Each layout has
// both models, and blocks that are computed again in one of them, which is another one in the next.
TEST(UlyssesTraining, IsThatOfOneProcessBesideOtherAxesAndEngines) {
  const std::vector<Layout> layouts = {
      {"on CPUs", "1x2", {.sp_size = 2}},
      {"dp_replicate 2 x sp 2", "1x4:h100", {.dp_replicate_size = 2, .sp_size = 2}},
      {"sp 2 of four ranks", "1x4:h100", {.sp_size = 2}},
      {"FSDP along sp alone", "1x2:h100", {.sp_size = 2}, &fsdp},
      {"FSDP, dp_shard 2 x sp 2", "1x4:h100", {.dp_shard_size = 2, .sp_size = 2}, &fsdp},
      {"dp_replicate 2 x dp_shard 2 x sp 2",
       "2x4:h100",
       {.dp_replicate_size = 2, .dp_shard_size = 2, .sp_size = 2}},
      {"sp 2 x tp 2", "1x4:h100", {.tp_size = 2, .sp_size = 2}},
      {"dp_shard 2 x sp 2 x tp 2", "2x4:h100", {.dp_shard_size = 2, .tp_size = 2, .sp_size = 2}},
      {"ZeRO-1 x sp 2", "1x2:h100", {.sp_size = 2}, with_zero(1, 8)},
      {"ZeRO-2 x dp 2 x sp 2", "1x4:h100", {.sp_size = 2}, with_zero(2, 4)},
      {"ZeRO-3 x dp 2 x sp 2", "1x4:h100", {.sp_size = 2}, with_zero(3, 4)},
  };
  bool recomputes = false;
  for (const Blocks blocks : {Blocks::kGpt, Blocks::kLlama}) {
    const TokenOutcome one = train_sequences({.config = small(blocks), .steps = 4});
    // An odd number, so that the second model begins with the other half.
    ASSERT_EQ(layouts.size() % 2, 1);
    for (const Layout& layout : layouts) {
      expect_equal(absl::StrCat(layout.name, blocks == Blocks::kGpt ? ", GPT" : ", Llama",
                                recomputes ? ", computed again" : ""),
                   train_sequences({.config = small(blocks),
                                    .lm = {.activation_checkpointing = recomputes,
                                           .shares_key_heads = recomputes},
                                    .sizes = layout.sizes,
                                    .cluster = layout.cluster,
                                    .steps = 4,
                                    .change = layout.change}),
                   one);
      recomputes = !recomputes;
    }
  }
}

// Rank 1 of two has no label at all in some rows, and few in others.
bool has_few_labels(int64_t row, int64_t token) {
  if (row % 4 == 3) return token < 3;
  return row % 4 == 0 ? token < 7 : (token * 7 + row) % 5 != 0 && token < 20 + row;
}

TEST(UlyssesTraining, DividesLossesByTheTokensThatHaveLabels) {
  const SequenceTraining one = {
      .config = small(Blocks::kLlama), .steps = 4, .has_label = &has_few_labels};
  for (const int micro_steps : {1, 4}) {
    SequenceTraining alone = one;
    alone.micro_steps = micro_steps;
    const TokenOutcome expected = train_sequences(alone);
    const std::vector<Layout> layouts = {
        {"sp 2", "1x2:h100", {.sp_size = 2}},
        {"sp 4", "1x4:h100", {.sp_size = 4}},
        {"dp_replicate 2 x sp 2", "1x4:h100", {.dp_replicate_size = 2, .sp_size = 2}},
        {"dp_shard 2 x sp 2", "1x4:h100", {.dp_shard_size = 2, .sp_size = 2}}};
    for (const Layout& layout : layouts) {
      SequenceTraining together = alone;
      together.sizes = layout.sizes;
      together.cluster = layout.cluster;
      expect_equal(absl::StrCat(layout.name, ", micro-steps ", micro_steps),
                   train_sequences(together), expected);
    }
  }
}

// Means over each rank's tokens, put together: 7 labels of each row, which rank 1 of two lacks, so
// that its own mean is NaN.
TEST(UlyssesTraining, WeightsMeansByTokens) {
  const auto begins = [](int64_t /*row*/, int64_t token) { return token < 7; };
  const auto ends_early = [](int64_t /*row*/, int64_t token) { return token < 21 && token != 3; };
  for (const std::function<bool(int64_t, int64_t)>& has_label :
       {std::function<bool(int64_t, int64_t)>(begins), {ends_early}}) {
    SequenceTraining training = {
        .config = small(Blocks::kGpt), .steps = 4, .has_label = has_label, .weights_means = true};
    const TokenOutcome one = train_sequences(training);
    training.sizes = ParallelismOptions{.sp_size = 2};
    training.cluster = "1x2:h100";
    expect_equal("sp 2", train_sequences(training), one);
    training.sizes = ParallelismOptions{.dp_shard_size = 2, .sp_size = 2};
    training.cluster = "1x4:h100";
    expect_equal("dp_shard 2 x sp 2", train_sequences(training), one);
  }
}

// A checkpoint of one layout is loaded in another layout, whose training goes on.
TEST(UlyssesTraining, GoesOnInAnotherLayout) {
  const std::vector<Layout> layouts = {
      {"one process", "1x1:h100", {}},
      {"sp 2", "1x2:h100", {.sp_size = 2}},
      {"sp 4", "1x4:h100", {.sp_size = 4}},
      {"dp_shard 2 x sp 2", "1x4:h100", {.dp_shard_size = 2, .sp_size = 2}},
      {"FSDP along sp alone", "1x2:h100", {.sp_size = 2}, &fsdp},
      {"ZeRO-3 x dp 2 x sp 2", "1x4:h100", {.sp_size = 2}, with_zero(3, 4)}};
  const lm::Config config = small(Blocks::kLlama);
  const TokenOutcome all = train_sequences({.config = config, .steps = 4});
  const TokenOutcome expected = {.losses = {all.losses.begin() + 2, all.losses.end()},
                                 .norms = {all.norms.begin() + 2, all.norms.end()}};
  const auto half = [&](const Layout& layout, const std::shared_ptr<simulator::SimDisk>& disk) {
    SequenceTraining training = {
        .config = config, .cluster = layout.cluster, .steps = 2, .change = layout.change};
    if (layout.sizes.sp_size) training.sizes = layout.sizes;
    training.disk = disk;
    return training;
  };
  for (size_t i = 0; i < layouts.size(); ++i) {
    // Each saves once and loads once.
    const Layout& first = layouts[i];
    const Layout& second = layouts[(i + 1) % layouts.size()];
    const auto disk = std::make_shared<simulator::SimDisk>();
    SequenceTraining before = half(first, disk);
    before.saves = true;
    train_sequences(before);
    SequenceTraining after = half(second, disk);
    after.first_step = 2;
    expect_equal(first.name + ", then " + second.name, train_sequences(after), expected);
  }
}

}  // namespace
}  // namespace accelerate
