// A checkpoint of one layout loads under any other, weights and moments, bit by bit: 12 pairs of 38
// layouts of a model with experts, and of 25 of one without, whose sequences ranks may divide as
// well; all pairs with ACCELERATE_LAYOUT_PAIRS=all (ci/layouts.sh). Experts that ranks with parts
// of sequences divide are in pairs of their own.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "absl/strings/str_cat.h"
#include "accelerate/accelerate.h"
#include "accelerate/base/access.h"
#include "accelerate/base/rank_layout.h"
#include "accelerate/config/parallelism_config.h"
#include "integration_tests/composition/drawn_layout.h"
#include "integration_tests/experts/expert_training.h"
#include "integration_tests/layouts/placed_parts.h"
#include "integration_tests/tensor/formula_model.h"
#include "simulator/cluster/cluster.h"
#include "simulator/disk/sim_disk.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::Rank;
using simulator::SimDisk;

constexpr StateDictType kTypes[] = {StateDictType::kShardedStateDict,
                                    StateDictType::kFullStateDict};

// One model, on one rank, two and four.
const std::vector<DrawnLayout>& layouts() {
  static const std::vector<DrawnLayout>& all = *new std::vector<DrawnLayout>([] {
    std::vector<DrawnLayout> all;
    const auto add = [&all](int ranks, const RankLayout& like, int zero_stage) {
      for (const RankLayout& layout : legal_layouts(ranks, like)) {
        // The other model's; this one has two blocks, too.
        if (layout.pp > (layout.zero ? 1 : 2) || layout.cp > 1 || layout.sp > 1) continue;
        all.push_back({.ranks = layout, .zero_stage = zero_stage});
      }
    };
    for (const int ranks : {1, 2, 4}) add(ranks, {.experts = true}, 0);
    for (const int stage : {1, 2, 3}) add(4, {.zero = true, .experts = true}, stage);
    add(4, {.fsdp = true, .experts = true}, 0);
    return all;
  }());
  return all;
}

// A model without experts, which has two blocks for as many stages.
const std::vector<DrawnLayout>& layouts_of_layers() {
  static const std::vector<DrawnLayout>& all = *new std::vector<DrawnLayout>([] {
    std::vector<DrawnLayout> all;
    for (const int ranks : {1, 2, 4}) {
      for (const RankLayout& layout : legal_layouts(ranks)) {
        if (layout.pp <= 2) all.push_back({.ranks = layout});
      }
    }
    return all;
  }());
  return all;
}

// How one rank trains.
struct Job {
  explicit Job(const DrawnLayout& layout)
      : length(model_of(layout).sequence_length),
        accelerator(options_of(layout)),
        net(model_of(layout), lm::LmOptions{.router = {.balance_loss = 0.01}}) {
    fill_experts_by_formula(*net, {});
    adam =
        std::make_shared<torch::optim::AdamW>(net->parameters(), torch::optim::AdamWOptions(1e-3));
    auto [prepared, handle] =
        accelerator.prepare(net.ptr(), std::static_pointer_cast<torch::optim::Optimizer>(adam));
    model.emplace(prepared);
    optimizer.emplace(handle);
  }

  static AcceleratorOptions options_of(const DrawnLayout& layout) {
    AcceleratorOptions options;
    add_techniques(layout, options);
    if (const auto sizes = sizes_of(layout.ranks)) {
      options.parallelism_config = ParallelismConfig(*sizes);
    }
    return options;
  }

  // All shares have the same rows.
  void train(int step) {
    const auto [inputs, labels] = formula_batch(step, /*rows=*/2, length);
    run_pass(accelerator, *model, inputs, labels);
    optimizer->step();
    optimizer->zero_grad();
  }

  const int64_t length;  // of a sequence
  Accelerator accelerator;
  lm::Lm net;
  std::shared_ptr<torch::optim::AdamW> adam;
  std::optional<PreparedModel<lm::LmImpl>> model;
  std::optional<AcceleratedOptimizer> optimizer;
};

WholeTensors whole_after(const DrawnLayout& layout, const std::shared_ptr<SimDisk>& disk,
                         const std::function<void(Job&)>& body) {
  Cluster cluster(layout.cluster(), {.disk = disk});
  std::vector<PlacedParts> parts(static_cast<size_t>(cluster.world_size()));
  cluster.run_on_every_rank([&](Rank& rank) {
    Job job(layout);
    body(job);
    parts[static_cast<size_t>(rank.index())] =
        placed_parts(*internal::Access::to(*job.model), *job.adam, rank.index());
  });
  return assembled(parts);
}

