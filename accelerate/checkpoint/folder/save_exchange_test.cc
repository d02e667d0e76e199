#include "accelerate/checkpoint/folder/save_job.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "accelerate/testing/threaded_group.h"

namespace accelerate {
namespace {

using internal::RankOutcome;
using internal::RankStatus;

constexpr int kRanks = 3;

// Rank 0 reads all outcomes, the others none.
std::vector<std::unique_ptr<SaveExchange>> exchanges(const c10::intrusive_ptr<c10d::Store>& store,
                                                     const std::string& id) {
  std::vector<std::unique_ptr<SaveExchange>> all;
  for (int rank = 0; rank < kRanks; ++rank) {
    SaveExchangeOptions options{.rank = rank, .world_size = kRanks, .id = id};
    if (rank == 0) options.reads = {0, 1, 2};
    all.push_back(make_store_exchange(store, options));
  }
  return all;
}

std::string text_of(const std::optional<std::vector<RankOutcome>>& outcomes) {
  if (!outcomes) return "nothing yet";
  std::string text;
  for (const RankOutcome& each : *outcomes)
    absl::StrAppend(&text, each.ok() ? "+" : "-", each.text, " ");
  return text;
}

TEST(StoreExchange, NoRankCollectsBeforeAllHavePublished) {
  std::vector<int> order = {0, 1, 2};
  do {
    const auto store = c10::make_intrusive<c10d::HashStore>();
    const auto ranks = exchanges(store, "a");
    for (int round = 0; round < 2; ++round) {
      for (const int rank : order) {
        for (const auto& each : ranks) EXPECT_EQ(each->collect(round), std::nullopt);
        ranks[rank]->publish(round, {.text = absl::StrCat("r", round, "of", rank)});
      }
      // Rank 0 tells the others that all have.
      EXPECT_EQ(text_of(ranks[1]->collect(round)), "nothing yet");
      EXPECT_EQ(text_of(ranks[0]->collect(round)),
                absl::StrCat("+r", round, "of0 +r", round, "of1 +r", round, "of2 "));
      EXPECT_EQ(text_of(ranks[1]->collect(round)), "+ + + ");
      EXPECT_EQ(text_of(ranks[2]->collect(round)), "+ + + ");
    }
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(StoreExchange, SignsOfWorkAreSeenByAllRanksOfTheSave) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto ranks = exchanges(store, "a");
  const auto others = exchanges(store, "b");
  EXPECT_EQ(ranks[1]->beats(), 0);
  ranks[0]->beat();
  ranks[2]->beat();
  for (const auto& each : ranks) EXPECT_EQ(each->beats(), 2);
  EXPECT_EQ(others[0]->beats(), 0);
}

TEST(StoreExchange, AReaderGetsTheWholeText) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const std::string text = absl::StrCat("\xff", std::string(1, '\0'), "\n+-");
  // The first ranks of two nodes, of which the second commits as well.
  const auto first =
      make_store_exchange(store, {.rank = 0, .world_size = 2, .reads = {0}, .id = "a"});
  const auto second =
      make_store_exchange(store, {.rank = 1, .world_size = 2, .reads = {1}, .id = "a"});
  first->publish(0, {.text = ""});
  second->publish(0, {.text = text});
  ASSERT_TRUE(first->collect(0));
  const auto outcomes = second->collect(0);
  ASSERT_TRUE(outcomes);
  EXPECT_TRUE((*outcomes)[1].ok());
  EXPECT_EQ((*outcomes)[1].text, text);
  EXPECT_EQ((*outcomes)[0].text, "");
}

TEST(StoreExchange, AllRanksLearnWhichRankFailedAndWhy) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto ranks = exchanges(store, "a");
  ranks[0]->publish(0, {.text = "fine"});
  ranks[1]->publish(0, {.status = RankStatus::kFailed, .text = "disk full"});
  ranks[2]->publish(0, {.status = RankStatus::kFailed, .text = "\xff"});
  EXPECT_EQ(text_of(ranks[0]->collect(0)), "+fine -disk full -\xff ");
  // Bytes that are not text arrive as text.
  EXPECT_EQ(text_of(ranks[1]->collect(0)), "+ -disk full -\xef\xbf\xbd ");
  EXPECT_EQ(text_of(ranks[2]->collect(0)), text_of(ranks[1]->collect(0)));
}

TEST(StoreExchange, SavesDoNotMix) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto one = exchanges(store, "a"), other = exchanges(store, "b");
  for (const auto& rank : one) rank->publish(0, {});
  EXPECT_TRUE(one[0]->collect(0));
  EXPECT_TRUE(one[2]->collect(0));
  EXPECT_FALSE(one[0]->collect(1));
  for (const auto& rank : other) EXPECT_FALSE(rank->collect(0));
}

TEST(StoreExchange, ForgetEmptiesTheStore) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto ranks = exchanges(store, "a"), others = exchanges(store, "b");
  for (const auto& rank : others) rank->publish(0, {});
  const int64_t before = store->getNumKeys();
  for (int round = 0; round < 2; ++round) {
    for (const auto& rank : ranks) rank->publish(round, {});
    for (const auto& rank : ranks) EXPECT_TRUE(rank->collect(round));
  }
  EXPECT_EQ(store->getNumKeys(), before + 2 * (kRanks + 1));
  ranks[0]->remove_entries();
  EXPECT_EQ(store->getNumKeys(), before);
  EXPECT_TRUE(others[0]->collect(0));
  // A save that ended before its second round is forgotten, and again without effect.
  others[0]->remove_entries();
  others[0]->remove_entries();
  EXPECT_EQ(store->getNumKeys(), 0);
}

TEST(GroupExchange, WaitsForAllOutcomesAndGivesTextsToTheirReaders) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  run_ranks(kRanks, [&](const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
    const int rank = group->getRank();
    // Rank 2 commits on a disk of its own.
    const std::vector<int> reads = rank == 0   ? std::vector<int>{0, 1}
                                   : rank == 2 ? std::vector<int>{2}
                                               : std::vector<int>{};
    const auto exchange = make_group_exchange(
        group, store, {.rank = rank, .world_size = kRanks, .reads = reads, .id = "a"});
    for (int round = 0; round < 2; ++round) {
      exchange->publish(round, {.text = absl::StrCat(round, rank, "\xff")});
      const char* const expected[] = {"+%0\xff +%1\xff + ", "+ +%1\xff + ", "+ + +%2\xff "};
      EXPECT_EQ(text_of(exchange->collect(round)),
                absl::StrReplaceAll(expected[rank], {{"%", absl::StrCat(round)}}));
    }
    // Whoever reads, all learn who failed and why; a text that is empty is one.
    exchange->publish(2, {.status = rank != 1 ? RankStatus::kOk : RankStatus::kFailed,
                          .text = rank == 0 ? "" : absl::StrCat(rank, "\xff")});
    EXPECT_EQ(text_of(exchange->collect(2)), rank == 2 ? "+ -1\xff +2\xff " : "+ -1\xff + ");
  });
  EXPECT_EQ(store->getNumKeys(), 0);
  const auto alone = make_group_exchange({}, {}, {.reads = {0}});
  alone->publish(0, {.text = "files"});
  EXPECT_EQ(text_of(alone->collect(0)), "+files ");
  alone->publish(0, {.status = RankStatus::kFailed, .text = "why"});
  EXPECT_EQ(text_of(alone->collect(0)), "-why ");
}

}  // namespace
}  // namespace accelerate
