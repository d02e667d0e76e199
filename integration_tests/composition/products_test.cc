// Each axis with one rank or two, beside each technique: the Accelerator refuses the
// products that the table refuses (accelerate/base/rank_layout.h) with its sentence, and trains the
// others as one process does: each pair of axes, and all products where ci/layouts.sh runs this.
// The products are of the table, and so are the clusters.
#include <cstddef>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/accelerate.h"
#include "accelerate/base/mesh_axis.h"
#include "accelerate/base/rank_layout.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/testing/value_error.h"
#include "integration_tests/composition/drawn_layout.h"
#include "integration_tests/experts/expert_training.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::Rank;
using ::testing::AllOf;
using ::testing::HasSubstr;

// With the techniques of `like`.
std::vector<RankLayout> products(const RankLayout& like) {
  constexpr MeshAxis kAxes[] = {MeshAxis::kPp, MeshAxis::kDpReplicate, MeshAxis::kDpShard,
                                MeshAxis::kCp, MeshAxis::kSp,          MeshAxis::kTp,
                                MeshAxis::kEp};
  std::vector<RankLayout> all;
  for (int bits = 0; bits < 1 << 7; ++bits) {
    RankLayout& layout = all.emplace_back(like);
    for (int axis = 0; axis < 7; ++axis) size_along(layout, kAxes[axis]) = 1 + (bits >> axis & 1);
  }
  return all;
}

// Two axes beside stages have four ranks; ep divides none. random_layouts_test.cc draws products of
// more axes.
bool is_trained(const RankLayout& layout) {
  const char* const given = std::getenv("ACCELERATE_LAYOUT_PRODUCTS");
  const bool has_all = given != nullptr && std::string_view(given) == "all";
  return has_all || layout.num_ranks() / layout.pp <= 4;
}

DrawnLayout training_with(const RankLayout& layout) {
  return {.ranks = layout, .zero_stage = layout.zero ? 2 : 0};
}

// Before it connects to other ranks, so that one rank is enough.
TEST(ProductsOfAxes, ThatTheTableRefusesAreRefusedByTheAccelerator) {
  int refused = 0;
  Cluster("1x1:h100").run_on_every_rank([&](Rank&) {
    for (const RankLayout& like : {RankLayout{}, RankLayout{.zero = true}}) {
      for (const RankLayout& layout : products(like)) {
        const auto illegal = find_illegal(layout);
        if (!illegal) continue;
        // Without plug-ins, as the sizes by themselves.
        RankLayout sizes = layout;
        sizes.zero = false;
        const auto by_sizes = find_illegal(sizes);
        EXPECT_EQ(value_error_of([&] {
                    AcceleratorOptions options;
                    add_techniques(training_with(layout), options);
                    options.parallelism_config = ParallelismConfig(*sizes_of(layout));
                    Accelerator accelerator(options);
                  }),
                  by_sizes ? by_sizes->text() : illegal->text())
            << layout.text();
        ++refused;
      }
    }
  });
  EXPECT_GT(refused, 150);
}

// With as many stages and with the techniques of the parameter.
class LegalProducts : public ::testing::TestWithParam<RankLayout> {};

TEST_P(LegalProducts, TrainAsOneProcess) {
  int trained = 0;
  ExpertTraining of_one = training_of(one_rank_of({.ranks = GetParam()}));
  of_one.steps = 2;
  const ExpertOutcome one = train_experts(of_one);
  for (const RankLayout& layout : products(GetParam())) {
    if (find_illegal(layout) || layout.num_ranks() == 1) continue;
    if (layout.pp != GetParam().pp || !is_trained(layout)) continue;
    // Without tp a plan has no sequence shards, which it says by a warning.
    if (layout.sequence_shards && layout.tp == 1) continue;
    // The model has no experts to divide, which prepare() says.
    if (layout.ep > 1 && !layout.experts) continue;
    SCOPED_TRACE(layout.text());
    ExpertTraining training = training_of(training_with(layout));
    training.steps = 2;
    const ExpertOutcome outcome = train_experts(training);
    for (size_t step = 0; step < one.losses.size(); ++step) {
      EXPECT_NEAR(outcome.losses[step], one.losses[step], 1e-6 * one.losses[step]) << step;
      EXPECT_NEAR(outcome.norms[step], one.norms[step], 1e-5 * one.norms[step]) << step;
    }
    ++trained;
  }
  EXPECT_GT(trained, 0);
}