// A layout's checkpoints, of both types, and what is in them.
struct Saved {
  std::shared_ptr<SimDisk> disk = std::make_shared<SimDisk>();
  WholeTensors all;
};

std::string folder_of(size_t type) { return absl::StrCat("/sim/run/saved_", type); }

Saved saved_under(const DrawnLayout& layout) {
  Saved saved;
  saved.all = whole_after(layout, saved.disk, [](Job& job) {
    for (int step = 0; step < 2; ++step) job.train(step);
    for (size_t type = 0; type < std::size(kTypes); ++type) {
      job.accelerator.save_state(folder_of(type), {.state_dict_type = kTypes[type]});
    }
  });
  const char* const down = layout.ranks.experts ? "experts.down" : "down.weight";
  EXPECT_TRUE(saved.all.contains(absl::StrCat("weight of blocks.0.mlp.", down)));
  EXPECT_TRUE(saved.all.contains(absl::StrCat("square of blocks.0.mlp.", down)));
  return saved;
}

void expect_loads(const Saved& saved, const DrawnLayout& a, const DrawnLayout& b, size_t type) {
  SCOPED_TRACE(absl::StrCat(a.text(), " to ", b.text(), type == 0 ? ", in boxes" : ", whole"));
  expect_equal(whole_after(b, saved.disk,
                           [type](Job& job) {
                             // The job has trained otherwise before.
                             job.train(7);
                             job.accelerator.load_state(folder_of(type));
                           }),
               saved.all);
}

// 12 pairs, or all.
void expect_pairs_load(const std::vector<DrawnLayout>& all) {
  const char* const pairs = std::getenv("ACCELERATE_LAYOUT_PAIRS");
  if (pairs != nullptr && std::string_view(pairs) == "all") {
    for (size_t a = 0; a < all.size(); ++a) {
      const Saved saved = saved_under(all[a]);
      for (size_t b = 0; b < all.size(); ++b) expect_loads(saved, all[a], all[b], (a + b) % 2);
    }
    return;
  }
  // So that plain, ZeRO's and FSDP's layouts load each other's, and stages and parts of sequences.
  for (size_t k = 0; k < 12; ++k) {
    const size_t a = (7 * k + 1) % all.size(), b = (11 * k + 4) % all.size();
    expect_loads(saved_under(all[a]), all[a], all[b], k % 2);
  }
}

TEST(CheckpointPairs, LoadBitByBit) { expect_pairs_load(layouts()); }

TEST(CheckpointPairs, OfStagesAndSequencesLoadBitByBit) { expect_pairs_load(layouts_of_layers()); }

TEST(CheckpointPairs, OfExpertsAlongSequencesLoadBitByBit) {
  const auto layout_of = [](const RankLayout& ranks) { return DrawnLayout{.ranks = ranks}; };
  const DrawnLayout one = layout_of({.experts = true});
  const DrawnLayout along_dp = layout_of({.dp_shard = 4, .ep = 2, .experts = true});
  const DrawnLayout along_cp = layout_of({.cp = 2, .ep = 2, .experts = true});
  const DrawnLayout along_both = layout_of({.dp_shard = 2, .cp = 2, .ep = 4, .experts = true});
  const DrawnLayout along_sp = layout_of({.dp_shard = 2, .sp = 2, .ep = 2, .experts = true});
  const DrawnLayout in_stages = layout_of({.pp = 2, .sp = 2, .ep = 2, .experts = true});
  const std::vector<std::pair<DrawnLayout, DrawnLayout>> pairs = {
      {along_cp, one},       {one, along_both},     {along_both, along_dp}, {along_dp, along_sp},
      {along_sp, in_stages}, {in_stages, along_cp}, {along_cp, along_both}};
  for (const auto& [a, b] : pairs) {
    const Saved saved = saved_under(a);
    for (size_t type = 0; type < std::size(kTypes); ++type) expect_loads(saved, a, b, type);
  }
}

TEST(CheckpointPairs, AreOfSoManyLayouts) {
  ASSERT_EQ(layouts().size(), 38);
  ASSERT_EQ(layouts_of_layers().size(), 25);
  for (const auto* const all : {&layouts(), &layouts_of_layers()}) {
    for (size_t i = 0; i < all->size(); ++i) {
      const std::string text = (*all)[i].text();
      EXPECT_FALSE(find_illegal((*all)[i].ranks)) << text;
      for (size_t j = 0; j < i; ++j) EXPECT_NE(text, (*all)[j].text());
    }
  }
}

}  // namespace
}  // namespace accelerate
