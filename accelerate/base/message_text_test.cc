#include "accelerate/base/message_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accelerate {
namespace {

TEST(RankRanges, JoinsNeighbours) {
  EXPECT_EQ(rank_ranges({}), "");
  EXPECT_EQ(rank_ranges({4}), "4");
  EXPECT_EQ(rank_ranges({0, 1, 2, 3, 8, 10, 11}), "0-3,8,10-11");
}

TEST(RankRanges, KeepsTheOrder) { EXPECT_EQ(rank_ranges({3, 2, 0, 1}), "3,2,0-1"); }

TEST(ShellWords, AreQuotedOnlyWhereTheyMustBe) {
  EXPECT_EQ(shell_quoted("--lr=0.1"), "--lr=0.1");
  EXPECT_EQ(shell_quoted("a b"), "'a b'");
  EXPECT_EQ(shell_quoted("it's"), "'it'\\''s'");
  EXPECT_EQ(shell_quoted(""), "''");
  const std::vector<std::string> words = {"echo", "$HOME", "~"};
  EXPECT_EQ(shell_line(words), "echo '$HOME' '~'");
}

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Suggestion, TakesSlipsOfTheFingersAndBeginnings) {
  const std::vector<std::string> names = {"num_processes", "num_machines", "launch"};
  EXPECT_THAT(nearest_names("num_porcesses", names), ElementsAre("num_processes"));
  EXPECT_THAT(nearest_names("num_", names), ElementsAre("num_processes", "num_machines"));
  EXPECT_THAT(nearest_names("LUNCH", names), ElementsAre("launch"));
  EXPECT_THAT(nearest_names("xyzzy", names), IsEmpty());
  EXPECT_THAT(nearest_names(std::string(100'000, 'n'), names), IsEmpty());
}

TEST(Suggestion, IsPartOfAMessage) {
  const std::vector<std::string> names = {"cpu", "multi_gpu"};
  EXPECT_EQ(did_you_mean("multi_cpu", names, "--"), "; did you mean --multi_gpu?");
  EXPECT_EQ(did_you_mean("simulate", names), "");
  EXPECT_EQ(suggestion("cpus", names), "did you mean \"cpu\"?");
  EXPECT_EQ(suggestion("simulate", names), "one of cpu, multi_gpu");
}

}  // namespace
}  // namespace accelerate
