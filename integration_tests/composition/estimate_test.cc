// What `accelerate estimate-memory` says that a rank has of a model's tensors, beside the model's
// layout: the launcher knows names and shapes alone, and has no LibTorch to ask a layout with.
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "absl/strings/match.h"
#include "accelerate/accelerate.h"
#include "accelerate/base/access.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/examples/lm/config.h"
#include "accelerate/examples/lm/model.h"
#include "accelerate/forward/model_state.h"
#include "accelerate/parallel/layout/model_layout.h"
#include "accelerate/parallel/layout/placement.h"
#include "integration_tests/composition/drawn_layout.h"
#include "launch/estimate/architecture.h"
#include "launch/estimate/parts.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

using launcher::estimate::Architecture;
using launcher::estimate::ArchitectureTensor;
using simulator::Cluster;
using simulator::Rank;

// Numbers of elements by the names of tensors.
using Elements = std::map<std::string, double>;

Architecture described(const lm::LmImpl& net, const lm::Config& config) {
  Architecture architecture;
  for (const auto& item : net.named_parameters()) {
    architecture.tensors.push_back({.name = item.key(),
                                    .dtype = "F32",
                                    .elements = static_cast<double>(item.value().numel()),
                                    .shape = item.value().sizes().vec()});
  }
  if (config.tied_head == 1) architecture.tied = {{"tokens.weight", "head.weight"}};
  return architecture;
}

Elements estimated(const Architecture& part) {
  Elements elements;
  for (const ArchitectureTensor& tensor : part.tensors) elements[tensor.name] = tensor.elements;
  return elements;
}

// Before rows are divided. Tensors of other stages are left out.
Elements placed(const ModelLayout& layout, int rank) {
  Elements elements;
  for (const TensorPlacement& each : layout.placements()) {
    for (const PlacedBox& box : boxes_of(each, layout.mesh(), rank)) {
      elements[each.name] += static_cast<double>(box.part.numel());
    }
  }
  return elements;
}

using Check = std::function<void(const Architecture& whole, const Elements& own, int rank)>;

// Calls the function on each rank that has prepared the layout's model.
void for_each_rank(const DrawnLayout& layout, const Check& check) {
  SCOPED_TRACE(layout.text());
  Cluster(layout.cluster()).run_on_every_rank([&](Rank& rank) {
    Accelerator accelerator({.parallelism_config = ParallelismConfig(*sizes_of(layout.ranks))});
    lm::Lm net(model_of(layout), lm::LmOptions());
    const Architecture whole = described(*net, model_of(layout));
    const std::shared_ptr<torch::optim::Optimizer> sgd =
        std::make_shared<torch::optim::SGD>(net->parameters(), torch::optim::SGDOptions(0.1));
    auto [model, optimizer] = accelerator.prepare(net.ptr(), sgd);
    const std::shared_ptr<const ModelLayout> cuts = internal::Access::to(model)->placements().cuts;
    ASSERT_NE(cuts, nullptr);
    check(whole, placed(*cuts, rank.index()), rank.index());
  });
}

constexpr lm::Blocks kKinds[] = {lm::Blocks::kGpt, lm::Blocks::kLlama};

TEST(EstimateOfParts, IsThatOfTheLayoutAlongTp) {
  for (const lm::Blocks blocks : kKinds) {
    for_each_rank({.ranks = {.tp = 2}, .blocks = blocks},
                  [](const Architecture& whole, const Elements& own, int /*rank*/) {
                    const auto part = launcher::estimate::tp_part(whole, 2);
                    ASSERT_TRUE(part.ok()) << part.status();
                    EXPECT_EQ(estimated(part->architecture), own);
                    EXPECT_NE(estimated(whole), own);
                  });
  }
}

TEST(EstimateOfParts, IsThatOfTheLayoutAlongPp) {
  for (const lm::Blocks blocks : kKinds) {
    for_each_rank({.ranks = {.pp = 2}, .blocks = blocks},
                  [](const Architecture& whole, const Elements& own, int rank) {
                    const auto stages = launcher::estimate::pp_parts(whole, 2);
                    ASSERT_TRUE(stages.ok()) << stages.status();
                    EXPECT_EQ(estimated((*stages)[static_cast<size_t>(rank)]), own);
                  });
  }
}

// Compares experts and all else with what a rank has; `of_rank` is its part along tp.
void expect_as_placed(const Architecture& of_rank, const Elements& own) {
  const auto part = launcher::estimate::ep_part(of_rank, 2);
  ASSERT_TRUE(part.ok()) << part.status();
  Elements rest = own;
  double experts = 0;
  std::erase_if(rest, [&experts](const auto& each) {
    const bool is_expert = absl::StrContains(each.first, ".experts.");
    if (is_expert) experts += each.second;
    return is_expert;
  });
  EXPECT_GT(experts, 0);
  EXPECT_EQ(part->experts, experts * sizeof(float));
  EXPECT_EQ(estimated(part->rest), rest);
}

TEST(EstimateOfParts, IsThatOfTheLayoutAlongEp) {
  for_each_rank({.ranks = {.dp_shard = 2, .ep = 2, .experts = true}},
                [](const Architecture& whole, const Elements& own, int /*rank*/) {
                  expect_as_placed(whole, own);
                });
}

// Ranks along tp have a part of the inside of each expert.
TEST(EstimateOfParts, IsThatOfTheLayoutAlongTpAndEp) {
  for_each_rank({.ranks = {.dp_shard = 2, .tp = 2, .ep = 2, .experts = true}},
                [](const Architecture& whole, const Elements& own, int /*rank*/) {
                  const auto part = launcher::estimate::tp_part(whole, 2);
                  ASSERT_TRUE(part.ok()) << part.status();
                  expect_as_placed(part->architecture, own);
                });
}

}  // namespace
}  // namespace accelerate
