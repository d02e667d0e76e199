#include "accelerate/comm/objects.h"

#include <mutex>
#include <string>
#include <vector>

#include <ATen/ops/ones.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/testing/threaded_group.h"

namespace accelerate {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Strings = std::vector<std::string>;

// What `body(group)` gives on each rank.
template <typename Body>
auto on_ranks(int size, const Body& body) {
  std::vector<decltype(body(ProcessGroupPtr()))> results(static_cast<size_t>(size));
  run_ranks(size, [&](const ProcessGroupPtr& group) {
    results[static_cast<size_t>(group->getRank())] = body(group);
  });
  return results;
}

TEST(AllGatherBytes, GivesEveryRanksBytesByRank) {
  const Strings sent{"a", "", std::string("\0bc", 3)};
  EXPECT_THAT(on_ranks(3,
                       [&](const ProcessGroupPtr& group) {
                         return all_gather_bytes(group, sent[group->getRank()]);
                       }),
              Each(sent));
}

TEST(AllGatherBytes, GivesEmptyBytes) {
  EXPECT_THAT(on_ranks(2, [](const ProcessGroupPtr& group) { return all_gather_bytes(group, ""); }),
              Each(ElementsAre("", "")));
}

TEST(AllGatherBytes, GivesARankAloneItsOwn) {
  EXPECT_THAT(all_gather_bytes({}, "own"), ElementsAre("own"));
}

TEST(BroadcastBytes, GivesTheSourcesBytes) {
  for (int source : {0, 2}) {
    const Strings sent{"short", "the longest of them all", ""};
    EXPECT_THAT(on_ranks(3,
                         [&](const ProcessGroupPtr& group) {
                           return broadcast_bytes(group, sent[group->getRank()], source);
                         }),
                Each(sent[source]));
  }
  EXPECT_EQ(broadcast_bytes({}, "own"), "own");
}

TEST(GatherObject, PutsRanksEntriesOneAfterTheOther) {
  using Entry = std::pair<int, std::string>;
  EXPECT_THAT(on_ranks(3,
                       [](const ProcessGroupPtr& group) {
                         // As many entries as the rank's number.
                         std::vector<Entry> entries;
                         for (int i = 0; i < group->getRank(); ++i) {
                           entries.emplace_back(group->getRank(), std::string(i, 'x'));
                         }
                         return gather_object(group, entries);
                       }),
              Each(ElementsAre(Entry{1, ""}, Entry{2, ""}, Entry{2, "x"})));
}

TEST(GatherObject, GivesARankAloneItsOwn) {
  EXPECT_THAT(gather_object({}, std::vector<double>{0.5}), ElementsAre(0.5));
  EXPECT_THAT(gather_object({}, Strings()), IsEmpty());
}

TEST(GatherObject, RefusesTensors) {
  run_ranks(1, [](const ProcessGroupPtr& group) {
    EXPECT_THROW(gather_object(group, std::vector<at::Tensor>{at::ones({1})}), c10::ValueError);
  });
}

}  // namespace
}  // namespace accelerate
