// Dropout where ranks along tp have parts of features or of sequences, on clusters of the shape
// that the mesh needs: who draws alike, that recomputed blocks draw alike, and that the parts of
// what one device draws train as it does.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "accelerate/accelerate.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/forward/model_state.h"
#include "accelerate/forward/technique.h"
#include "integration_tests/tensor/dropping_model.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::Rank;
using torch::Tensor;

constexpr uint64_t kSeed = 7;

struct Layout {
  std::string cluster;
  ParallelismOptions sizes;
};

std::vector<Layout> layouts() {
  return {{"1x2:h100", {.tp_size = 2}},
          {"1x4:h100", {.tp_size = 4}},
          {"1x4:h100", {.dp_replicate_size = 2, .tp_size = 2}},
          {"1x4:h100", {.dp_shard_size = 2, .tp_size = 2}}};
}

std::string text_of(const Layout& layout, const DroppingOptions& options) {
  return absl::StrCat(layout.cluster, ", tp ", *layout.sizes.tp_size,
                      options.sequence_shards ? ", sequence shards" : "",
                      options.recomputes ? ", computed again" : "");
}

// Ranks of one share of the data drop alike, unless each has a part.
void expect_masks(const Cluster& cluster, const std::string& name, bool differ_along_tp) {
  const std::vector<Tensor> share = cluster.reports("share"), masks = cluster.reports(name);
  for (size_t a = 0; a < masks.size(); ++a) {
    const double kept = masks[a].to(torch::kDouble).mean().item<double>();
    EXPECT_NEAR(kept, 0.5, 0.2) << name << " of rank " << a;
    for (size_t b = a + 1; b < masks.size(); ++b) {
      const bool are_alike = !differ_along_tp && share[a].equal(share[b]);
      EXPECT_EQ(masks[a].equal(masks[b]), are_alike) << name << " of ranks " << a << " and " << b;
    }
  }
}

TEST(DropoutAlongTp, IsEqualWhereValuesAreAndDiffersWhereRanksHaveParts) {
  for (const Layout& layout : layouts()) {
    for (const bool sequence_shards : {false, true}) {
      const DroppingOptions options{.sequence_shards = sequence_shards};
      SCOPED_TRACE(text_of(layout, options));
      Cluster cluster(layout.cluster);
      std::vector<std::string> names;
      cluster.run_on_every_rank([&](Rank& rank) {
        DroppingJob job(layout.sizes, options);
        set_seed(kSeed, {.device_specific = true});
        job.train(0);
        rank.report("share", job.accelerator.state().data_share().index);
        for (const auto& [name, mask] : job.module->masks()) rank.report(name, mask);
        if (rank.index() != 0) return;
        for (const auto& [name, mask] : job.module->masks()) names.push_back(name);
      });
      EXPECT_EQ(names.size(), 5);
      for (const std::string& name : names) {
        expect_masks(cluster, name, sequence_shards || absl::StartsWith(name, "heads"));
      }
    }
  }
}

// ---- Recomputation.

// Each rank's gradients of a pass, and what it has after some steps, by name.
std::vector<std::vector<std::pair<std::string, Tensor>>> trained_with(
    const Layout& layout, const DroppingOptions& options) {
  Cluster cluster(layout.cluster);
  std::vector<std::vector<std::pair<std::string, Tensor>>> found(
      static_cast<size_t>(cluster.world_size()));
  cluster.run_on_every_rank([&](Rank& rank) {
    DroppingJob job(layout.sizes, options);
    set_seed(kSeed, {.device_specific = true});
    auto& own = found[static_cast<size_t>(rank.index())];
    own.emplace_back("loss", job.backward(0).cpu());
    for (const TrainedParameter& each : job.state().trained()) {
      own.emplace_back(absl::StrCat("gradient of ", each.name), each.trained.grad().cpu());
    }
    for (int step = 1; step < 4; ++step) job.train(step);
    for (const TrainedParameter& each : job.state().trained()) {
      own.emplace_back(absl::StrCat("weight of ", each.name), each.trained.detach().cpu().clone());
    }
    own.emplace_back("next number", torch::rand({4}, job.accelerator.device()).cpu());
  });
  return found;
}

