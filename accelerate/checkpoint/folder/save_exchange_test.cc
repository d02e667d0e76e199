#include "accelerate/checkpoint/folder/save_exchange.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "absl/strings/str_cat.h"
#include "accelerate/testing/threaded_group.h"

namespace accelerate {
namespace {

constexpr int kRanks = 3;

// Rank 0 reads all words, the others none.
std::vector<std::unique_ptr<SaveExchange>> exchanges(const c10::intrusive_ptr<c10d::Store>& store,
                                                     const std::string& id) {
  std::vector<std::unique_ptr<SaveExchange>> all;
  for (int rank = 0; rank < kRanks; ++rank) {
    StoreExchangeOptions options{.rank = rank, .world_size = kRanks, .id = id};
    if (rank == 0) options.reads = {0, 1, 2};
    all.push_back(make_store_exchange(store, options));
  }
  return all;
}

std::string text_of(const std::optional<std::vector<SaveWord>>& words) {
  if (!words) return "nothing yet";
  std::string text;
  for (const SaveWord& word : *words) absl::StrAppend(&text, word.ok ? "+" : "-", word.text, " ");
  return text;
}

TEST(StoreExchange, InWhateverOrderNobodyHearsBeforeAllHaveSpoken) {
  std::vector<int> order = {0, 1, 2};
  do {
    const auto store = c10::make_intrusive<c10d::HashStore>();
    const auto ranks = exchanges(store, "a");
    for (int round = 0; round < 2; ++round) {
      for (const int rank : order) {
        for (const auto& each : ranks) EXPECT_EQ(each->hear(round), std::nullopt);
        ranks[rank]->tell(round, {.text = absl::StrCat("r", round, "of", rank)});
      }
      // Rank 0 tells the others that all have.
      EXPECT_EQ(text_of(ranks[1]->hear(round)), "nothing yet");
      EXPECT_EQ(text_of(ranks[0]->hear(round)),
                absl::StrCat("+r", round, "of0 +r", round, "of1 +r", round, "of2 "));
      EXPECT_EQ(text_of(ranks[1]->hear(round)), "+ + + ");
      EXPECT_EQ(text_of(ranks[2]->hear(round)), "+ + + ");
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

TEST(StoreExchange, WhoReadsAWordGetsAllOfIt) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const std::string text = absl::StrCat("\xff", std::string(1, '\0'), "\n+-");
  // The first ranks of two nodes, of which the second commits as well.
  const auto first =
      make_store_exchange(store, {.rank = 0, .world_size = 2, .reads = {0}, .id = "a"});
  const auto second =
      make_store_exchange(store, {.rank = 1, .world_size = 2, .reads = {1}, .id = "a"});
  first->tell(0, {.text = ""});
  second->tell(0, {.text = text});
  ASSERT_TRUE(first->hear(0));
  const auto words = second->hear(0);
  ASSERT_TRUE(words);
  EXPECT_TRUE((*words)[1].ok);
  EXPECT_EQ((*words)[1].text, text);
  EXPECT_EQ((*words)[0].text, "");
}

TEST(StoreExchange, AllHearWhoFailedAndWhy) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto ranks = exchanges(store, "a");
  ranks[0]->tell(0, {.text = "fine"});
  ranks[1]->tell(0, {.ok = false, .text = "disk full"});
  ranks[2]->tell(0, {.ok = false, .text = "\xff"});
  EXPECT_EQ(text_of(ranks[0]->hear(0)), "+fine -disk full -\xff ");
  // What is no text arrives as text.
  EXPECT_EQ(text_of(ranks[1]->hear(0)), "+ -disk full -\xef\xbf\xbd ");
  EXPECT_EQ(text_of(ranks[2]->hear(0)), text_of(ranks[1]->hear(0)));
}

TEST(StoreExchange, SavesDoNotHearEachOther) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto one = exchanges(store, "a"), other = exchanges(store, "b");
  for (const auto& rank : one) rank->tell(0, {});
  EXPECT_TRUE(one[0]->hear(0));
  EXPECT_TRUE(one[2]->hear(0));
  EXPECT_FALSE(one[0]->hear(1));
  for (const auto& rank : other) EXPECT_FALSE(rank->hear(0));
}

TEST(StoreExchange, WhatIsForgottenIsNotInTheStore) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto ranks = exchanges(store, "a"), others = exchanges(store, "b");
  for (const auto& rank : others) rank->tell(0, {});
  const int64_t before = store->getNumKeys();
  for (int round = 0; round < 2; ++round) {
    for (const auto& rank : ranks) rank->tell(round, {});
    for (const auto& rank : ranks) EXPECT_TRUE(rank->hear(round));
  }
  EXPECT_EQ(store->getNumKeys(), before + 2 * (kRanks + 1));
  ranks[0]->forget();
  EXPECT_EQ(store->getNumKeys(), before);
  EXPECT_TRUE(others[0]->hear(0));
  // Of a save that ended before its second round, and twice.
  others[0]->forget();
  others[0]->forget();
  EXPECT_EQ(store->getNumKeys(), 0);
}

TEST(GroupExchange, WaitsForAllWords) {
  run_ranks(kRanks, [](const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
    const auto exchange = make_group_exchange(group);
    for (int round = 0; round < 2; ++round) {
      const int rank = group->getRank();
      exchange->tell(round, {.ok = rank != 1, .text = absl::StrCat(round, rank, "\xff")});
      EXPECT_EQ(text_of(exchange->hear(round)),
                absl::StrCat("+", round, "0\xff -", round, "1\xff +", round, "2\xff "));
    }
  });
  const auto alone = make_group_exchange({});
  alone->tell(0, {.ok = false, .text = "why"});
  EXPECT_EQ(text_of(alone->hear(0)), "-why ");
}

}  // namespace
}  // namespace accelerate
