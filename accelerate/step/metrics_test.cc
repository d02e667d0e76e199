#include "accelerate/step/metrics.h"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/core/Dict.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/tensors/to_ivalue.h"
#include "accelerate/testing/threaded_group.h"

namespace accelerate {
namespace {

using ::testing::ElementsAre;

using Names = std::vector<std::string>;

std::vector<int64_t> values(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.contiguous();
  const int64_t* data = flat.const_data_ptr<int64_t>();
  return std::vector<int64_t>(data, data + flat.numel());
}

at::Tensor column(std::vector<int64_t> numbers) { return at::tensor(numbers, at::kLong); }

TEST(GatherForMetrics, GivesARankAloneItsTreeBack) {
  const at::Tensor tensor = column({1, 2});
  const auto [back, names] =
      gather_for_metrics({}, {.own_rows = 1, .real_rows = 1}, std::tuple(tensor, Names{"a", "b"}));
  EXPECT_TRUE(back.is_same(tensor));
  EXPECT_THAT(names, ElementsAre("a", "b"));
}

TEST(GatherForMetrics, GathersAllRowsOfAFullRound) {
  run_ranks(3, [](const ProcessGroupPtr& group) {
    const int64_t rank = group->getRank();
    const at::Tensor all = gather_for_metrics(group, {}, column({2 * rank, 2 * rank + 1}));
    EXPECT_THAT(values(all), ElementsAre(0, 1, 2, 3, 4, 5));
  });
}

// 10 samples, batch size 2, three ranks: the last round has 4 real rows, the last rank's batch
// none.
TEST(GatherForMetrics, LeavesOutTheRowsThatFillUpARound) {
  run_ranks(3, [](const ProcessGroupPtr& group) {
    const int rank = group->getRank();
    const BatchRound round{.own_rows = rank < 2 ? 2 : 0, .real_rows = 4, .shares = 3};
    const std::vector<std::vector<int64_t>> batches{{6, 7}, {8, 9}, {0, 1}};
    const std::vector<Names> names{{"6", "7"}, {"8", "9"}, {"0", "1"}};
    using Tree = std::map<std::string, std::pair<at::Tensor, Names>>;
    const Tree tree{{"x", {column(batches[rank]), names[rank]}}};
    const Tree all = gather_for_metrics(group, round, tree);
    EXPECT_THAT(values(all.at("x").first), ElementsAre(6, 7, 8, 9));
    EXPECT_THAT(all.at("x").second, ElementsAre("6", "7", "8", "9"));
  });
}

TEST(GatherForMetrics, LeavesOutTheRowsThatFillUpPartOfABatch) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    const bool first = group->getRank() == 0;
    const BatchRound round{.own_rows = first ? 2 : 1, .real_rows = 3, .shares = 2};
    auto [tensor, names] = gather_for_metrics(group, round,
                                              std::pair(first ? column({4, 5}) : column({6, 0}),
                                                        first ? Names{"4", "5"} : Names{"6", "0"}));
    EXPECT_THAT(values(tensor), ElementsAre(4, 5, 6));
    EXPECT_THAT(names, ElementsAre("4", "5", "6"));
  });
}

TEST(GatherForMetrics, TakesDynamicValuesAndObjects) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    const bool first = group->getRank() == 0;
    const BatchRound round{.own_rows = first ? 2 : 1, .real_rows = 3, .shares = 2};
    const at::Tensor rows = first ? column({4, 5}) : column({6, 0});
    const Names names = first ? Names{"4", "5"} : Names{"6", "0"};
    EXPECT_THAT(gather_for_metrics(group, round, names, /*use_gather_object=*/true),
                ElementsAre("4", "5", "6"));
    EXPECT_THROW(gather_for_metrics(group, round, rows, true), c10::ValueError);
    c10::impl::GenericDict batch(c10::StringType::get(), c10::AnyType::get());
    batch.insert("x", rows);
    batch.insert("names", to_ivalue(names));
    const c10::IValue all = gather_for_metrics(group, round, c10::IValue(batch));
    EXPECT_THAT(values(all.toGenericDict().at("x").toTensor()), ElementsAre(4, 5, 6));
    EXPECT_EQ(all.toGenericDict().at("names"), to_ivalue(Names{"4", "5", "6"}));
    const c10::IValue objects = gather_for_metrics(group, round, c10::IValue(rows), true);
    EXPECT_EQ(objects.toListRef().size(), 3);
  });
}

