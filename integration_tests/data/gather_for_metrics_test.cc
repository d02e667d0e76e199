// gather_for_metrics over simulated ranks: every sample exactly once, in the order of the pass,
// whatever the loader is and whatever is gathered. Ranks collect; the test judges.
#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "absl/strings/str_cat.h"
#include "accelerate/accelerate.h"
#include "integration_tests/data/draw.h"
#include "simulator/cluster/cluster.h"
#include "simulator/testing/topology_suite.h"

namespace accelerate::data_tests {
namespace {

using simulator::Cluster;
using simulator::Rank;

// A user's own type: per-sample tensors and names.
struct Scored {
  at::Tensor scores;
  std::vector<std::string> names;
};
auto tree_members(Scored& scored) { return std::tie(scored.scores, scored.names); }

// One rank's view of one pass.
struct Seen {
  std::vector<Values> batches;
  std::vector<Values> gathered;
  std::vector<std::string> mistakes;
};

AcceleratorOptions accelerator_options(const Draw& draw) {
  return {.dataloader_config = {.split_batches = draw.geometry.split,
                                .dispatch_batches = draw.geometry.dispatch,
                                .even_batches = draw.geometry.even,
                                .use_seedable_sampler = draw.order == Order::kSeedable,
                                .data_seed = 11 + draw.number}};
}

at::Tensor tensor_of(const at::Tensor& batch) { return batch; }
at::Tensor tensor_of(const std::tuple<at::Tensor>& batch) { return std::get<0>(batch); }

// Gathers the numbers in several shapes; all must come out as the plain tensor does.
template <typename Batch>
Values gather_everything(Accelerator& accelerator, const Batch& batch,
                         std::vector<std::string>& mistakes) {
  const at::Tensor ids = tensor_of(batch);
  std::vector<std::string> names;
  for (int64_t id : values(ids)) names.push_back(absl::StrCat("sample ", id));
  std::map<std::string, std::vector<at::Tensor>> nested;
  nested["pairs"] = {at::stack({ids, -ids}, 1), ids.to(at::kDouble) / 2};
  auto [plain, list, tree, scored] =
      accelerator.gather_for_metrics(std::make_tuple(ids, names, nested, Scored{ids * 3, names}));
  const Values gathered = values(plain);
  std::vector<std::string> expected;
  for (int64_t id : gathered) expected.push_back(absl::StrCat("sample ", id));
  if (list != expected) mistakes.push_back("the list differs");
  if (scored.names != expected) mistakes.push_back("the struct's list differs");
  if (!scored.scores.equal(plain * 3)) mistakes.push_back("the struct's tensor differs");
  if (!tree.at("pairs")[0].equal(at::stack({plain, -plain}, 1))) {
    mistakes.push_back("the nested matrix differs");
  }
  if (!tree.at("pairs")[1].equal(plain.to(at::kDouble) / 2)) {
    mistakes.push_back("the nested vector differs");
  }
  return gathered;
}

Seen one_pass(const Draw& draw) {
  Accelerator accelerator(accelerator_options(draw));
  return with_loader(draw, [&](auto loader) {
    auto prepared = accelerator.prepare(loader);
    Seen seen;
    for (auto& batch : prepared) {
      seen.batches.push_back(values(batch));
      seen.gathered.push_back(gather_everything(accelerator, batch, seen.mistakes));
    }
    return seen;
  });
}

void check_topology(const std::string& spec, uint64_t first_draw, uint64_t count) {
  Cluster cluster(spec, {.seed = simulator::seed_of_run(0)});
  std::vector<Draw> draws;
  for (uint64_t number = first_draw; number < first_draw + count; ++number) {
    Draw draw = draw_loader(number, cluster.world_size());
    draw.samples %= 60;
    if (draw.samples == 0) draw.order = Order::kSequential;
    draw.geometry.dispatch = Dice(number + 1).one_in(3);
    // Without a round, ranks that wait for one are told; see dispatch_test.
    const Values any(static_cast<size_t>(draw.samples));
    if (draw.geometry.dispatch && expected_rounds(any, draw) == 0) continue;
    draws.push_back(draw);
  }
  std::vector<std::vector<Seen>> seen(static_cast<size_t>(cluster.world_size()));
  cluster.run_on_every_rank([&](Rank& rank) {
    for (const Draw& draw : draws) {
      seen[static_cast<size_t>(rank.index())].push_back(one_pass(draw));
    }
  });
  for (size_t i = 0; i < draws.size(); ++i) {
    const Values order = orders(draws[i], 1)[0];
    std::vector<Values> rounds;
    for (int64_t round = 0; round < expected_rounds(order, draws[i]); ++round) {
      rounds.push_back(expected_round(order, draws[i], round));
    }
    for (int rank = 0; rank < cluster.world_size(); ++rank) {
      const Seen& of_rank = seen[static_cast<size_t>(rank)][i];
      const std::string text = absl::StrCat(draws[i].text(), " on ", spec, " rank ", rank);
      std::vector<Values> batches;
      for (const ExpectedBatch& batch : expected_share(order, draws[i], rank)) {
        batches.push_back(batch.samples);
      }
      ASSERT_EQ(of_rank.batches, batches) << text;
      ASSERT_TRUE(of_rank.mistakes.empty()) << text << ": " << of_rank.mistakes[0];
      ASSERT_GE(rounds.size(), of_rank.gathered.size()) << text;
      for (size_t round = 0; round < of_rank.gathered.size(); ++round) {
        ASSERT_EQ(of_rank.gathered[round], rounds[round]) << text << " round " << round;
      }
    }
  }
}

TOPOLOGY_SUITE(GatherForMetrics, .also = {"1x3", "2x4", "1x3:h100", "tpu-v4:2x2x1"});

// Draws of other numbers of ranks begin elsewhere.
TEST_P(GatherForMetrics, GivesEachSampleOnce) {
  const int first = has_devices() ? 4000 : 1000 * std::min(world_size() - 1, 3);
  const int count = has_devices() ? 25 : world_size() <= 3 ? 100 : 80;
  check_topology(topology(), static_cast<uint64_t>(first), static_cast<uint64_t>(count));
}

// Batches of any lengths, whole ones in turn; what is missing in the last round is not counted.
TEST_P(GatherForMetrics, GivesEachSampleOfAListOfBatchesOnce) {
  Cluster cluster = make_cluster();
  const auto ranks = static_cast<size_t>(world_size());
  constexpr uint64_t kDraws = 60;
  struct Case {
    std::vector<Values> lists;
    bool even = true;
    bool dispatch = false;
    Values all;
  };
  std::vector<Case> cases(kDraws);
  for (uint64_t number = 0; number < kDraws; ++number) {
    Dice dice(number);
    Case& drawn = cases[number];
    drawn.even = !dice.one_in(3);
    drawn.dispatch = dice.one_in(3);
    drawn.lists.resize(static_cast<size_t>(1 + dice.below(11)));
    for (Values& list : drawn.lists) {
      list.resize(static_cast<size_t>(1 + dice.below(4)));
      for (int64_t& sample : list) {
        sample = static_cast<int64_t>(drawn.all.size());
        drawn.all.push_back(sample);
      }
    }
  }
  std::vector<std::vector<Values>> gathered(ranks, std::vector<Values>(kDraws));
  std::vector<std::vector<int64_t>> counts(ranks, std::vector<int64_t>(kDraws));
  std::vector<std::vector<int64_t>> sizes(ranks, std::vector<int64_t>(kDraws));
  cluster.run_on_every_rank([&](Rank& rank) {
    const auto index = static_cast<size_t>(rank.index());
    for (size_t i = 0; i < kDraws; ++i) {
      Accelerator accelerator({.dataloader_config = {.dispatch_batches = cases[i].dispatch,
                                                     .even_batches = cases[i].even}});
      auto sampler = std::make_shared<ListBatchSampler>(cases[i].lists);
      const auto samples = static_cast<int64_t>(cases[i].all.size());
      auto loader = accelerator.prepare(
          DataLoader(make_tensor_dataset(at::arange(samples)), {.batch_sampler = sampler}));
      sizes[index][i] = loader.size();
      for (auto& [batch] : loader) {
        ++counts[index][i];
        const Values now = values(accelerator.gather_for_metrics(batch));
        gathered[index][i].insert(gathered[index][i].end(), now.begin(), now.end());
      }
    }
  });
  for (size_t i = 0; i < kDraws; ++i) {
    EXPECT_EQ(gathered[0][i], cases[i].all) << "draw " << i;
    for (size_t rank = 0; rank < ranks; ++rank) {
      EXPECT_EQ(counts[rank][i], sizes[rank][i]) << "draw " << i << " rank " << rank;
      if (!cases[i].even && !cases[i].dispatch) continue;
      EXPECT_EQ(gathered[rank][i], cases[i].all) << "draw " << i << " rank " << rank;
    }
  }
}

// A sampler without a generator: ranks that are seeded differently share rank 0's order.
TEST_P(GatherForMetrics, GivesEachSampleOnceInAnOrderThatNobodySeeded) {
  Cluster cluster = make_cluster();
  const auto ranks = static_cast<size_t>(world_size());
  std::vector<std::vector<Values>> passes(ranks);
  cluster.run_on_every_rank([&](Rank& rank) {
    torch::manual_seed(static_cast<uint64_t>(100 + rank.index()));
    Accelerator accelerator;
    auto loader = accelerator.prepare(
        DataLoader(make_tensor_dataset(at::arange(31)), {.batch_size = 4, .shuffle = true}));
    for (int pass = 0; pass < 3; ++pass) {
      Values all;
      for (auto& [batch] : loader) {
        const Values now = values(accelerator.gather_for_metrics(batch));
        all.insert(all.end(), now.begin(), now.end());
      }
      passes[static_cast<size_t>(rank.index())].push_back(std::move(all));
    }
  });
  for (size_t rank = 1; rank < ranks; ++rank) EXPECT_EQ(passes[rank], passes[0]);
  EXPECT_NE(passes[0][0], passes[0][1]);
  EXPECT_NE(passes[0][1], passes[0][2]);
  for (Values& pass : passes[0]) {
    std::sort(pass.begin(), pass.end());
    EXPECT_EQ(pass, values(at::arange(31)));
  }
}

// An evaluation inside of a training loop gathers by its own loader, then the training's again.
TEST_P(GatherForMetrics, GoesByTheInnermostLoop) {
  Cluster cluster = make_cluster();
  const auto ranks = static_cast<size_t>(world_size());
  std::vector<std::vector<Values>> outer(ranks);
  std::vector<std::vector<Values>> inner(ranks);
  cluster.run_on_every_rank([&](Rank& rank) {
    const auto index = static_cast<size_t>(rank.index());
    Accelerator accelerator;
    auto train =
        accelerator.prepare(DataLoader(make_tensor_dataset(at::arange(5)), {.batch_size = 2}));
    auto eval =
        accelerator.prepare(DataLoader(make_tensor_dataset(at::arange(7)), {.batch_size = 3}));
    for (auto& [batch] : train) {
      Values all;
      for (auto& [eval_batch] : eval) {
        const Values now = values(accelerator.gather_for_metrics(eval_batch));
        all.insert(all.end(), now.begin(), now.end());
      }
      inner[index].push_back(std::move(all));
      outer[index].push_back(values(accelerator.gather_for_metrics(batch)));
    }
    Values of_all;
    for (size_t rank = 0; rank < ranks; ++rank) of_all.insert(of_all.end(), {0, 1});
    const at::Tensor own = at::arange(2).to(accelerator.device());
    EXPECT_EQ(values(accelerator.gather_for_metrics(own)), of_all);
  });
  const Values all{0, 1, 2, 3, 4, 5, 6};
  // Each round of the outer loop takes two samples a rank.
  std::vector<Values> rounds;
  for (int64_t begin = 0; begin < 5; begin += 2 * static_cast<int64_t>(ranks)) {
    rounds.push_back(values(at::arange(begin, std::min<int64_t>(5, begin + 2 * ranks))));
  }
  for (size_t rank = 0; rank < ranks; ++rank) {
    EXPECT_EQ(inner[rank], std::vector<Values>(rounds.size(), all));
    EXPECT_EQ(outer[rank], rounds);
  }
}

}  // namespace
}  // namespace accelerate::data_tests