INSTANTIATE_TEST_SUITE_P(
    With, LegalProducts,
    ::testing::Values(
        RankLayout{}, RankLayout{.sequence_shards = true}, RankLayout{.fsdp = true},
        RankLayout{.fsdp = true, .sequence_shards = true}, RankLayout{.zero = true},
        RankLayout{.zero = true, .sequence_shards = true}, RankLayout{.experts = true},
        RankLayout{.fsdp = true, .experts = true}, RankLayout{.zero = true, .experts = true},
        RankLayout{.experts = true, .sequence_shards = true}, RankLayout{.pp = 2},
        RankLayout{.pp = 2, .sequence_shards = true}, RankLayout{.pp = 2, .fsdp = true},
        RankLayout{.pp = 2, .fsdp = true, .sequence_shards = true},
        RankLayout{.pp = 2, .zero = true},
        RankLayout{.pp = 2, .zero = true, .sequence_shards = true},
        RankLayout{.pp = 2, .experts = true}, RankLayout{.pp = 2, .fsdp = true, .experts = true},
        RankLayout{.pp = 2, .zero = true, .experts = true},
        RankLayout{.pp = 2, .experts = true, .sequence_shards = true}),
    [](const auto& info) {
      const RankLayout& like = info.param;
      std::string name = like.experts ? "Experts" : "Layers";
      if (like.fsdp) name += "InFsdp";
      if (like.zero) name += "InZero";
      if (like.pp > 1) name += "InStages";
      if (like.sequence_shards) name += "OfSequenceShards";
      return name;
    });

// Each stage of ZeRO, where a step has several windows.
TEST(StagesByZero, AccumulateAsOneProcess) {
  ExpertTraining of_one = training_of(one_rank_of({}));
  of_one.steps = 2;
  const ExpertOutcome one = train_experts(of_one);
  for (const int stage : {1, 2, 3}) {
    SCOPED_TRACE(stage);
    ExpertTraining training = training_of({.ranks = {.pp = 2, .dp_replicate = 2, .zero = true},
                                           .zero_stage = stage,
                                           .micro_steps = 2});
    training.steps = of_one.steps;
    const ExpertOutcome outcome = train_experts(training);
    for (size_t step = 0; step < one.losses.size(); ++step) {
      EXPECT_NEAR(outcome.losses[step], one.losses[step], 1e-6 * one.losses[step]) << step;
      EXPECT_NEAR(outcome.norms[step], one.norms[step], 1e-5 * one.norms[step]) << step;
    }
  }
}

// Ranks that train something are told as well.
TEST(StagesByZero, AreRefusedWhereARankTrainsNothing) {
  ExpertTraining training =
      training_of({.ranks = {.pp = 2, .dp_replicate = 2, .zero = true}, .zero_stage = 1});
  training.change_model = [](lm::LmImpl& net) {
    for (const auto& item : net.named_parameters()) {
      item.value().set_requires_grad(item.key().starts_with("norm."));
    }
  };
  Cluster(training.cluster).run_on_every_rank([&](Rank&) {
    EXPECT_THAT(value_error_of([&] { train_rank_with_experts(training); }),
                AllOf(HasSubstr("rank 0 along pp has stage 0: "),
                      HasSubstr("of which nothing is trained")));
  });
}

}  // namespace
}  // namespace accelerate