TEST(GatherForMetrics, TakesBatchesThatDifferInTheirRows) {
  run_ranks(3, [](const ProcessGroupPtr& group) {
    // Rank 0 repeats an earlier batch, rank 2's is short.
    const std::vector<std::vector<int64_t>> batches{{1, 2, 3}, {4, 5}, {6}};
    const std::vector<int64_t> own{0, BatchRound::kAll, BatchRound::kAll};
    const int rank = group->getRank();
    const BatchRound round{.own_rows = own[rank], .ragged = true, .shares = 3};
    const at::Tensor rows = column(batches[rank]);
    auto [tensor, numbers] = gather_for_metrics(group, round, std::pair(rows, batches[rank]));
    EXPECT_THAT(values(tensor), ElementsAre(4, 5, 6));
    EXPECT_THAT(numbers, ElementsAre(4, 5, 6));
  });
}

// However many of a round's rows are filler: none, one, all but one, and those of batches that
// differ in their rows too.
TEST(GatherForMetrics, LeavesOutEveryFillerRow) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    const int rank = group->getRank();
    for (int64_t real = 1; real <= 8; ++real) {
      const int64_t own = std::clamp<int64_t>(real - 4 * rank, 0, 4);
      const at::Tensor batch = at::arange(4 * rank, 4 * rank + 4, at::kLong);
      std::vector<int64_t> entries = values(batch);
      const std::vector<int64_t> expected = values(at::arange(real, at::kLong));
      for (const bool ragged : {false, true}) {
        const BatchRound round{.own_rows = own,
                               .real_rows = ragged ? BatchRound::kAll : real,
                               .ragged = ragged,
                               .shares = 2};
        const auto [rows, numbers] = gather_for_metrics(group, round, std::pair(batch, entries));
        EXPECT_EQ(values(rows), expected) << ragged;
        EXPECT_EQ(numbers, expected) << ragged;
      }
    }
  });
}

// Outside of loops and in rounds of equal batches too: a rank may keep some samples only, or none.
TEST(GatherForMetrics, TakesValuesThatDifferInTheirRowsEverywhere) {
  run_ranks(3, [](const ProcessGroupPtr& group) {
    const int rank = group->getRank();
    const std::vector<std::vector<int64_t>> kept{{}, {1}, {2, 3}};
    const BatchRound rounds[] = {{}, {.own_rows = 4, .real_rows = 12, .shares = 3}};
    for (const BatchRound& round : rounds) {
      EXPECT_THAT(values(gather_for_metrics(group, round, column(kept[rank]))),
                  ElementsAre(1, 2, 3));
      using Tree = std::map<std::string, std::vector<at::Tensor>>;
      const Tree tree{{"a", {column(kept[rank]), column(kept[2 - rank])}}, {"b", {}}};
      const Tree all = gather_for_metrics(group, round, tree);
      EXPECT_THAT(values(all.at("a")[0]), ElementsAre(1, 2, 3));
      EXPECT_THAT(values(all.at("a")[1]), ElementsAre(2, 3, 1));
    }
    // The last round, of which rank 1 has one sample and rank 2 none.
    const BatchRound last{.own_rows = 2 - rank, .real_rows = 3, .shares = 3};
    EXPECT_THAT(values(gather_for_metrics(group, last, column(kept[rank]))), ElementsAre(1));
  });
}

TEST(GatherForMetrics, TakesEntriesOfDictsByTheirKeys) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    const int64_t rank = group->getRank();
    const Names names = rank == 0 ? Names{"a"} : Names{"b", "c"};
    c10::impl::GenericDict batch(c10::StringType::get(), c10::AnyType::get());
    if (rank == 0) batch.insert("names", to_ivalue(names));
    batch.insert("labels", column({10 * rank}));
    batch.insert("answers", column({10 * rank + 1}));
    if (rank == 1) batch.insert("names", to_ivalue(names));
    const c10::IValue all = gather_for_metrics(group, {}, c10::IValue(batch));
    const auto dict = all.toGenericDict();
    EXPECT_THAT(values(dict.at("labels").toTensor()), ElementsAre(0, 10));
    EXPECT_THAT(values(dict.at("answers").toTensor()), ElementsAre(1, 11));
    EXPECT_EQ(dict.at("names"), to_ivalue(Names{"a", "b", "c"}));
  });
}

TEST(GatherForMetrics, GathersScalarsAsOneRowEach) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    for (bool ragged : {false, true}) {
      const at::Tensor loss = at::full({}, group->getRank() + 1, at::kLong);
      EXPECT_THAT(values(gather_for_metrics(group, {.ragged = ragged}, loss)), ElementsAre(1, 2));
    }
  });
}

TEST(GatherForMetrics, KeepsTheRestOfTheShape) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    const at::Tensor batch = at::full({2, 3}, group->getRank());
    const BatchRound round{.own_rows = group->getRank() == 0 ? 2 : 1, .real_rows = 3, .shares = 2};
    const at::Tensor all = gather_for_metrics(group, round, batch.t().contiguous().t());
    EXPECT_EQ(all.sizes(), (std::vector<int64_t>{3, 3}));
    EXPECT_EQ(all.sum().item<double>(), 3);
  });
}

}  // namespace
}  // namespace accelerate