TEST(DropoutAlongTp, IsTheSameInABlockThatIsComputedAgain) {
  for (const Layout& layout : layouts()) {
    for (const bool sequence_shards : {false, true}) {
      const auto kept = trained_with(layout, {.sequence_shards = sequence_shards});
      const DroppingOptions options{.recomputes = true, .sequence_shards = sequence_shards};
      const auto again = trained_with(layout, options);
      for (size_t rank = 0; rank < kept.size(); ++rank) {
        SCOPED_TRACE(absl::StrCat(text_of(layout, options), ", rank ", rank));
        ASSERT_EQ(again[rank].size(), kept[rank].size());
        for (size_t i = 0; i < kept[rank].size(); ++i) {
          EXPECT_EQ(again[rank][i].first, kept[rank][i].first);
          EXPECT_TRUE(again[rank][i].second.equal(kept[rank][i].second)) << kept[rank][i].first;
        }
      }
    }
  }
}

// ---- The numbers of one device, in parts.

struct AsOneDevice {
  std::vector<Tensor> losses;                         // by rank: of each step
  std::vector<std::pair<std::string, Tensor>> masks;  // of the last step, put together
};

AsOneDevice as_one_device(const std::string& cluster_text,
                          const std::optional<ParallelismOptions>& sizes, DroppingOptions options) {
  options.draws_as_one_device = true;
  options.adam = false;
  Cluster cluster(cluster_text);
  std::vector<std::string> names;
  cluster.run_on_every_rank([&](Rank& rank) {
    DroppingJob job(sizes, options);
    set_seed(kSeed);
    std::vector<Tensor> losses;
    for (int step = 0; step < 5; ++step) losses.push_back(job.train(step).cpu());
    rank.report("losses", torch::stack(losses));
    for (const auto& [name, mask] : job.module->masks()) rank.report(name, mask);
    if (rank.index() != 0) return;
    for (const auto& [name, mask] : job.module->masks()) names.push_back(name);
  });
  AsOneDevice found{.losses = cluster.reports("losses")};
  for (const std::string& name : names) {
    const std::vector<Tensor> masks = cluster.reports(name);
    // Heads are in the dim before the last, sequences in the second one.
    const bool are_heads = absl::StartsWith(name, "heads");
    const bool are_parts = sizes && (are_heads || options.sequence_shards);
    if (!are_parts) {
      for (const Tensor& mask : masks) EXPECT_TRUE(mask.equal(masks[0])) << name;
    }
    found.masks.emplace_back(name, are_parts ? torch::cat(masks, are_heads ? 2 : 1) : masks[0]);
  }
  return found;
}

TEST(DropoutAlongTp, TrainsAsOneDeviceWhereRanksDrawItsParts) {
  const AsOneDevice one = as_one_device("1x1:h100", std::nullopt, {});
  ASSERT_EQ(one.masks.size(), 5);
  for (const int tp : {2, 4}) {
    for (const bool sequence_shards : {false, true}) {
      for (const bool recomputes : {false, true}) {
        SCOPED_TRACE(absl::StrCat("tp ", tp, sequence_shards ? ", sequence shards" : "",
                                  recomputes ? ", computed again" : ""));
        const AsOneDevice ranks =
            as_one_device(absl::StrCat("1x", tp, ":h100"), ParallelismOptions{.tp_size = tp},
                          {.recomputes = recomputes, .sequence_shards = sequence_shards});
        ASSERT_EQ(ranks.masks.size(), one.masks.size());
        for (size_t i = 0; i < one.masks.size(); ++i) {
          EXPECT_EQ(ranks.masks[i].first, one.masks[i].first);
          EXPECT_TRUE(ranks.masks[i].second.equal(one.masks[i].second)) << one.masks[i].first;
        }
        for (const Tensor& losses : ranks.losses) {
          EXPECT_TRUE(torch::allclose(losses, one.losses[0], 1e-6, 0)) << losses;
        }
      }
    }
  }
}

}  // namespace
}  // namespace accelerate
